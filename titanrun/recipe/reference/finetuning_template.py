"""Starter recipe of fine-tuning: a model in a folder, and data to train it on."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.components.tokenizers.spec.named_templates import suggest_template_names
from titanrun.components.tokenizers.spec.tokenizer_files import (
    load_chat_template_text,
    load_vocab,
)
from titanrun.config.json_text import parse_json
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.recipe.reference.finetuning_size import FinetuningSize, choose_size
from titanrun.recipe.reference.recipe_template import TEMPLATE_STYLES, TemplateFormat
from titanrun.recipe.resolving.recipe_from_hf import CONFIG, get_model_family, is_huggingface_folder

USUAL_SEQ_LEN = 2048
NO_TEMPLATE = "a guess by the tokens: the folder has none; check it"
LENGTH_KEY = "max_position_embeddings"
HEAD = """\
{editor_line}
# {purpose}: titanrun train {file}
# titanrun explain training.epochs documents a setting
"""

Setting = tuple[str, Any, str]
Section = tuple[str, list[Setting]]


@dataclass(frozen=True, slots=True)
class FinetuningKind:
    """What differs between kinds of fine-tuning.

    Args:
        purpose: first line of the recipe.
        dataset: name of the dataset.
        record: a record of the data, for a comment.
        lr: usual learning rate.
        settings: further settings at the top level.
    """

    purpose: str
    dataset: str
    record: str
    lr: float
    settings: Sequence[Setting] = ()


CHAT = ("chat", 'lines of {"messages": [...]}')
PAIRS = ("preference", 'lines of {"prompt", "chosen", "rejected"}')
LABELS = ("labelled", 'lines of {"prompt", "completion", "label"}')
CHECKPOINT: list[Setting] = [
    ("enable", True, ""),
    ("interval", 500, "steps; the last one is saved, too"),
    ("keep_latest_k", 2, ""),
    ("initial_load_in_hf", True, "starts from the weights of the folder"),
]
SFT: Setting = ("kind", "sft", "the data must be conversations")
KINDS = {
    "sft": FinetuningKind("Fine-tuning of all weights", *CHAT, 2e-5, [SFT]),
    "lora": FinetuningKind(
        "Fine-tuning of low-rank adapters",
        *CHAT,
        2e-4,
        [SFT, ("converters", [{"name": "lora", "rank": 16, "alpha": 32}], "")],
    ),
    "dpo": FinetuningKind(
        "Preferences by DPO",
        *PAIRS,
        1e-6,
        [("loss", {"name": "dpo", "beta": 0.1}, "keeps a second copy of the model")],
    ),
    "orpo": FinetuningKind("Preferences by ORPO", *PAIRS, 1e-6, [("loss", {"name": "orpo"}, "")]),
    "kto": FinetuningKind(
        "Labelled replies by KTO",
        *LABELS,
        1e-6,
        [("loss", {"name": "kto"}, "keeps a second copy of the model")],
    ),
}


def build_finetuning_template(
    kind: str,
    *,
    model: str,
    folder: Path,
    data: Mapping[str, Any],
    file: str,
    schema: str,
    file_format: TemplateFormat = "yaml",
) -> str:
    """Return the text of a recipe that fine-tunes a model, at most 40 lines.

    Args:
        kind: One of KINDS.
        model: Model as the user named it: a Hugging Face folder, or hub:OWNER/NAME.
        folder: Folder of the model on this machine.
        data: Settings of the dataset.
        file: File name that the comments mention.
        schema: JSON Schema that the editor line names.
        file_format: yaml or toml.

    Raises:
        ProblemsFound: If there is no such model, or no family reads it.
    """
    chosen, style = KINDS[kind], TEMPLATE_STYLES[file_format]
    family = get_model_family(folder)
    lines = [
        HEAD.format(editor_line=style.editor_line.format(schema), purpose=chosen.purpose, file=file)
    ]
    top: list[Setting] = [("version", 1, ""), *chosen.settings]
    lines += [format_setting(setting, style.format_pair, "") for setting in top]
    for name, settings in list_sections(chosen, family, model, folder, data):
        lines += ["", style.format_section(name)]
        lines += [format_setting(setting, style.format_pair, style.indent) for setting in settings]
    return "\n".join(lines) + "\n"


def list_sections(
    kind: FinetuningKind, family: str, model: str, folder: Path, data: Mapping[str, Any]
) -> list[Section]:
    """Return the sections of the recipe, with their settings."""
    dataset = dict(data)
    if kind.dataset == "chat":
        dataset["packing"] = "best_fit"
    seq_len = min(USUAL_SEQ_LEN, read_context_length(folder))
    guess = guess_missing_template(folder)
    size = choose_size(dataset, folder, guess, seq_len=seq_len)
    template: list[Section] = [("tokenizer", [("chat_template", guess, NO_TEMPLATE)])]
    return [
        (
            "model",
            [
                ("name", family, ""),
                ("flavor", "auto", f"sizes of {CONFIG}"),
                ("hf_assets_path", model, "weights, tokenizer and chat template"),
                ("attention", {"mask": "block_causal"}, "texts of a row stay apart"),
            ],
        ),
        *(template if guess else []),
        (
            "training",
            [
                ("dataset", dataset, "" if "layout" in dataset else kind.record),
                ("seq_len", seq_len, "tokens; longer records are left out"),
                ("local_batch_size", 1, "rows that a device computes at once"),
                ("global_batch_size", size.global_batch_size, "rows of a step, on all devices"),
                ("epochs", size.epochs, describe_steps(size)),
            ],
        ),
        ("optimizer", [("lr", kind.lr, "")]),
        ("lr_scheduler", [("name", "cosine", ""), ("warmup_ratio", 0.03, "")]),
        (
            "validation",
            [
                ("holdout", size.holdout, describe_holdout(size)),
                ("freq", size.validation_freq, "steps"),
            ],
        ),
        ("checkpoint", CHECKPOINT),
    ]


def describe_steps(size: FinetuningSize) -> str:
    """Return the comment of the epochs: what they amount to, if it is known."""
    if size.steps is None or size.sequences is None:
        return ""
    rows = pluralize(size.sequences, "row")
    return f"{pluralize(size.steps, 'step')}: an epoch has {rows}"


def describe_holdout(size: FinetuningSize) -> str:
    """Return the comment of what is held out."""
    return "share of the records" if size.holdout < 1 else "records, of which none is trained on"


def guess_missing_template(folder: Path) -> str | None:
    """Return the name of the template that suits the tokenizer of a folder without one.

    Return None if it has one, or no tokenizer that can be read.
    """
    with suppress(ProblemsFound):
        load_chat_template_text(folder)
        return None
    try:
        return suggest_template_names(load_vocab(folder))[0]
    except (ProblemsFound, IndexError):
        return None


def format_setting(setting: Setting, format_pair: Any, indent: str) -> str:
    """Return the line of a setting with its comment."""
    name, value, comment = setting
    line = f"{indent}{format_pair(name, value)}"
    return f"{line}  # {comment}" if comment else line


def open_model_folder(model: str) -> Path:
    """Return the folder of a model. Raise ProblemsFound if there is none."""
    folder = Path(model)
    if is_huggingface_folder(folder):
        return folder
    if folder.is_dir():
        raise problem_error(
            "file", f"'{model}' has no {CONFIG}", hint="use a Hugging Face folder of a model"
        )
    raise problem_error(
        "file",
        f"folder not found: '{model}'",
        hint="a model of the Hub is written as hub:OWNER/NAME",
    )


def read_context_length(folder: Path) -> int:
    """Return the longest context that config.json names, else the usual length."""
    found = parse_json((folder / CONFIG).read_text(encoding="utf-8")).get(LENGTH_KEY)
    return found if type(found) is int and found > 0 else USUAL_SEQ_LEN
