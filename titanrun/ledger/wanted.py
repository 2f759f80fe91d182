"""Which runs are listed, and in which order."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne

from titanrun.config.problems import fail
from titanrun.config.suggest import closest, listing
from titanrun.ledger.entry import Entry

NUMBERS = ("step", "steps", "loss", "grad_norm", "tps", "validation", "seconds", "starts")
SORTED_BY = ("run", "name", "state", "started", *NUMBERS)
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": le,
    ">=": ge,
    "==": eq,
    "!=": ne,
    "<": lt,
    ">": gt,
}
CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """`loss<3.2`: a number of an entry against another one. What is not known fulfils no condition."""

    name: str
    operator: str
    number: float

    def holds(self, entry: Entry) -> bool:
        """Whether an entry fulfils it."""
        value = getattr(entry, self.name)
        return value is not None and OPERATORS[self.operator](value, self.number)


def condition(text: str) -> Condition:
    """A condition as it is typed. Raises ProblemsFound."""
    found = CONDITION.fullmatch(text)
    if not found:
        raise fail(
            "usage",
            f"'{text}' is no condition",
            help="write a name, one of <= >= == != < >, and a number: 'loss<3.2'",
        )
    if found[1] not in NUMBERS:
        meant = closest(found[1], NUMBERS)
        help = f"did you mean '{meant}'?" if meant else f"runs have {listing(NUMBERS, last='and')}"
        raise fail("usage", f"runs have no number '{found[1]}'", help=help)
    try:
        return Condition(found[1], found[2], float(found[3]))
    except ValueError:
        raise fail(
            "usage", f"'{found[3]}' in '{text}' is no number", help="write it as 3.2 or 1e-3"
        ) from None


def in_order(
    entries: Sequence[tuple[Entry, str]], by: str, *, is_reversed: bool
) -> list[tuple[Entry, str]]:
    """Entries with their states by one of SORTED_BY, ascending; those that do not know it stand last, whichever way."""
    keys = [state if by == "state" else getattr(entry, by) for entry, state in entries]
    knowing = [
        pair for pair, key in zip(entries, keys, strict=True) if key is not None and key == key
    ]
    lacking = [pair for pair, key in zip(entries, keys, strict=True) if key is None or key != key]
    return (
        sorted(
            knowing,
            key=lambda pair: pair[1] if by == "state" else getattr(pair[0], by),
            reverse=is_reversed,
        )
        + lacking
    )
