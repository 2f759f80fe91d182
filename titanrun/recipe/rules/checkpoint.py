"""Rules about checkpoints, and what a run starts from."""

from collections.abc import Iterator, Mapping

from titanrun.components.checkpoints.addresses import (
    PACKAGES,
    is_address,
    is_known_store,
    missing_package,
    place,
)
from titanrun.components.checkpoints.quantization import agreed_quantization
from titanrun.config.base import dump
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.suggest import closest, listing
from titanrun.config.tree import path_text
from titanrun.recipe.adapters import lora_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.replaced import foreign_parts
from titanrun.recipe.rules.book import Finding, rank_rule, rule
from titanrun.recipe.rules.ranks import where_asked


@rule("hf-load-needs-folder")
def hf_load_needs_folder(run: Recipe) -> Iterator[Finding]:
    """initial_load_in_hf reads a Hugging Face folder: name it in checkpoint.initial_load_path or model.hf_assets_path."""
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
        help = "set checkpoint.initial_load_path or model.hf_assets_path"
        yield Finding("initial_load_in_hf has no folder to load from", paths, help=help)


@rule("save-needs-checkpoints")
def save_needs_checkpoints(run: Recipe) -> Iterator[Finding]:
    """With checkpoint.enable false nothing is saved, also not at the end."""
    if run.checkpoint.enable:
        return
    for name in ("last_save_in_hf", "last_save_model_only"):
        if getattr(run.checkpoint, name):
            yield Finding(
                f"{name} has no effect: checkpoint.enable is false",
                (("checkpoint", name), ("checkpoint", "enable")),
                help="set checkpoint.enable: true",
                code="no-effect",
            )


@rule("export-fits-transformers")
def export_fits_transformers(run: Recipe) -> Iterator[Finding]:
    """last_save_in_hf writes weights for transformers: a model whose mathematics transformers does not have cannot be written so."""
    if run.checkpoint.last_save_in_hf:
        for problem in (*run.model.export_problems(), *foreign_parts(run)):
            yield Finding(
                problem.message,
                (problem.path, ("checkpoint", "last_save_in_hf")),
                help=problem.help,
            )


@rule("export-dtype-needs-export")
def export_dtype_needs_export(run: Recipe) -> Iterator[Finding]:
    """export_dtype is the type of the folder that last_save_in_hf writes, and of a last checkpoint that last_save_model_only asks for."""
    section = run.checkpoint
    if (
        section.export_dtype != "float32"
        and not section.last_save_in_hf
        and not section.last_save_model_only
    ):
        paths = (("checkpoint", "export_dtype"), ("checkpoint", "last_save_in_hf"))
        help = "set checkpoint.last_save_in_hf: true"
        yield Finding(
            "export_dtype has no effect without last_save_in_hf or last_save_model_only",
            paths,
            help=help,
            code="no-effect",
        )


@rule("adapters-only-needs-adapters")
def adapters_only_needs_adapters(run: Recipe) -> Iterator[Finding]:
    """checkpoint.adapters_only leaves frozen weights out of checkpoints, and only the converters lora and qlora freeze some. Add one, or
    leave it out."""
    if run.checkpoint.adapters_only and lora_of(run) is None:
        paths = (("checkpoint", "adapters_only"), ("converters",))
        message = "adapters_only leaves frozen weights out of checkpoints, and nothing is frozen"
        yield Finding(
            message, paths, help="add the converter lora or qlora, or leave adapters_only out"
        )


@rule("best-needs-validation")
def best_needs_validation(run: Recipe) -> Iterator[Finding]:
    """The best checkpoint is that of the lowest validation loss: keep_best needs validation.enable."""
    if run.checkpoint.keep_best and not run.validation.enable:
        paths = (("checkpoint", "keep_best"), ("validation", "enable"))
        yield Finding(
            "without validation no checkpoint is the best",
            paths,
            help="set validation.enable: true",
            code="no-effect",
        )


@rule("hf-load-takes-weights")
def hf_load_takes_weights(run: Recipe) -> Iterator[Finding]:
    """A Hugging Face folder holds weights and nothing else: with initial_load_in_hf, initial_load_model_only must be true."""
    if run.checkpoint.initial_load_in_hf and not run.checkpoint.initial_load_model_only:
        paths = (("checkpoint", "initial_load_model_only"), ("checkpoint", "initial_load_in_hf"))
        yield Finding(
            "a Hugging Face folder holds weights only",
            paths,
            help="set checkpoint.initial_load_model_only: true",
        )


@rule("quantized-load-needs-folder")
def quantized_load_needs_folder(run: Recipe) -> Iterator[Finding]:
    """Quantised weights are read from a Hugging Face folder only: initial_load_in_hf_quantized needs initial_load_in_hf."""
    section = run.checkpoint
    if section.initial_load_in_hf_quantized and not section.initial_load_in_hf:
        paths = (
            ("checkpoint", "initial_load_in_hf_quantized"),
            ("checkpoint", "initial_load_in_hf"),
        )
        yield Finding(
            "quantised weights are read from a Hugging Face folder only",
            paths,
            help="set checkpoint.initial_load_in_hf: true",
        )


@rule("quantization-is-known", level="environment")
def quantization_is_known(run: Recipe) -> Iterator[Finding]:
    """config.json in a Hugging Face folder says how its weights are quantised: initial_load_in_hf_quantized must agree with it, and
    the format be one that can be expanded, fp8 in blocks or mxfp4."""
    section = run.checkpoint
    named = section.initial_load_path or run.model.hf_assets_path
    if not section.initial_load_in_hf or named is None or is_address(named):
        return
    try:
        agreed_quantization(place(named), is_quantized=section.initial_load_in_hf_quantized)
    except ProblemsFound as error:
        for problem in error.problems:
            yield Finding(
                problem.message,
                (("checkpoint", "initial_load_in_hf_quantized"),),
                help=problem.help,
                code="file",
            )


@rule("optimizer-goes-with-schedule")
def optimizer_goes_with_schedule(run: Recipe) -> Iterator[Finding]:
    """An optimizer that begins anew while its schedule goes on would step with the wrong learning rate: exclude_from_loading with
    optimizer must name lr_scheduler too."""
    excluded = run.checkpoint.exclude_from_loading
    if "optimizer" in excluded and "lr_scheduler" not in excluded:
        message = "the optimizer begins anew and its schedule does not"
        yield Finding(message, (("checkpoint", "exclude_from_loading"),), help="add lr_scheduler")


@rank_rule("seed-checkpoint-on-one-rank")
def seed_checkpoint_on_one_rank(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """A seed checkpoint holds the first weights, drawn in one process, so that every layout starts from the same: it needs one
    process, checkpoint.enable, and must be saved."""
    section, seed = run.checkpoint, ("checkpoint", "create_seed_checkpoint")
    if not section.create_seed_checkpoint:
        return
    if not section.enable or section.load_only:
        switch = "load_only" if section.enable else "enable"
        message = f"a seed checkpoint cannot be saved: checkpoint.{switch} is {'true' if section.enable else 'false'}"
        help = f"set checkpoint.{switch}: {'false' if section.enable else 'true'}"
        yield Finding(message, (seed, ("checkpoint", switch)), help=help)
    if ranks is not None and ranks > 1:
        message = f"a seed checkpoint is made by one process, and there are {ranks}"
        yield Finding(
            message, (seed, *where_asked(run, ranks)), help="set launch.nproc_per_node: 1"
        )


@rule("allowed-changes-are-fields")
def allowed_changes_are_fields(run: Recipe) -> Iterator[Finding]:
    """checkpoint.allow_change names fields or sections of the recipe, such as optimizer.lr; correct the one that is neither."""
    known = known_paths(dump(run))
    for index, name in enumerate(run.checkpoint.allow_change):
        if name not in known:
            meant = closest(name, known)
            help = (
                f"did you mean '{meant}'?"
                if meant
                else "name a field or a section, as optimizer.lr"
            )
            yield Finding(
                f"'{name}' is no field of this recipe",
                (("checkpoint", "allow_change", index),),
                help=help,
            )


def known_paths(data: object, path: DataPath = ()) -> set[str]:
    """The path of everything in a recipe, lists as a whole."""
    if not isinstance(data, Mapping):
        return {path_text(path)}
    below = {
        found for key, value in data.items() for found in known_paths(value, (*path, str(key)))
    }
    return below | ({path_text(path)} if path else set())


@rule("memory-ends-with-process")
def memory_ends_with_process(run: Recipe) -> Iterator[Finding]:
    """memory:// is the memory of one process: what is saved there ends with it, and no other rank sees it."""
    if run.checkpoint.enable and run.checkpoint.folder.startswith("memory:"):
        message = "checkpoints in memory:// are gone when the process ends"
        yield Finding(
            message,
            (("checkpoint", "folder"),),
            help="name a folder or a store",
            code="no-effect",
            severity="warning",
        )


@rule("stores-are-reached", level="environment")
def stores_are_reached(run: Recipe) -> Iterator[Finding]:
    """An address needs what reads and writes its store: fsspec, or a package beside it. Who may use the store, the environment says."""
    for name in ("folder", "initial_load_path"):
        path, value = ("checkpoint", name), getattr(run.checkpoint, name)
        if value is None or not is_address(value):
            continue
        extra = missing_package(value)
        if extra is not None:
            message = f"'{value}' needs a package that is not installed"
            yield Finding(message, (path,), help=f'pip install "titanrun[{extra}]"', code="usage")
        elif not is_known_store(value):
            help = f"{listing(sorted(PACKAGES), last='and')} are known, and what plug-ins of fsspec add"
            yield Finding(
                f"nothing here reads the store of '{value}'",
                (path,),
                help=help,
                code="unknown-name",
            )
