"""Migration rules of single keys: target, changes of meaning, or reason of refusal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

FILES_HAVE_NONE = "left out: files have neither splits nor subsets nor revisions"
ONE_HELD_OUT = (
    "several held-out datasets: write validation.enable: true, and the records of all under "
    "validation.dataset"
)
OTHER_RECORDS = "other records are held out: a hash of each record decides, not a random split"
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".txt", ".gz", ".zst")
NO_DORA_DROPOUT = "adapters with magnitudes (DoRA) have no dropout"
KeyOutcome = Literal["mapped", "changed", "manual", "unread", "refused"]
SourceValues = Mapping[str, Any]
"""Every key of the program's configuration with its value, written or default."""


@dataclass(frozen=True, slots=True)
class ConvertedValue:
    """Result of a conversion: values by target.

    `how` is set if the meaning changes, `refused` if there is no equivalent.
    """

    targets: Mapping[str, Any]
    how: str = ""
    refused: str = ""


def hold_out_dataset(converted: ConvertedValue, dataset: str) -> ConvertedValue:
    """Return the settings of a training dataset as those of held-out data.

    Args:
        converted: Settings of the dataset, and others, which the training data have already.
        dataset: Path of the training dataset in the recipe.
    """
    settings = {
        f"validation.dataset{target.removeprefix(dataset)}": value
        for target, value in converted.targets.items()
        if target.startswith(f"{dataset}.")
    }
    return replace(converted, targets={"validation.enable": True, **settings} if settings else {})


def is_hub_name(name: str) -> bool:
    """Return whether a name is OWNER/NAME of the Hugging Face Hub, and no file or folder here."""
    is_path = name.startswith((".", "/", "~")) or Path(name).suffix in DATA_SUFFIXES
    return name.count("/") == 1 and not is_path and not Path(name).exists()


@dataclass(frozen=True, slots=True)
class KeyCondition:
    """Condition under which the program reads a key: a value of another key, `path`.

    `example` is a value that meets it. The switch `implied_by`, if it is on, meets it too: with it
    the recipe has what `path` turns on.
    """

    path: str
    is_met: Callable[[Any], bool]
    example: Any
    description: str
    implied_by: str = ""


@dataclass(frozen=True, slots=True)
class SourceKey:
    """One field of the program's configuration.

    `target` is a path of the recipe, in which `converters[float8_linear]` is the component of that
    name in a list; None if the key has no target. `how` states what changes in meaning, or why the
    key is refused. `default` is the program's.
    """

    path: str
    default: Any
    target: str | None
    outcome: KeyOutcome = "mapped"
    how: str = ""
    convert: Callable[["SourceKey", Any, SourceValues], ConvertedValue] | None = None
    needs: tuple[KeyCondition, ...] = ()
    extension: str = ""

    def convert_value(self, value: Any, values: SourceValues) -> ConvertedValue:
        """Convert a value of this key."""
        if self.convert is not None:
            return self.convert(self, value, values)
        return ConvertedValue({self.target: value} if self.target else {})

    def format_unmet_condition(self, values: SourceValues) -> str:
        """Return the condition under which the program reads this key, if `values` do not meet it.

        Return an empty text if they do.
        """
        for need in self.needs:
            if not need.is_met(values.get(need.path)) and not values.get(need.implied_by):
                return need.description
        return ""


def keep_key(path: str, default: Any, **options: Any) -> SourceKey:
    """Return a key with the same path, and the same meaning unless `how` is set."""
    return move_key(path, default, path, **options)


def move_key(path: str, default: Any, target: str, *, how: str = "", **options: Any) -> SourceKey:
    """Return a key with another path."""
    return SourceKey(path, default, target, "changed" if how else "mapped", how, **options)


def ignore_key(path: str, default: Any, why: str, **options: Any) -> SourceKey:
    """Return a key that has no use in titanrun."""
    return SourceKey(path, default, None, "unread", f"left out: {why}", **options)


def leave_key(path: str, default: Any, what: str, **options: Any) -> SourceKey:
    """Return a key whose setting, `what`, only the user can decide."""
    return SourceKey(path, default, None, "manual", what, **options)


def reject_key(path: str, default: Any, why: str, **options: Any) -> SourceKey:
    """Return a key that titanrun does not support."""
    return SourceKey(path, default, None, "refused", why, **options)


def reject_unless_default(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Drop the default, which nobody requested; refuse another value."""
    return (
        ConvertedValue({}, how=f"left out: {key.how}")
        if value == key.default
        else ConvertedValue({}, refused=key.how)
    )


def when_enabled(path: str, *, implied_by: str = "") -> KeyCondition:
    """Return the condition that the switch `path` is on, or the switch that implies it."""
    return KeyCondition(path, bool, True, f"with {path} = true", implied_by)


def when_above_zero(path: str) -> KeyCondition:
    """Return the condition that the number `path` is above 0."""
    return KeyCondition(
        path, lambda value: isinstance(value, int) and value > 0, 1, f"with {path} above 0"
    )


def when_above_one(path: str) -> KeyCondition:
    """Return the condition that the degree `path` is above 1."""
    return KeyCondition(
        path, lambda value: isinstance(value, int) and value > 1, 2, f"with {path} above 1"
    )


def when_any(path: str, *options: str) -> KeyCondition:
    """Return the condition that `path` is one of a few words."""
    return KeyCondition(
        path,
        lambda value: value in options,
        options[0],
        f"with {path} = {' or '.join(map(repr, options))}",
    )


def when_empty(path: str) -> KeyCondition:
    """Return the condition that the list `path` is empty."""
    return KeyCondition(path, lambda value: not value, [], f"with {path} = []")


def when_component(path: str, name: str, *older: str) -> KeyCondition:
    """Return the condition that the list `path` names a component, in any spelling."""
    names = (name, *older)
    return KeyCondition(
        path,
        lambda value: isinstance(value, list) and any(word in value for word in names),
        [name],
        f"with '{name}' in {path}",
    )
