"""The model card of a pushed run: what it is, how it was trained, and what it was made from."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.spec.manifest import MANIFEST_FILE
from titanrun.components.metrics.spec.metric_format import format_decimals
from titanrun.config.json_text import parse_json
from titanrun.config.redaction import redact_tokens, redact_url_credentials
from titanrun.config.serialize import to_yaml
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.rundir.run_files import (
    METRICS,
    RESOLVED,
    RUN_JSON,
    get_mapping,
    get_starts,
    read_json_or_empty,
)
from titanrun.runs.run_summary import RunSummary, load_run_summary

CARD_BEGIN, CARD_END = "<!-- titanrun: begin -->", "<!-- titanrun: end -->"
LIBRARIES = {"hf": "transformers", "adapter": "peft", "gguf": "gguf"}
# losses of preferences by the word with which the Hub lists them
METHODS = ("dpo", "ipo", "cpo", "simpo", "orpo", "kto")


@dataclass(frozen=True, slots=True)
class PushedModel:
    """What a card describes.

    Attributes:
        run: Folder of the run.
        checkpoint: The exported checkpoint.
        recipe: Its resolved recipe.
        repository: OWNER/NAME on the Hub.
        kind: hf, adapter or gguf.
        base: Repository and commit of the base model, if they are known.
        license: License of the base model, if its card states it.
        stops: Tokens at which generation stops.
        has_template: Whether the tokenizer has a chat template.
    """

    run: Path
    checkpoint: Path
    recipe: Recipe
    repository: str
    kind: str
    base: tuple[str, str] | None
    license: str | None
    stops: tuple[str, ...]
    has_template: bool


def build_model_card(model: PushedModel) -> str:
    """Return the card as Markdown, with its settings for the Hub in front."""
    summary, record = load_run_summary(model.run), read_json_or_empty(model.run / RUN_JSON)
    start = (get_starts(record) or [{}])[-1]
    sections = [
        f"# {model.repository.partition('/')[2]}",
        format_origin(model),
        "## Use",
        format_use(model),
        "## Training",
        format_table(iter_training_facts(model, summary, start)),
        "## Provenance",
        format_table(iter_provenance(model, start)),
        "The resolved recipe is `titanrun/resolved.yaml` in this repository. "
        "`titanrun train resolved.yaml` trains it again where its data and weights are.",
        f"<details><summary>Resolved recipe</summary>\n\n```yaml\n{read_recipe_text(model)}```\n\n"
        "</details>",
    ]
    body = "\n\n".join(sections)
    head = to_yaml(build_card_data(model))
    return f"---\n{head}---\n\n{CARD_BEGIN}\n{hide_home(redact_tokens(body))}\n{CARD_END}\n"


def build_card_data(model: PushedModel) -> dict[str, Any]:
    """Return the settings that the Hub reads."""
    repo = getattr(model.recipe.training.dataset, "repo", None)
    return {
        **({"base_model": model.base[0]} if model.base else {}),
        **({"datasets": [repo]} if repo else {}),
        **({"license": model.license} if model.license else {}),
        "library_name": LIBRARIES[model.kind],
        "pipeline_tag": "text-generation",
        "tags": ["titanrun", *list_method_tags(model.recipe)],
        "model_name": model.repository.partition("/")[2],
    }


def list_method_tags(recipe: Recipe) -> list[str]:
    """Return the words for how a run trains: sft, dpo ..., lora."""
    loss = recipe.loss.name
    method = [loss] if loss in METHODS else []
    if recipe.rl is not None:
        method = ["rl"]
    elif not method and "chat" in recipe.training.dataset.name:
        method = ["sft"]
    return [*method, *(["lora"] if find_lora_converter(recipe) is not None else [])]


def format_origin(model: PushedModel) -> str:
    """Return a sentence: what was trained from what."""
    recipe = model.recipe
    size = f"{recipe.model.name} {recipe.model.flavor or ''}".strip()
    base = model.base[0] if model.base else ""
    origin = f", trained from [{base}](https://huggingface.co/{base})," if base else " trained"
    adapters = " These are adapters for peft." if model.kind == "adapter" else ""
    return f"A {size} model{origin} with titanrun.{adapters}"


def format_use(model: PushedModel) -> str:
    """Return the lines that load the model, and how conversations are written."""
    lines = {
        "hf": [
            "from transformers import pipeline",
            f'chat = pipeline("text-generation", "{model.repository}")',
            'chat([{"role": "user", "content": "Hello"}])'
            if model.has_template
            else 'chat("Once upon a time")',
        ],
        "adapter": [
            "from peft import AutoPeftModelForCausalLM",
            f'model = AutoPeftModelForCausalLM.from_pretrained("{model.repository}")',
        ],
        "gguf": [f"llama-cli -hf {model.repository}"],
    }[model.kind]
    language = "bash" if model.kind == "gguf" else "python"
    stops = ", ".join(f"`{stop}`" for stop in model.stops)
    template = (
        f"The chat template that it was trained with is in the tokenizer; replies end with {stops}."
        if model.has_template
        else "It has no chat template."
    )
    return "\n".join([f"```{language}", *lines, "```", "", template])


def iter_training_facts(
    model: PushedModel, summary: RunSummary, start: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    """Yield what the table of the training says."""
    training, machine = model.recipe.training, start.get("machine") or {}
    step = read_checkpoint_step(model.checkpoint)
    metrics = read_step_metrics(model.run / METRICS, step)
    if parameters := start.get("parameters"):
        yield "parameters", f"{parameters['trainable']:,} of {parameters['total']:,} trained"
    yield "steps", f"{step:,}"
    yield "tokens", f"{metrics['tokens_seen']:,}" if "tokens_seen" in metrics else None
    yield "learning rate", getattr(model.recipe.optimizer, "lr", None)
    yield "global batch", f"{training.global_batch_size} sequences of {training.seq_len} tokens"
    yield "loss", round_number(metrics.get("loss"))
    yield "validation loss", round_number(metrics.get("validation/loss"))
    yield "validation accuracy", round_number(metrics.get("validation/accuracy"))
    yield "best validation loss", round_number(summary.validation)
    ranks = get_mapping(start, "decided").get("ranks", 1)
    yield "hardware", f"{ranks} x {machine['device_name']}" if "device_name" in machine else None
    yield "time", None if summary.seconds is None else f"{summary.seconds / 3600:.2f} hours"


def iter_provenance(model: PushedModel, start: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield digests and versions."""
    environment = start.get("environment") or {}
    yield "resolved recipe", compute_sha256(model.checkpoint / RESOLVED)
    yield "manifest of the checkpoint", compute_sha256(model.checkpoint / MANIFEST_FILE)
    models = {model.recipe.model.hf_assets_path, model.recipe.checkpoint.initial_load_path}
    for entry in start.get("inputs") or []:
        digest = f"xxh3_128:{entry['xxh3_128']}" if "xxh3_128" in entry else None
        kind = "model" if entry.get("path") in models else "data"
        yield f"{kind} `{Path(str(entry.get('path', '?'))).name}`", digest
    yield "base model", f"{model.base[0]} at {model.base[1]}" if model.base else None
    packages = environment.get("packages") or {}
    for name in ("titanrun", "titanrun-core", "torch", "transformers"):
        yield name, packages.get(name)
    git = environment.get("git") or {}
    if git:
        yield "git commit", f"{git['commit']}{', with changes' if git.get('dirty') else ''}"


def format_table(rows: Iterator[tuple[str, object]]) -> str:
    """Return a table of two columns, without the rows that have no value."""
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows if value)]
    )


def read_recipe_text(model: PushedModel) -> str:
    """Return the resolved recipe without secrets and home folders."""
    text = (model.checkpoint / RESOLVED).read_text(encoding="utf-8")
    return hide_home(redact_url_credentials(redact_tokens(text)))


def hide_home(text: str) -> str:
    """Return a text in which home folders are `~`."""
    home = re.escape(str(Path.home()))
    return re.sub(rf"{home}(?=/)|/(?:home|Users)/[^/\s\"']+(?=/)|/root(?=/)", "~", text)


def merge_cards(theirs: str | None, ours: str) -> str | None:
    """Return the card for a repository: what stands between the marks of an earlier card is new.

    Return None if the repository has a card of another origin, which stays.
    """
    if theirs is None:
        return ours
    if CARD_BEGIN not in theirs or CARD_END not in theirs:
        return None
    before, _, rest = theirs.partition(CARD_BEGIN)
    body = ours.partition(CARD_BEGIN)[2].partition(CARD_END)[0]
    return before + CARD_BEGIN + body + CARD_END + rest.partition(CARD_END)[2]


def compute_sha256(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


def read_checkpoint_step(checkpoint: Path) -> int:
    """Return the step of a checkpoint."""
    return int(read_json_or_empty(checkpoint / MANIFEST_FILE).get("step", 0))


def read_step_metrics(file: Path, step: int) -> dict[str, Any]:
    """Return the logged metrics of the last step up to `step`, empty if there are none."""
    found: dict[str, Any] = {}
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            values = parse_json(line)
        except ValueError:
            continue
        at = values.get("step") if isinstance(values, dict) else None
        if isinstance(at, int) and at <= step:
            found = {**found, **values}
    return found


def round_number(value: object) -> str | None:
    """Return a number with four decimals, None for anything else."""
    return format_decimals(value, 4) if isinstance(value, int | float) else None
