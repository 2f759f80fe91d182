"""Rules about checkpoints, and what a run starts from."""

from collections.abc import Iterator, Mapping

from titanrun.config.base import dump
from titanrun.config.problems import DataPath
from titanrun.config.suggest import closest
from titanrun.config.tree import path_text
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule


@rule("hf-load-needs-folder")
def hf_load_needs_folder(run: Recipe) -> Iterator[Finding]:
    """initial_load_in_hf reads a Hugging Face folder: name it in checkpoint.initial_load_path or model.hf_assets_path."""
    if run.checkpoint.initial_load_in_hf and run.checkpoint.initial_load_path is None and run.model.hf_assets_path is None:
        paths = (("checkpoint", "initial_load_in_hf"), ("checkpoint", "initial_load_path"), ("model", "hf_assets_path"))
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


@rule("export-dtype-needs-export")
def export_dtype_needs_export(run: Recipe) -> Iterator[Finding]:
    """export_dtype is the type of the folder that last_save_in_hf writes."""
    if run.checkpoint.export_dtype != "float32" and not run.checkpoint.last_save_in_hf:
        paths = (("checkpoint", "export_dtype"), ("checkpoint", "last_save_in_hf"))
        help = "set checkpoint.last_save_in_hf: true"
        yield Finding("export_dtype has no effect without last_save_in_hf", paths, help=help, code="no-effect")


@rule("allowed-changes-are-fields")
def allowed_changes_are_fields(run: Recipe) -> Iterator[Finding]:
    """checkpoint.allow_change names fields or sections of the recipe, such as optimizer.lr; correct the one that is neither."""
    known = known_paths(dump(run))
    for index, name in enumerate(run.checkpoint.allow_change):
        if name not in known:
            meant = closest(name, known)
            help = f"did you mean '{meant}'?" if meant else "name a field or a section, as optimizer.lr"
            yield Finding(f"'{name}' is no field of this recipe", (("checkpoint", "allow_change", index),), help=help)


def known_paths(data: object, path: DataPath = ()) -> set[str]:
    """The path of everything in a recipe, lists as a whole."""
    if not isinstance(data, Mapping):
        return {path_text(path)}
    below = {found for key, value in data.items() for found in known_paths(value, (*path, str(key)))}
    return below | ({path_text(path)} if path else set())
