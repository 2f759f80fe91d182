"""The rank and modules of saved adapters, which no run changes, and the way to others."""

import shlex
from pathlib import Path

from titanrun.components.converters.config import AdapterConfig
from titanrun.components.converters.spec.module_names import collapse_layer_numbers
from titanrun.config.base import dump_value
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import find_origin, format_path
from titanrun.models.shared.decoder_config import DecoderConfig
from titanrun.recipe.recipe import find_lora_converter
from titanrun.recipe.resolving.resolve import Resolved, load_resolved
from titanrun.recipe.rundir.run_files import RESOLVED

RANK_RULE = "rank-stays"
MODULES_RULE = "adapted-modules-stay"
EMBEDDINGS = "tok_embeddings"


def check_same_adapters(run_dir: Path, resolved: Resolved) -> None:
    """Raise a problem if the run in a folder has adapters of another rank, or at other modules."""
    saved = find_lora_converter(load_resolved(run_dir / RESOLVED))
    now = find_lora_converter(resolved.run)
    if saved is None or now is None:
        return
    section: DataPath = ("converters", resolved.run.converters.index(now))
    if saved.rank != now.rank:
        message = (
            f"rank is {now.rank}, but '{run_dir}' has adapters of rank {saved.rank}, and the rank "
            "of saved adapters cannot change"
        )
        names = (RANK_RULE, "rank", f"-rank-{now.rank}")
        raise build_adapter_error(run_dir, resolved, section, saved, now, message, names)
    before, after = (list_adapted(converter, resolved.run.model) for converter in (saved, now))
    if before == after:
        return
    added, gone = (
        format_word_list(collapse_layer_numbers(sorted(names)), conjunction="and", max_words=3)
        for names in (after - before, before - after)
    )
    changes = [f"{word} {names}" for word, names in (("adds", added), ("lacks", gone)) if names]
    message = (
        f"target_modules {' and '.join(changes)}, but the modules of the adapters in '{run_dir}' "
        "cannot change"
    )
    names = (MODULES_RULE, "target_modules", "-other-modules")
    raise build_adapter_error(run_dir, resolved, section, saved, now, message, names)


def list_adapted(converter: AdapterConfig, model: object) -> set[str]:
    """Return the matrices of a model that a converter adapts; none where they are not known."""
    if not isinstance(model, DecoderConfig):
        return set()
    matrices = {
        name.removesuffix(".weight")
        for name, shape in dict(model.parameter_shapes()).items()
        if len(shape) > 1 and not name.startswith(EMBEDDINGS)
    }
    return {name for name in matrices if converter.is_target(name)}


def build_adapter_error(
    run_dir: Path,
    resolved: Resolved,
    section: DataPath,
    saved: AdapterConfig,
    now: AdapterConfig,
    message: str,
    names: tuple[str, str, str],
) -> ProblemsFound:
    """Build the problem of another setting of adapters.

    `names` are the rule, the field, and the end of the name of a new run with the other setting.
    """
    rule, field, suffix = names
    path = (*section, field)
    before, after = (dump_value(getattr(converter, field)) for converter in (saved, now))
    merging = suggest_merge(
        str(run_dir), path, after, recipe=str(run_dir / RESOLVED), new_run=f"{run_dir}{suffix}"
    )
    problem = Problem(
        "conflict",
        message,
        path,
        find_origin(resolved.tree, path),
        rule=rule,
        hint=f"write {field}: {to_flow_yaml(before)}, or {merging}",
    )
    return ProblemsFound([problem])


def suggest_merge(
    source: str,
    path: DataPath,
    value: object,
    *,
    recipe: str = "RECIPE",
    new_run: str | None = None,
) -> str:
    """Return the commands that merge adapters and train other ones on the result.

    Args:
        source: the run or checkpoint of the adapters.
        path: the setting of adapters that differs, such as the rank.
        value: its other value.
        recipe: the recipe of the new run.
        new_run: the folder of the new run, None for that of the recipe.
    """
    merged = f"{Path(source).name}-merged"
    export = ["titanrun", "checkpoint", "export", source, merged, "--format", "hf", "--merge"]
    start = [f"model.hf_assets_path={merged}", "checkpoint.initial_load_path=null"]
    start += ["checkpoint.initial_load_in_hf=true", f"{format_path(path)}={to_flow_yaml(value)}"]
    start += [] if new_run is None else [f"dump_folder={new_run}"]
    train = ["titanrun", "train", recipe, *start]
    return f"merge them: {shlex.join(export)}, then {shlex.join(train)}"
