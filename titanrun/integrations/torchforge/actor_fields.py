"""Documented fields of TorchForge's actors: torchtitan's config sections with defaults."""

import dataclasses
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from titanrun.config.problems import Origin, Problem, SourceText
from titanrun.config.suggest import find_closest
from titanrun.recipe.migrate.torchtitan_table import TORCHTITAN_KEYS

ACTOR_SECTIONS = (
    *("job", "model", "optimizer", "lr_scheduler", "training", "parallelism", "checkpoint"),
    *("activation_checkpoint", "compile", "quantize", "comm", "memory_estimation"),
)
# differences of the actors' documentation from torchtitan 0.2.2
DOCUMENTED_DEFAULTS: dict[str, Any] = {
    "job.dump_folder": "./torchtitan/outputs",
    "training.seed": None,
    "training.deterministic": False,
    "training.debug_moe_force_load_balance": False,
    "parallelism.enable_compiled_autograd": False,
}
UNDOCUMENTED_FIELDS = ("job.save_config_file",)
FIELD_DEFAULTS: dict[str, Any] = {
    **{
        key.path: key.default
        for key in TORCHTITAN_KEYS
        if key.path.partition(".")[0] in ACTOR_SECTIONS and key.path not in UNDOCUMENTED_FIELDS
    },
    **DOCUMENTED_DEFAULTS,
}
MEMORY_ESTIMATION_REASON = (
    "only torchtitan's memory estimation script reads it, use `titanrun plan` instead"
)
NO_DATA_REASON = "the actor reads no data: its loop passes batches"
# fields without a meaning for an actor with these sections and calls
UNSUPPORTED_FIELDS = {
    "training.dataset": NO_DATA_REASON,
    "training.dataset_path": NO_DATA_REASON,
    "checkpoint.enable_ft_dataloader_checkpoints": (
        "only torchft reads it, which no section of the actor can enable"
    ),
    "memory_estimation.enable": MEMORY_ESTIMATION_REASON,
    "memory_estimation.disable_fake_mode": MEMORY_ESTIMATION_REASON,
}


def build_override_origin(path: str, value: object) -> Origin:
    """Build the origin of a value passed by the caller."""
    text = f"{path}={value!r}"
    return Origin(SourceText(text, text, "override"), 1, 1, len(text) + 1)


def parse_section(name: str, section: object) -> tuple[dict[str, Any], list[Problem]]:
    """Return the fields of one section by path, and the problems with them.

    A section is a mapping, or an object of torchtitan's class for it, of which only values other
    than the defaults count.
    """
    if dataclasses.is_dataclass(section) and not isinstance(section, type):
        section = dataclasses.asdict(section)
    elif isinstance(section, SimpleNamespace):
        section = section_to_dict(section)
    if not isinstance(section, Mapping):
        message = f"{name} is {section!r}, not a mapping of its fields"
        return {}, [
            Problem(
                "wrong-type",
                message,
                (name,),
                build_override_origin(name, section),
                hint=f"write {name}={{...}}",
            )
        ]
    values, problems = {}, []
    for path, value in iter_section_fields(name, section):
        if path in FIELD_DEFAULTS:
            values[path] = value
        else:
            problems.append(build_unknown_field_problem(path, value))
    return values, problems


def iter_section_fields(path: str, value: object) -> Iterator[tuple[str, Any]]:
    """Yield all fields below a path, except for tables of further fields."""
    if path in FIELD_DEFAULTS or not isinstance(value, Mapping):
        yield path, list(value) if isinstance(value, tuple) else value
        return
    for key, inside in value.items():
        yield from iter_section_fields(f"{path}.{key}", inside)


def build_unknown_field_problem(path: str, value: object) -> Problem:
    """Build the problem of a field that its section does not have."""
    meant = find_closest(path, FIELD_DEFAULTS)
    steps = tuple(path.split("."))
    message = f"{steps[0]} has no field {'.'.join(steps[1:])}"
    hint = f"did you mean {meant}?" if meant else None
    return Problem(
        "unknown-key",
        message,
        steps,
        build_override_origin(path, value),
        hint=hint,
        suggestion=meant and meant.rpartition(".")[2],
    )


def build_section(name: str, values: Mapping[str, Any]) -> SimpleNamespace:
    """Build a section object with all fields: those in `values` by path, else defaults."""
    section = SimpleNamespace()
    for path, default in FIELD_DEFAULTS.items():
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


def section_to_dict(section: SimpleNamespace) -> dict[str, Any]:
    """Convert a section object to a dict, including nested sections."""
    return {
        key: section_to_dict(value) if isinstance(value, SimpleNamespace) else value
        for key, value in vars(section).items()
    }
