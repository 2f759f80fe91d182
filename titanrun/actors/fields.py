"""The documented fields of TorchForge's actors: sections of torchtitan's configuration with their defaults."""

import dataclasses
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from titanrun.config.problems import Origin, Problem, SourceText
from titanrun.config.suggest import closest
from titanrun.recipe.migrate.table import CORE

SECTIONS = (
    *("job", "model", "optimizer", "lr_scheduler", "training", "parallelism", "checkpoint"),
    *("activation_checkpoint", "compile", "quantize", "comm", "memory_estimation"),
)
# where the page of the actors says otherwise than torchtitan 0.2.2
ON_THE_PAGE: dict[str, Any] = {
    "job.dump_folder": "./torchtitan/outputs",
    "training.seed": None,
    "training.deterministic": False,
    "training.debug_moe_force_load_balance": False,
    "parallelism.enable_compiled_autograd": False,
}
NOT_ON_THE_PAGE = ("job.save_config_file",)
FIELDS: dict[str, Any] = {
    **{
        key.path: key.default
        for key in CORE
        if key.path.partition(".")[0] in SECTIONS and key.path not in NOT_ON_THE_PAGE
    },
    **ON_THE_PAGE,
}
ESTIMATION = "only torchtitan's memory estimation script reads it, no actor does; titanrun plan counts the memory of a recipe"
NO_DATA = "the actor reads no data: its loop gives it the batches"
# what means nothing to an actor with these sections and calls, whoever builds it
REFUSED = {
    "training.dataset": NO_DATA,
    "training.dataset_path": NO_DATA,
    "checkpoint.enable_ft_dataloader_checkpoints": "torchft alone reads it, and the actor has no section that turns torchft on",
    "memory_estimation.enable": ESTIMATION,
    "memory_estimation.disable_fake_mode": ESTIMATION,
}


def place_of(path: str, value: object) -> Origin:
    """Where a value stands that a caller gave."""
    text = f"{path}={value!r}"
    return Origin(SourceText(text, text, "override"), 1, 1, len(text) + 1)


def given_fields(name: str, section: object) -> tuple[dict[str, Any], list[Problem]]:
    """The fields that a caller gives of one section, by path, and what is wrong with them.

    A section is a mapping, or an object of torchtitan's own class for it, of which only what is no default counts.
    """
    if dataclasses.is_dataclass(section) and not isinstance(section, type):
        section = dataclasses.asdict(section)
    elif isinstance(section, SimpleNamespace):
        section = as_mapping(section)
    if not isinstance(section, Mapping):
        message = f"{name} is {section!r}, which is no mapping of its fields"
        return {}, [
            Problem(
                "wrong-type",
                message,
                (name,),
                place_of(name, section),
                help=f"write {name}={{...}}",
            )
        ]
    values, problems = {}, []
    for path, value in leaves(name, section):
        if path in FIELDS:
            values[path] = value
        else:
            problems.append(unknown(path, value))
    return values, problems


def leaves(path: str, value: object) -> Iterator[tuple[str, Any]]:
    """Everything below a path that is no table of further fields."""
    if path in FIELDS or not isinstance(value, Mapping):
        yield path, list(value) if isinstance(value, tuple) else value
        return
    for key, inside in value.items():
        yield from leaves(f"{path}.{key}", inside)


def unknown(path: str, value: object) -> Problem:
    """The problem of a field that no section has."""
    meant = closest(path, FIELDS)
    steps = tuple(path.split("."))
    message = f"{steps[0]} has no field {'.'.join(steps[1:])}"
    help = f"did you mean {meant}?" if meant else None
    return Problem(
        "unknown-key",
        message,
        steps,
        place_of(path, value),
        help=help,
        suggestion=meant and meant.rpartition(".")[2],
    )


def section_of(name: str, values: Mapping[str, Any]) -> SimpleNamespace:
    """A section as an object with all of its fields: those in `values` by path, the rest by default."""
    section = SimpleNamespace()
    for path, default in FIELDS.items():
        first, *inside, last = path.split(".")
        if first != name:
            continue
        holder = section
        for step in inside:
            if not hasattr(holder, step):
                setattr(holder, step, SimpleNamespace())
            holder = getattr(holder, step)
        value = values.get(path, default)
        setattr(holder, last, list(value) if isinstance(value, list) else value)
    return section


def as_mapping(section: SimpleNamespace) -> dict[str, Any]:
    """A section's fields, and those of sections in it."""
    return {
        key: as_mapping(value) if isinstance(value, SimpleNamespace) else value
        for key, value in vars(section).items()
    }
