"""The word someone probably meant."""

import re
from collections.abc import Collection, Iterable

DIGIT = re.compile("[0-9]")
CURLY_QUOTES = "\u2018\u2019\u201a\u201c\u201d\u201e"
SPELLED_DIFFERENTLY = f"-_. {CURLY_QUOTES}"


def closest(word: str, candidates: Iterable[str], *, present: Collection[str] = ()) -> str | None:
    """The candidate that `word` is a misspelling of, or None.

    First the same letters but for case, hyphens and underscores, then the smallest edit distance that still is a typo
    (one edit for short words, a third of the letters for long ones); words not yet `present` win ties.
    """
    options = sorted(candidates)
    for option in options:
        if letters(option) == letters(word):
            return option
    limit = max(1, len(word) // 3)
    ranked = sorted(
        (edit_distance(letters(word), letters(option), limit), option in present, option)
        for option in options
    )
    if ranked and ranked[0][0] <= limit:
        return ranked[0][2]
    return next((option for option in options if len(word) >= 4 and option.startswith(word)), None)


def is_other_number(word: str, option: str) -> bool:
    """Whether two names differ in their numbers alone: 7B is no misspelling of 1B, nor llama4 of llama3; 23B may be one of 32B."""
    left, right = letters(word), letters(option)
    return (
        left != right
        and DIGIT.sub("#", left) == DIGIT.sub("#", right)
        and sorted(left) != sorted(right)
    )


def is_respelling(word: str, meant: str, candidates: Iterable[str]) -> bool:
    """Whether `word` is `meant` but for case, hyphens and underscores, and no other candidate is."""
    return [option for option in candidates if letters(option) == letters(word)] == [meant]


def letters(word: str) -> str:
    """The word without what people spell differently: case, hyphens, underscores, dots, spaces, a word processor's quotes."""
    return "".join(character for character in word.lower() if character not in SPELLED_DIFFERENTLY)


def edit_distance(left: str, right: str, limit: int) -> int:
    """Optimal string alignment distance: insert, delete, replace, swap neighbours. More than `limit` is `limit + 1`."""
    if abs(len(left) - len(right)) > limit:
        return limit + 1
    before: list[int] = []
    above = list(range(len(right) + 1))
    for row, letter in enumerate(left, 1):
        line = [row]
        for column, other in enumerate(right, 1):
            cost = min(above[column] + 1, line[-1] + 1, above[column - 1] + (letter != other))
            if row > 1 and column > 1 and letter == right[column - 2] and left[row - 2] == other:
                cost = min(cost, before[column - 2] + 1)
            line.append(cost)
        if min(line) > limit:
            return limit + 1
        before, above = above, line
    return above[-1]


def listing(words: Iterable[str], *, last: str = "or", most: int = 12) -> str:
    """`a, b or c`, cut after `most` words."""
    shown = list(words)
    if len(shown) > most:
        return ", ".join(shown[:most]) + f" and {len(shown) - most} more"
    return (
        f" {last} ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
    )
