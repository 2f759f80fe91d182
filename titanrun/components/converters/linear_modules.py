"""Selection of the linear modules that a converter rewrites, with reasons for the others."""

from collections.abc import Callable, Iterable, Iterator

from torch import nn

SkipRule = Callable[[str, nn.Linear], str | None]
"""Rule that returns why to skip a linear module, or None to convert it."""


def iter_linear_modules(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Return every linear module with its name, including already converted ones."""
    return (
        (name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)
    )


def select_linear_modules(
    model: nn.Module, *skip_rules: SkipRule
) -> tuple[list[str], dict[str, str]]:
    """Split the names of modules into those no rule skips, and the others with a reason.

    The reason is of the first matching rule.
    """
    taken, left = [], {}
    for name, module in iter_linear_modules(model):
        found = (rule(name, module) for rule in (is_already_converted, *skip_rules))
        reason = next((reason for reason in found if reason is not None), None)
        if reason is None:
            taken.append(name)
        else:
            left[name] = reason
    return taken, left


def is_already_converted(_: str, module: nn.Linear) -> str | None:
    """Skip converted modules: a module has one converter, the first in the list."""
    return None if type(module) is nn.Linear else f"it is a {type(module).__name__} already"


def has_name_containing(texts: Iterable[str]) -> SkipRule:
    """Build a rule that skips modules whose names contain one of the texts."""

    def rule(name: str, _: nn.Linear) -> str | None:
        found = next((text for text in texts if text in name), None)
        return None if found is None else f"'{found}' is in its name"

    return rule


def has_name_without(texts: Iterable[str]) -> SkipRule:
    """Build a rule that skips modules whose names contain none of the texts, if there are any."""
    wanted = tuple(texts)

    def rule(name: str, _: nn.Linear) -> str | None:
        return (
            None if not wanted or any(text in name for text in wanted) else "fqns does not name it"
        )

    return rule


def has_unaligned_shape(size: int) -> SkipRule:
    """Build a rule that skips modules with a width not divisible by `size`.

    The kernels do not support such widths.
    """

    def rule(_: str, module: nn.Linear) -> str | None:
        rows, columns = module.weight.shape
        return (
            None
            if rows % size == 0 and columns % size == 0
            else f"{rows} x {columns} is not in blocks of {size}"
        )

    return rule
