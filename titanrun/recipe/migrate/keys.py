"""What a migration table says of one key of another program: where it goes, what changes on the way, or why it cannot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

TORCHFT = (
    "torchft is not supported: a group that dies takes its rows out of the batch, and here a step has the same rows at every start; "
    "launch.max_restarts starts workers that died again, from the last checkpoint"
)
Outcome = Literal["mapped", "changed", "unread", "refused"]
Values = Mapping[str, Any]
"""Every key of the program's configuration with its value, written or by default."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What a value becomes: values by target; `how` where it means something else then, `refused` where it means nothing."""

    targets: Mapping[str, Any]
    how: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """The program reads a key only while another one, `path`, is so; `such_as` is a value with which it is."""

    path: str
    holds: Callable[[Any], bool]
    such_as: Any
    words: str


@dataclass(frozen=True, slots=True)
class Key:
    """One leaf of the program's configuration.

    `target` is a path of the recipe, in which `converters[float8_linear]` is the component of that name in a list; None: the key has
    no place of its own. `how` says what changes in meaning, or why the key is refused. `default` is the program's.
    """

    path: str
    default: Any
    target: str | None
    outcome: Outcome = "mapped"
    how: str = ""
    convert: Callable[["Key", Any, Values], Converted] | None = None
    needs: tuple[Needs, ...] = ()
    extension: str = ""

    def converted(self, value: Any, values: Values) -> Converted:
        """What `value` becomes."""
        if self.convert is not None:
            return self.convert(self, value, values)
        return Converted({self.target: value} if self.target else {})

    def unread(self, values: Values) -> str:
        """With what alone the program reads this key, where these values are otherwise; empty where it does."""
        for need in self.needs:
            if not need.holds(values.get(need.path)):
                return need.words
        return ""


def same(path: str, default: Any, **options: Any) -> Key:
    """A key with the same path, and the same meaning unless `how` says otherwise."""
    return moved(path, default, path, **options)


def moved(path: str, default: Any, target: str, *, how: str = "", **options: Any) -> Key:
    """A key with another path."""
    return Key(path, default, target, "changed" if how else "mapped", how, **options)


def unread(path: str, default: Any, why: str, **options: Any) -> Key:
    """A key that a run of titanrun has no use for."""
    return Key(path, default, None, "unread", f"left out: {why}", **options)


def refused(path: str, default: Any, why: str, **options: Any) -> Key:
    """A key that titanrun has no place for."""
    return Key(path, default, None, "refused", why, **options)


def torchft(path: str, default: Any, **options: Any) -> Key:
    """A key of torchft's replica groups; its default, too, means nothing without them."""
    return refused(
        path,
        default,
        TORCHFT,
        needs=(on("fault_tolerance.enable"),),
        convert=refused_unless_default,
        **options,
    )


def refused_unless_default(key: Key, value: Any, _: Values) -> Converted:
    """The default is what nobody asked for."""
    return (
        Converted({}, how=f"left out: {key.how}")
        if value == key.default
        else Converted({}, refused=key.how)
    )


def on(path: str) -> Needs:
    """Read while the switch `path` is on."""
    return Needs(path, bool, True, f"with {path} = true")


def above_zero(path: str) -> Needs:
    """Read while the number `path` is above 0."""
    return Needs(
        path, lambda value: isinstance(value, int) and value > 0, 1, f"with {path} above 0"
    )


def above_one(path: str) -> Needs:
    """Read while the degree `path` is above 1."""
    return Needs(
        path, lambda value: isinstance(value, int) and value > 1, 2, f"with {path} above 1"
    )


def one_of(path: str, *options: str) -> Needs:
    """Read while `path` is one of a few words."""
    return Needs(
        path,
        lambda value: value in options,
        options[0],
        f"with {path} = {' or '.join(map(repr, options))}",
    )


def listed(path: str, name: str, *older: str) -> Needs:
    """Read while the list `path` names a component, in today's or an older spelling."""
    names = (name, *older)
    return Needs(
        path,
        lambda value: isinstance(value, list) and any(word in value for word in names),
        [name],
        f"with '{name}' in {path}",
    )
