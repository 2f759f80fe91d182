"""Rules about the shapes of the weights that a run starts from."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.converters.config import AdapterConfig
from titanrun.config.base import change_fields, dump_config
from titanrun.config.data_diff import diff_data
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import format_path
from titanrun.models.shared.decoder_config import DecoderConfig
from titanrun.models.shared.huggingface_config import is_huggingface_folder, load_config_json
from titanrun.models.shared.spec.flavors import (
    describe_other_family,
    find_other_family,
    resolve_model_sizes,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.converters import iter_converters
from titanrun.recipe.rules.initial_adapters import INITIAL_LOAD
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rundir.checkpoint_lookup import needs_initial_weights
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.saved_rank import suggest_merge
from titanrun.recipe.rundir.saved_recipe import get_component_name, read_plain_recipe
from titanrun.recipe.rundir.saved_shapes import SavedShapes, read_saved_shapes

OUTPUT_HEAD = "output.weight"
LAYER = re.compile(r"layers\.([0-9]+)\.")
SizeChange: TypeAlias = tuple[DataPath, str, str]


@rule("initial-adapters-fit", level="environment")
def initial_adapters_fit(run: Recipe) -> Iterator[RuleViolation]:
    """Require the rank of the adapters in the checkpoint that a run starts from.

    A run goes on with these adapters. Write their rank, or merge them into the weights: titanrun
    checkpoint export RUN FOLDER --format hf --merge.
    """
    saved = read_initial_shapes(run)
    rank = None if saved is None else saved.find_adapter_rank()
    named = str(run.checkpoint.initial_load_path)
    for path, converter in iter_converters(run):
        if rank is not None and isinstance(converter, AdapterConfig) and converter.rank != rank:
            merging = suggest_merge(named, (*path, "rank"), converter.rank)
            yield RuleViolation(
                f"rank is {converter.rank}, but the adapters in '{named}' have rank {rank}",
                ((*path, "rank"), INITIAL_LOAD),
                hint=f"write rank: {rank}, or {merging}",
            )


@rule("initial-weights-fit", level="environment")
def initial_weights_fit(run: Recipe) -> Iterator[RuleViolation]:
    """Require the shapes of the model for the weights in the checkpoint that a run starts from.

    Write the sizes that the model section of resolved.yaml in that checkpoint has.
    """
    saved = read_initial_shapes(run)
    if saved is None or not isinstance(run.model, DecoderConfig) or run.replace:
        return
    difference = find_weight_difference(run, run.model, saved)
    if difference is None:
        return
    sizes = find_size_changes(run.model, saved.checkpoint / RESOLVED)
    named = run.checkpoint.initial_load_path
    found = [f"{format_path(path)} {there} (here {here})" for path, there, here in sizes]
    told = format_word_list(found, conjunction="and", max_words=4) if found else difference
    yield RuleViolation(
        f"the model in '{named}' has other weights than this run: {told}",
        (*(path for path, _, _ in sizes), INITIAL_LOAD),
        hint=f"write the model section of {saved.checkpoint / RESOLVED}, or start from weights of "
        "this model",
    )


@rule("initial-folder-fits", level="environment")
def initial_folder_fits(run: Recipe) -> Iterator[RuleViolation]:
    """Require the family and the sizes in config.json of the folder that a run starts from.

    Set model.name to the family and model.flavor to auto, which takes the sizes from config.json,
    or name the folder of this model.
    """
    model, named = run.model, find_initial_folder(run)
    if named is None or run.replace or not needs_initial_weights(run):
        return
    try:
        config_json = load_config_json(named)
    except ProblemsFound:
        return  # reported when the weights are loaded
    read = "model.flavor: auto"
    read += "" if named == model.hf_assets_path else f" and model.hf_assets_path: {named}"
    other = find_other_family(model, config_json)
    if other is not None:
        yield RuleViolation(
            describe_other_family(model, named, config_json),
            (("model", "name"), INITIAL_LOAD),
            hint=f"write model.name: {other} with {read}",
        )
    there = read_folder_model(model, named) if isinstance(model, DecoderConfig) else None
    if there is None or not isinstance(model, DecoderConfig):
        return
    difference = find_model_difference(there, model)
    if difference is None:
        return
    sizes = list_size_changes(dump_config(there), model)
    told = [f"{format_path(path)} {in_file} (here {here})" for path, in_file, here in sizes]
    yield RuleViolation(
        f"the model in '{named}' has other sizes than this run: "
        f"{format_word_list(told or [difference], conjunction='and', max_words=4)}",
        (("model", "flavor"), *(path for path, _, _ in sizes), INITIAL_LOAD),
        hint=f"set {read}, which takes the sizes from config.json, without sizes of your own",
    )


def find_initial_folder(run: Recipe) -> str | None:
    """Return the Hugging Face folder here whose weights a run loads at its start, None if none."""
    named = run.checkpoint.initial_load_path or run.model.hf_assets_path
    if not run.checkpoint.initial_load_in_hf or named is None or is_storage_path(named):
        return None
    return named if is_huggingface_folder(Path(named)) else None


def read_folder_model(model: DecoderConfig, named: str) -> DecoderConfig | None:
    """Return the model of this family that a folder's config.json describes, None if none."""
    family = type(model)
    try:
        if load_config_json(named).get("model_type") not in family.huggingface_types:
            return None
        read = change_fields(
            family.model_validate({"name": model.name, "flavor": "auto"}),
            hf_assets_path=named,
            head=model.head,
        )
        return family.model_validate(resolve_model_sizes(read))
    except (ProblemsFound, ValidationError):
        return None  # reported when the weights are loaded


def find_model_difference(there: DecoderConfig, here: DecoderConfig) -> str | None:
    """Return the first weight that has another shape in another model, or that only one has."""
    found, wanted = dict(there.parameter_shapes()), dict(here.parameter_shapes())
    for name in {**wanted, **found}:
        if found.get(name) != wanted.get(name):
            shapes = [list(model[name]) if name in model else "absent" for model in (found, wanted)]
            return f"{name} is {shapes[0]} there, {shapes[1]} here"
    return None


def read_initial_shapes(run: Recipe) -> SavedShapes | None:
    """Return the shapes in the checkpoint that a run loads at its start, None if it loads none."""
    section = run.checkpoint
    named = section.initial_load_path
    if named is None or section.initial_load_in_hf or is_storage_path(named):
        return None
    if not Path(named).is_dir() or not needs_initial_weights(run):
        return None
    inside = {section.folder, CheckpointConfig().folder}
    return read_saved_shapes(
        Path(named), sorted(name for name in inside if not is_storage_path(name))
    )


def find_weight_difference(run: Recipe, model: DecoderConfig, saved: SavedShapes) -> str | None:
    """Return a weight that has another shape in a checkpoint, or that only one side has."""
    wanted = dict(model.parameter_shapes())
    if model.output_dim() == 1:
        wanted.pop(OUTPUT_HEAD, None)  # a head of scores is new where the checkpoint has another
    for name, shape in wanted.items() if saved.base else ():
        found = saved.base.get(name)
        if found is None:
            return f"it lacks {name}"
        if found != shape:
            return f"{name} is {list(found)} there, {list(shape)} here"
    if run.checkpoint.allow_extra:
        return None
    further = (match for match in map(LAYER.match, saved.base) if match)
    return next(
        (f"it has {match[0]}*" for match in further if int(match[1]) >= model.layer_count()), None
    )


def find_size_changes(model: DecoderConfig, resolved: Path) -> list[SizeChange]:
    """Return the sizes that differ from a checkpoint's recipe, with its value and the model's.

    Sizes that follow from others are left out. Of another family, the name is returned alone.
    """
    source = read_plain_recipe(resolved).get("model")
    name = get_component_name(source)
    if name not in ("", model.name):
        return [(("model", "name"), name, model.name)]
    return list_size_changes(source, model)


def list_size_changes(source: object, model: DecoderConfig) -> list[SizeChange]:
    """Return the sizes in the data of a model that differ from those of another one."""
    return [
        (("model", *change.path), str(change.left).lower(), str(change.right).lower())
        for change in diff_data(source, dump_config(model))
        if isinstance(change.left, int)
        and isinstance(change.right, int)
        and change.path not in {*model.derived_fields, ("max_seq_len",)}
        and change.path[0] != "rope"
    ]
