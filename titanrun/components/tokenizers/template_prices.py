"""Prices of the functions and operators of chat templates."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias

from titanrun.components.tokenizers.template_budget import (
    CALL,
    ITEM,
    MAX_NUMBER_BITS,
    STEP,
    TemplateBudget,
    TemplateLimitError,
    measure_depth,
    measure_size,
)

Estimate: TypeAlias = Callable[[TemplateBudget, Any, Sequence[Any]], int]
"""Bound of the units of a function, from its first argument and the others."""

DIGITS = re.compile(r"\d+")
MAX_DEPTH = 1000
FREE_FILTERS = frozenset({"length", "count", "first", "last", "default", "d", "items", "attr"})
# they read their items lazily, each with a filter or test that has its own price
ITEM_FILTERS = frozenset({"map", "select", "reject", "selectattr", "rejectattr"})
LINEAR_FILTERS = {
    **dict.fromkeys(("trim", "lower", "upper", "capitalize", "title", "string"), 1),
    **dict.fromkeys(("safe", "int", "float", "abs", "round", "wordcount", "reverse"), 1),
    **dict.fromkeys(("list", "sort", "unique", "dictsort", "min", "max", "groupby"), ITEM),
    **dict.fromkeys(("escape", "e", "forceescape"), ITEM),
}
LINEAR_METHODS = {
    **dict.fromkeys(
        ("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "partition"), 1
    ),
    **dict.fromkeys(("rpartition", "strip", "lstrip", "rstrip", "lower", "upper", "title"), 1),
    **dict.fromkeys(("capitalize", "swapcase", "casefold", "removeprefix", "removesuffix"), 1),
    **dict.fromkeys(("isdigit", "isalpha", "isspace", "isupper", "islower", "isnumeric"), 1),
    **dict.fromkeys(("isdecimal", "isalnum", "istitle", "isidentifier", "isascii"), 1),
    **dict.fromkeys(("split", "rsplit", "splitlines", "copy"), ITEM),
}
FREE_METHODS = frozenset({"get", "items", "keys", "values"})
FREE_TESTS = frozenset(
    {
        *("defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence"),
        *("boolean", "true", "false", "integer", "float", "callable", "odd", "even"),
        *("divisibleby", "sameas", "filter", "test", "escaped"),
    }
)


def estimate_join(budget: TemplateBudget, first: Any, others: Sequence[Any]) -> int:
    """Bound the text of items with a separator between them."""
    return budget.measure(first) + len(first) * budget.measure(others[:1])


def estimate_str_join(budget: TemplateBudget, first: Any, others: Sequence[Any]) -> int:
    """Bound the text of a separator between items."""
    return estimate_join(budget, others[0], [first]) if others else 0


def estimate_replace(budget: TemplateBudget, first: Any, others: Sequence[Any]) -> int:
    """Bound a text with one text in place of another."""
    old, new = ([budget.measure(value) for value in others] + [0, 0])[:2]
    size = budget.measure(first)
    return size + old + (size // max(1, old) + 1) * new


def estimate_padding(budget: TemplateBudget, first: Any, others: Sequence[Any]) -> int:
    """Bound a text that is padded to a width."""
    return budget.measure(first) + sum(weigh(budget, value) for value in others)


def estimate_lines(budget: TemplateBudget, first: Any, others: Sequence[Any]) -> int:
    """Bound a text whose lines are indented."""
    return (budget.measure(first) + 1) * (1 + sum(weigh(budget, value) for value in others))


def estimate_json(budget: TemplateBudget, first: Any, others: Sequence[Any]) -> int:
    """Bound the JSON of a value, perhaps indented."""
    indent = sum(weigh(budget, value) for value in others if type(value) is not bool)
    size = ITEM * budget.measure(first)
    return size if not indent else size * (1 + indent * measure_depth(first, MAX_DEPTH))


def estimate_format(budget: TemplateBudget, first: Any, others: Sequence[Any]) -> int:
    """Bound a text that values are formatted into: each place may have a width and any value."""
    widths = sum(int(digits[:20]) for digits in DIGITS.findall(str(first)))
    values = measure_size(others, budget.limit, counts_numbers=True)
    return widths + (budget.measure(first) + 1) * (1 + values)


def estimate_items(budget: TemplateBudget, first: Any, others: Sequence[Any]) -> int:
    """Bound a function that groups or adds items, perhaps with fillers."""
    return (measure_length(first) + 1 + sum(weigh(budget, value) for value in others)) ** 2


def estimate_product(budget: TemplateBudget, first: Any, others: Sequence[Any]) -> int:
    """Bound a function that nothing is known about: the square of its arguments."""
    total = budget.measure(first) + sum(weigh(budget, value) for value in others)
    return (total + 1) ** 2


def weigh(budget: TemplateBudget, value: Any) -> int:
    """Return the size of an argument that may be a number of repetitions."""
    if isinstance(value, int | float):
        return min(abs(int(value)), 2**62) if value == value else 0
    return budget.measure(value)


ESTIMATES: Mapping[str, Estimate] = {
    "join": estimate_join,
    "replace": estimate_replace,
    "center": estimate_padding,
    "indent": estimate_lines,
    "tojson": estimate_json,
    "format": estimate_format,
    **dict.fromkeys(("batch", "slice", "sum", "random"), estimate_items),
}
METHOD_ESTIMATES: Mapping[str, Estimate] = {
    "join": estimate_str_join,
    "replace": estimate_replace,
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), estimate_padding),
    **dict.fromkeys(("format", "format_map"), estimate_format),
}


def charge_result(budget: TemplateBudget, result: Any) -> Any:
    """Pay for a result that is text, and return it."""
    if isinstance(result, str):
        budget.charge(len(result))
    return result


def price_filter(name: str, function: Callable[..., Any], budget: TemplateBudget) -> Any:
    """Return a filter that pays before it works."""
    if name in FREE_FILTERS:
        return function
    # jinja2 marks functions whose first argument is the context or the environment
    skipped = int(hasattr(function, "jinja_pass_arg"))
    factor, estimate = LINEAR_FILTERS.get(name), ESTIMATES.get(name, estimate_product)

    @wraps(function)
    def work(*args: Any, **kwargs: Any) -> Any:
        first = args[skipped]
        if factor is not None and type(first) is str and len(args) == skipped + 1:
            budget.spent = spent = budget.spent + STEP + factor * len(first)
            if spent > budget.limit:
                budget.extend()
            return function(*args, **kwargs)
        values = [budget.list_iterator(value) for value in args[skipped:]]
        if name in ITEM_FILTERS:
            budget.charge(CALL * (1 + len(values[0])))
            return function(*args[:skipped], *values, **kwargs)
        others = [*values[1:], *kwargs.values()]
        if factor is not None:
            budget.charge(STEP + factor * (budget.measure(values[0]) + budget.measure(others)))
        else:
            budget.check(estimate(budget, values[0], others))
            budget.charge(STEP + budget.measure(values))
        return charge_result(budget, function(*args[:skipped], *values, **kwargs))

    return work


def price_test(name: str, function: Callable[..., Any], budget: TemplateBudget) -> Any:
    """Return a test that pays before it reads its values."""
    if name in FREE_TESTS:
        return function

    @wraps(function)
    def work(*args: Any) -> Any:
        budget.charge(STEP + sum(budget.measure(value) for value in args))
        return function(*args)

    return work


def charge_method(
    budget: TemplateBudget, method: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Pay for a call of a method of a text, a list, a mapping or a number."""
    name, owner, others = method.__name__, method.__self__, [*args, *kwargs.values()]
    if name in FREE_METHODS:
        budget.charge(CALL + budget.measure(others))
        return
    if name in LINEAR_METHODS:
        size = budget.measure(owner) + (budget.measure(others) if others else 0)
        budget.charge(CALL + LINEAR_METHODS[name] * size)
        return
    units = METHOD_ESTIMATES.get(name, estimate_product)(budget, owner, others)
    budget.charge(CALL + units)


def charge_operator(budget: TemplateBudget, operator: str, left: Any, right: Any) -> None:
    """Pay for an operator between two values.

    Raises:
        TemplateLimitError: The result would be too large.
    """
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(left, int) and isinstance(right, int):
            check_number_bits(operator, left, right)
        return
    if operator == "+":
        budget.charge(STEP + weigh_items(left) + weigh_items(right))
    elif operator == "*":
        budget.charge(STEP + weigh_items(left) * weigh_items(right))
    elif operator == "%":
        budget.charge(STEP + estimate_format(budget, left, [right]))
    else:
        budget.charge(STEP + budget.measure(left) + budget.measure(right))


def check_number_bits(operator: str, left: int, right: int) -> None:
    """Raise TemplateLimitError if a result has more bits than a template may need."""
    bits = left.bit_length() + right.bit_length()
    if operator == "**":
        bits = left.bit_length() * max(0, right)
    if bits > MAX_NUMBER_BITS:
        raise TemplateLimitError


def measure_length(value: Any) -> int:
    """Return the length of a text or a list, 1 for other values."""
    return len(value) if hasattr(value, "__len__") else 1


def weigh_items(value: Any) -> int:
    """Return the units of copying a text or a list; a number is a count of copies."""
    if isinstance(value, int):
        return max(0, value)
    return measure_length(value) * (1 if isinstance(value, str | bytes) else ITEM)
