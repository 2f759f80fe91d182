"""Bounds on the time and memory of a chat template.

A template pays for its work in units of about a character copied, before it joins texts, reads
lists or goes on with a loop. No clock is read, so that every machine accepts the same messages. The
limit grows with what is rendered.
"""

from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

BASE_LIMIT = 2**27
"""Units that every rendering may use."""
UNITS_PER_CHARACTER = 256
"""Further units for each character of the messages and tools."""
MAX_NUMBER_BITS = 4096
STEP = 16
"""Units of a pass of a loop, or of a filter, beside what it does."""
CALL = 256
"""Units of a call, beside what it does."""
ITEM = 16
"""Units of an item of a list, which takes longer to read than a character."""
DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
SEQUENCES: frozenset[type] = frozenset({list, tuple, set, frozenset, *DICT_VIEWS})


class TemplateLimitError(TemplateError):
    """A template exceeds its limit of time and memory."""

    def __init__(self) -> None:
        super().__init__("it exceeds the limit of time and memory")


class TemplateBudget:
    """Units that a template may still use in one rendering."""

    __slots__ = ("_inputs", "limit", "spent")

    def __init__(self) -> None:
        self.spent, self.limit = 0, BASE_LIMIT
        self._inputs: object = None

    def start(self, inputs: object = None) -> None:
        """Begin a rendering of `inputs`."""
        self.spent, self.limit, self._inputs = 0, BASE_LIMIT, inputs

    def charge(self, units: int) -> None:
        """Pay for some work. Raise TemplateLimitError if it exceeds the limit."""
        self.spent = spent = self.spent + units
        if spent > self.limit:
            self.extend()

    def check(self, units: int) -> None:
        """Raise TemplateLimitError if work of so many units would exceed the limit."""
        self.charge(units)
        self.spent -= units

    def measure(self, value: object) -> int:
        """Return the size of a value written as text, in characters, roughly.

        Raises:
            TemplateLimitError: The size exceeds the limit.
        """
        if type(value) is str:
            return len(value)
        size = measure_size(value, self.limit - self.spent)
        while size > self.limit - self.spent:
            self.check(size)
            size = measure_size(value, self.limit - self.spent)
        return size

    def iter_charged(self, values: Iterable[Any], units: int) -> Iterator[Any]:
        """Yield values and pay for each."""
        for value in values:
            self.spent = spent = self.spent + units
            if spent > self.limit:
                self.extend()
            yield value

    def list_iterator(self, value: Any) -> Any:
        """Return the items of an iterator as a list, any other value as it is."""
        if type(value) is GeneratorType or hasattr(value, "__next__"):
            return list(self.iter_charged(value, STEP))
        return value

    def extend(self) -> None:
        """Raise the limit by the size of the inputs, which is measured only if it matters."""
        inputs, self._inputs = self._inputs, None
        if inputs is not None:
            self.limit += UNITS_PER_CHARACTER * measure_size(inputs, 2**40)
        if self.spent > self.limit:
            raise TemplateLimitError


class ChargedIterable:
    """Values of a loop, paid for one by one."""

    __slots__ = ("_budget", "_units", "_values")

    def __init__(self, budget: TemplateBudget, values: Any, units: int) -> None:
        self._budget, self._values, self._units = budget, values, units

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the values."""
        return self._budget.iter_charged(self._values, self._units)

    def __len__(self) -> int:
        """Return the number of values. Raise TypeError if it is unknown."""
        return len(self._values)


def measure_size(value: object, limit: int, *, counts_numbers: bool = False) -> int:
    """Return the size of a value written as text, or some number above the limit.

    A value that occurs several times counts as often as it is written. The items of lists count
    more than characters, since reading them takes longer. With `counts_numbers`, a number counts as
    much as it says, for it may be the width of a text.
    """
    total, rest = 0, [value]
    while rest and total <= limit:
        item = rest.pop()
        if isinstance(item, str | bytes | range):
            total += len(item) + 1
        elif isinstance(item, dict):
            total += STEP + 2 * ITEM * len(item)
            if total <= limit:
                rest.extend(item)
                rest.extend(item.values())
        elif type(item) in SEQUENCES or isinstance(item, list | tuple):
            total += STEP + ITEM * len(item)  # type: ignore[arg-type]
            if total <= limit:
                rest.extend(item)  # type: ignore[arg-type]
        elif isinstance(item, int):
            total += abs(item) if counts_numbers else 1 + item.bit_length() // 3
        else:
            total += CALL
            if isinstance(item, Namespace):
                rest.append(object.__getattribute__(item, "_Namespace__attrs"))
    return total


def measure_depth(value: object, limit: int) -> int:
    """Return how deeply lists and mappings are nested, or `limit` if it is more."""
    if limit <= 0:
        return 0
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 0
    return 1 + max((measure_depth(item, limit - 1) for item in value), default=0)
