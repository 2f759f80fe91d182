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
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.registry import get_choice_names
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.huggingface_config import CONFIG, is_huggingface_folder
from titanrun.recipe.builtins import register_builtins
from titanrun.recipe.reference.counting_template import find_counting_template
from titanrun.recipe.reference.finetuning_length import SequenceLength, choose_sequence_length
from titanrun.recipe.reference.finetuning_size import (
    FinetuningSize,
    choose_size,
    join_sources,
)
from titanrun.recipe.reference.recipe_template import TEMPLATE_STYLES, TemplateFormat
from titanrun.recipe.reference.record_words import describe_records
from titanrun.recipe.resolving.model_folder import build_file_problem, find_model_folder_problem
from titanrun.recipe.resolving.recipe_from_hf import (
    get_model_family,
)

NO_TEMPLATE = "a guess by the tokens: the folder has none; check it"
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
        lr: usual learning rate.
        settings: further settings at the top level.
        model: further settings of the model.
    """

    purpose: str
    dataset: str
    lr: float
    settings: Sequence[Setting] = ()
    model: Sequence[Setting] = ()


@dataclass(frozen=True, slots=True)
class FinetunedModel:
    """Model that a recipe starts from.

    Args:
        named: as the user named it: a Hugging Face folder, or hub:OWNER/NAME.
        folder: its folder on this machine.
        guessed_template: chat template that suits its tokenizer, None if it has its own.
    """

    named: str
    folder: Path
    guessed_template: str | None = None


CHECKPOINT: list[Setting] = [
    ("enable", True, ""),
    ("interval", 500, "steps; the last one is saved, too"),
    ("keep_latest_k", 2, ""),
    ("initial_load_in_hf", True, "starts from the weights of the folder"),
]
SFT: Setting = ("kind", "sft", "the data must be conversations")
PACKINGS = {"chat": {"packing": "best_fit"}, "text": {"packing": "documents"}}
"""How documents fill sequences, by dataset."""
KINDS = {
    "pretrain": FinetuningKind("Continued pretraining on plain texts", "text", 2e-5),
    "sft": FinetuningKind("Fine-tuning of all weights", "chat", 2e-5, [SFT]),
    "lora": FinetuningKind(
        "Fine-tuning of low-rank adapters",
        "chat",
        2e-4,
        [SFT, ("converters", [{"name": "lora", "rank": 16, "alpha": 32}], "")],
    ),
    "dpo": FinetuningKind(
        "Preferences by DPO",
        "preference",
        1e-6,
        [("loss", {"name": "dpo", "beta": 0.1}, "keeps a second copy of the model")],
    ),
    "orpo": FinetuningKind(
        "Preferences by ORPO", "preference", 1e-6, [("loss", {"name": "orpo"}, "")]
    ),
    "kto": FinetuningKind(
        "Labelled replies by KTO",
        "labelled",
        1e-6,
        [("loss", {"name": "kto"}, "keeps a second copy of the model")],
    ),
    "reward": FinetuningKind(
        "A reward model from preferences",
        "preference",
        1e-5,
        [("loss", {"name": "reward", "center_coefficient": 0.01}, "keeps scores around 0")],
        [("head", "scalar", "a score in place of logits, with new weights")],
    ),
}


def build_finetuning_template(
    kind: str,
    *,
    model: FinetunedModel,
    data: Sequence[Mapping[str, Any]],
    file: str,
    schema: str,
    file_format: TemplateFormat = "yaml",
) -> str:
    """Return the text of a recipe that fine-tunes a model, at most 40 lines.

    Args:
        kind: One of KINDS.
        model: Model to start from.
        data: Settings of each dataset; several are a mixture.
        file: File name that the comments mention.
        schema: JSON Schema that the editor line names.
        file_format: yaml or toml.

    Raises:
        ProblemsFound: If there is no such model, or no family reads it.
    """
    chosen, style = KINDS[kind], TEMPLATE_STYLES[file_format]
    family = get_model_family(model.folder)
    lines = [
        HEAD.format(editor_line=style.editor_line.format(schema), purpose=chosen.purpose, file=file)
    ]
    top: list[Setting] = [("version", 1, ""), *chosen.settings]
    lines += [format_setting(setting, style.format_pair, "") for setting in top]
    for name, settings in list_sections(chosen, family, model, data):
        lines += ["", style.format_section(name)]
        lines += [format_setting(setting, style.format_pair, style.indent) for setting in settings]
    return "\n".join(lines) + "\n"


def list_sections(
    kind: FinetuningKind, family: str, model: FinetunedModel, data: Sequence[Mapping[str, Any]]
) -> list[Section]:
    """Return the sections of the recipe, with their settings."""
    guess = model.guessed_template
    reads_template = kind.dataset != "text"
    dataset, length, size = measure_data(kind, data, model)
    template: list[Section] = [("tokenizer", [("chat_template", guess, NO_TEMPLATE)])]
    has = "weights and tokenizer"
    if reads_template and guess is None:
        has = "weights, tokenizer and chat template"
    return [
        (
            "model",
            [
                ("name", family, ""),
                ("flavor", "auto", f"sizes of {CONFIG}"),
                ("hf_assets_path", model.named, has),
                *kind.model,
                ("attention", {"mask": "block_causal"}, "texts of a sequence stay apart"),
            ],
        ),
        *(template if guess else []),
        (
            "training",
            [
                ("dataset", dataset, describe_dataset(dataset)),
                ("seq_len", length.seq_len, length.reason),
                ("local_batch_size", 1, "sequences that a device computes at once"),
                (
                    "global_batch_size",
                    size.global_batch_size,
                    "sequences of a step, on all devices",
                ),
                ("epochs", size.epochs, describe_steps(size)),
            ],
        ),
        ("optimizer", [("lr", kind.lr, "")]),
        ("lr_scheduler", [("name", "cosine", ""), ("warmup_ratio", 0.03, "")]),
        *list_validation(size),
        ("checkpoint", CHECKPOINT),
    ]


def list_validation(size: FinetuningSize) -> list[Section]:
    """Return the section of validation, none where the records are too few to hold some out."""
    if size.holdout is None:
        return []
    held: Setting = ("holdout", size.holdout, describe_holdout(size.holdout))
    return [("validation", [held, ("freq", size.validation_freq, "steps")])]


def measure_data(
    kind: FinetuningKind, data: Sequence[Mapping[str, Any]], model: FinetunedModel
) -> tuple[dict[str, Any], SequenceLength, FinetuningSize]:
    """Return the dataset, the length of its sequences, and what suits its amount."""
    packing = PACKINGS.get(kind.dataset, {})
    sources = [{**settings, **packing} for settings in data]
    folder, guess = model.folder, model.guessed_template
    templates = [guess or find_counting_template(source, folder) for source in sources]
    pairs = list(zip(sources, templates, strict=True))
    length = max(
        (choose_sequence_length(source, folder, template) for source, template in pairs),
        key=lambda found: found.seq_len,
    )
    sizes = [
        choose_size(source, folder, template, seq_len=length.seq_len) for source, template in pairs
    ]
    dataset, size = join_sources(sources, sizes)
    return dataset, length, size


def describe_dataset(dataset: Mapping[str, Any]) -> str:
    """Return the comment of a dataset: its records, or what the weights of a mixture are."""
    if "sources" not in dataset:
        return "" if "layout" in dataset else describe_records(dataset)
    weighted = all("weight" in source for source in dataset["sources"])
    return "a source's weight is its number of sequences" if weighted else ""


def describe_steps(size: FinetuningSize) -> str:
    """Return the comment of the epochs: what they amount to, if it is known."""
    if size.steps is None or size.sequences is None:
        return ""
    sequences = pluralize(size.sequences, "sequence")
    return f"{pluralize(size.steps, 'step')}: an epoch has {sequences}"


def describe_holdout(holdout: float) -> str:
    """Return the comment of what is held out."""
    return "share of the records" if holdout < 1 else "records, of which none is trained on"


def suggest_missing_template(folder: Path) -> list[str]:
    """Return the templates that suit the tokenizer of a folder without one, the best guess first.

    Return none if it has one, or no tokenizer that can be read.
    """
    with suppress(ProblemsFound):
        load_chat_template_text(folder)
        return []
    try:
        return suggest_template_names(load_vocab(folder))
    except ProblemsFound:
        return []


def format_setting(setting: Setting, format_pair: Any, indent: str) -> str:
    """Return the line of a setting with its comment."""
    name, value, comment = setting
    line = f"{indent}{format_pair(name, value)}"
    return f"{line}  # {comment}" if comment else line


def open_model_folder(model: str) -> Path:
    """Return the folder of a model. Raise ProblemsFound if there is none."""
    register_builtins()
    if model.partition(":")[0] in get_choice_names(ModelConfig) and not Path(model).exists():
        raise problem_error(
            "usage",
            f"'{model}' is a family of models without weights, which --kind trains further",
            hint="name a folder of a model, or hub:OWNER/NAME; for a small one to try with: "
            "titanrun train first_chat dump_folder=runs/small, then titanrun checkpoint export "
            "runs/small small --format hf",
        )
    found = find_model_folder_problem(model)
    if found is not None:
        raise ProblemsFound([found])
    folder = Path(model)
    if is_huggingface_folder(folder):
        return folder
    if folder.is_file():
        raise ProblemsFound([build_file_problem(folder, ())])
    raise problem_error(
        "file", f"'{model}' has no {CONFIG}", hint="use a Hugging Face folder of a model"
    )
