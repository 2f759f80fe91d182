"""Rules about checkpoints and initial weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from titanrun.components.checkpoints.spec.hf_quantization import check_hf_quantization
from titanrun.components.checkpoints.spec.storage_path import (
    STORE_PACKAGES,
    find_missing_extra,
    is_known_store,
    is_storage_path,
    parse_storage_path,
)
from titanrun.config.base import dump_config
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.tree import format_path
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.rules.parallel_dims import find_ranks_setting
from titanrun.recipe.rules.registry import RuleViolation, rank_rule, rule


@rule("hf-load-needs-folder")
def hf_load_needs_folder(run: Recipe) -> Iterator[RuleViolation]:
    """Require a folder for initial_load_in_hf.

    It reads a Hugging Face folder: set checkpoint.initial_load_path or model.hf_assets_path.
    """
    if (
        run.checkpoint.initial_load_in_hf
        and run.checkpoint.initial_load_path is None
        and run.model.hf_assets_path is None
    ):
        paths = (
            ("checkpoint", "initial_load_in_hf"),
            ("checkpoint", "initial_load_path"),
            ("model", "hf_assets_path"),
        )
        hint = "set checkpoint.initial_load_path or model.hf_assets_path"
        yield RuleViolation("initial_load_in_hf needs a folder to load from", paths, hint=hint)


@rule("save-needs-checkpoints")
def save_needs_checkpoints(run: Recipe) -> Iterator[RuleViolation]:
    """Require checkpoint.enable for settings of the last checkpoint.

    With checkpoint.enable false nothing is saved, not even at the end.
    """
    if run.checkpoint.enable:
        return
    for name in ("last_save_in_hf", "last_save_model_only"):
        if getattr(run.checkpoint, name):
            yield RuleViolation(
                f"{name} has no effect: checkpoint.enable is false",
                (("checkpoint", name), ("checkpoint", "enable")),
                hint="set checkpoint.enable: true",
                code="no-effect",
            )


@rule("export-fits-transformers")
def export_fits_transformers(run: Recipe) -> Iterator[RuleViolation]:
    """Require a model that transformers can load for last_save_in_hf.

    last_save_in_hf writes weights for transformers: a model whose computation transformers does not
    implement cannot be exported.
    """
    if run.checkpoint.last_save_in_hf:
        for problem in (*run.model.export_problems(), *find_export_replacement_problems(run)):
            yield RuleViolation(
                problem.message,
                (problem.path, ("checkpoint", "last_save_in_hf")),
                hint=problem.hint,
            )


@rule("export-dtype-needs-export")
def export_dtype_needs_export(run: Recipe) -> Iterator[RuleViolation]:
    """Require last_save_in_hf or last_save_model_only for export_dtype.

    export_dtype is the dtype of the folder that last_save_in_hf writes, and of a last checkpoint
    with last_save_model_only.
    """
    section = run.checkpoint
    if (
        section.export_dtype != "float32"
        and not section.last_save_in_hf
        and not section.last_save_model_only
    ):
        paths = (("checkpoint", "export_dtype"), ("checkpoint", "last_save_in_hf"))
        hint = "set checkpoint.last_save_in_hf: true"
        yield RuleViolation(
            "export_dtype has no effect without last_save_in_hf or last_save_model_only",
            paths,
            hint=hint,
            code="no-effect",
        )


@rule("adapters-only-needs-adapters")
def adapters_only_needs_adapters(run: Recipe) -> Iterator[RuleViolation]:
    """Require the converter lora or qlora for checkpoint.adapters_only.

    adapters_only omits frozen weights from checkpoints, and only lora and qlora freeze some. Add
    one of them, or remove adapters_only.
    """
    if run.checkpoint.adapters_only and find_lora_converter(run) is None:
        paths = (("checkpoint", "adapters_only"), ("converters",))
        message = "adapters_only needs adapters, but no converter adds them"
        yield RuleViolation(
            message, paths, hint="add the converter lora or qlora, or remove adapters_only"
        )


@rule("hf-load-takes-weights")
def hf_load_takes_weights(run: Recipe) -> Iterator[RuleViolation]:
    """Require initial_load_model_only with initial_load_in_hf.

    A Hugging Face folder holds weights and nothing else.
    """
    if run.checkpoint.initial_load_in_hf and not run.checkpoint.initial_load_model_only:
        paths = (("checkpoint", "initial_load_model_only"), ("checkpoint", "initial_load_in_hf"))
        yield RuleViolation(
            "initial_load_in_hf loads weights only, but initial_load_model_only is false",
            paths,
            hint="set checkpoint.initial_load_model_only: true",
        )


@rule("quantized-load-needs-folder")
def quantized_load_needs_folder(run: Recipe) -> Iterator[RuleViolation]:
    """Require initial_load_in_hf with initial_load_in_hf_quantized.

    Quantized weights are read from a Hugging Face folder only.
    """
    section = run.checkpoint
    if section.initial_load_in_hf_quantized and not section.initial_load_in_hf:
        paths = (
            ("checkpoint", "initial_load_in_hf_quantized"),
            ("checkpoint", "initial_load_in_hf"),
        )
        yield RuleViolation(
            "initial_load_in_hf_quantized needs initial_load_in_hf",
            paths,
            hint="set checkpoint.initial_load_in_hf: true",
        )


@rule("quantization-is-known", level="environment")
def quantization_is_known(run: Recipe) -> Iterator[RuleViolation]:
    """Require initial_load_in_hf_quantized to agree with the Hugging Face folder.

    config.json in the folder describes the quantization of its weights. The format must be one that
    can be dequantized: fp8 in blocks or mxfp4.
    """
    section = run.checkpoint
    named = section.initial_load_path or run.model.hf_assets_path
    if not section.initial_load_in_hf or named is None or is_storage_path(named):
        return
    if not Path(named).exists():
        return  # paths-exist reports this, where the weights are needed
    try:
        check_hf_quantization(
            parse_storage_path(named), is_quantized=section.initial_load_in_hf_quantized
        )
    except ProblemsFound as error:
        for problem in error.problems:
            yield RuleViolation(
                problem.message,
                (("checkpoint", "initial_load_in_hf_quantized"),),
                hint=problem.hint,
                code="file",
            )


@rule("optimizer-goes-with-schedule")
def optimizer_goes_with_schedule(run: Recipe) -> Iterator[RuleViolation]:
    """Require lr_scheduler next to optimizer in exclude_from_loading.

    If the optimizer is reset but the schedule is loaded, the run uses the wrong learning rate.
    """
    excluded = run.checkpoint.exclude_from_loading
    if "optimizer" in excluded and "lr_scheduler" not in excluded:
        message = "optimizer state is reset but lr_scheduler state is loaded"
        yield RuleViolation(
            message, (("checkpoint", "exclude_from_loading"),), hint="add lr_scheduler"
        )


@rank_rule("seed-checkpoint-on-one-rank")
def seed_checkpoint_on_one_rank(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require one process and enabled checkpoints for create_seed_checkpoint.

    A seed checkpoint holds the initial weights, drawn in one process, so that every parallel layout
    starts from the same weights. It needs one process, checkpoint.enable, and load_only off.
    """
    section, seed = run.checkpoint, ("checkpoint", "create_seed_checkpoint")
    if not section.create_seed_checkpoint:
        return
    if not section.enable or section.load_only:
        switch = "load_only" if section.enable else "enable"
        message = (
            f"a seed checkpoint cannot be saved: checkpoint.{switch} is "
            f"{'true' if section.enable else 'false'}"
        )
        hint = f"set checkpoint.{switch}: {'false' if section.enable else 'true'}"
        yield RuleViolation(message, (seed, ("checkpoint", switch)), hint=hint)
    if ranks is not None and ranks > 1:
        message = f"create_seed_checkpoint needs one process, but world_size is {ranks}"
        yield RuleViolation(
            message, (seed, *find_ranks_setting(run, ranks)), hint="set launch.nproc_per_node: 1"
        )


@rule("allowed-changes-are-fields")
def allowed_changes_are_fields(run: Recipe) -> Iterator[RuleViolation]:
    """Require checkpoint.allow_change to name fields or sections of the recipe.

    An example is optimizer.lr. Correct the entry that is neither.
    """
    known = collect_recipe_paths(dump_config(run))
    for index, name in enumerate(run.checkpoint.allow_change):
        if name not in known:
            closest = find_closest(name, known)
            hint = (
                f"did you mean '{closest}'?"
                if closest
                else "use a field or a section, such as optimizer.lr"
            )
            yield RuleViolation(
                f"'{name}' is not a field of this recipe",
                (("checkpoint", "allow_change", index),),
                hint=hint,
            )


def collect_recipe_paths(data: object, path: DataPath = ()) -> set[str]:
    """Return the paths of everything in a recipe, with each list as a whole."""
    if not isinstance(data, Mapping):
        return {format_path(path)}
    below = {
        found
        for key, value in data.items()
        for found in collect_recipe_paths(value, (*path, str(key)))
    }
    return below | ({format_path(path)} if path else set())


@rule("memory-ends-with-process")
def memory_ends_with_process(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about checkpoints in memory://.

    It is the memory of one process: its content is lost when the process ends, and no other rank
    can read it.
    """
    if run.checkpoint.enable and run.checkpoint.folder.startswith("memory:"):
        message = "checkpoints in memory:// are lost when the process ends"
        yield RuleViolation(
            message,
            (("checkpoint", "folder"),),
            hint="use a folder or a store",
            code="no-effect",
            severity="warning",
        )


@rule("stores-are-reached", level="environment")
def stores_are_reached(run: Recipe) -> Iterator[RuleViolation]:
    """Require the packages and protocols for object stores.

    A store address needs fsspec, or a package for its protocol. Credentials come from the
    environment.
    """
    for name in ("folder", "initial_load_path"):
        path, value = ("checkpoint", name), getattr(run.checkpoint, name)
        if value is None or not is_storage_path(value):
            continue
        extra = find_missing_extra(value)
        if extra is not None:
            message = f"'{value}' needs a package that is not installed"
            yield RuleViolation(
                message, (path,), hint=f'pip install "titanrun[{extra}]"', code="usage"
            )
        elif not is_known_store(value):
            known = format_word_list(sorted(STORE_PACKAGES))
            hint = f"use {known}, or install a plug-in of fsspec"
            yield RuleViolation(
                f"unknown storage protocol in '{value}'",
                (path,),
                hint=hint,
                code="unknown-name",
            )


def find_export_replacement_problems(run: Recipe) -> list[Problem]:
    """Return a problem for each replacement that changes what the model computes.

    The transformers model would compute something else with the same weights.
    """
    return [
        Problem(
            "conflict",
            f"transformers has no {entry.replacement.name} in place of {entry.match}: "
            "the exported model would compute different results",
            ("replace", index),
            hint="export as safetensors, or train without the replacement",
        )
        for index, entry in enumerate(run.replace or ())
        if not entry.replacement.is_equivalent
    ]
