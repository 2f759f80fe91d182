"""Spelling suggestions."""

import re
from collections.abc import Collection, Iterable

DIGIT = re.compile("[0-9]")
CURLY_QUOTES = "\u2018\u2019\u201a\u201c\u201d\u201e"
IGNORED_CHARACTERS = f"-_. {CURLY_QUOTES}"
# letters of a word that is certainly misspelled, if one is wrong
MIN_TYPO_LENGTH = 5
# the same if one is missing or two are swapped
MIN_SHORT_TYPO_LENGTH = 3


def find_closest(
    word: str, candidates: Iterable[str], *, present: Collection[str] = ()
) -> str | None:
    """Return the candidate that `word` is a misspelling of, or None.

    Candidates that differ only in case, hyphens and underscores come first, then the smallest edit
    distance that still counts as a typo (one edit for short words, a third of the letters for long
    ones). Words not yet `present` win ties.
    """
    options = sorted(candidates)
    for option in options:
        if normalize_spelling(option) == normalize_spelling(word):
            return option
    limit = max(1, len(word) // 3)
    ranked = sorted(
        (
            edit_distance(normalize_spelling(word), normalize_spelling(option), limit),
            option in present,
            option,
        )
        for option in options
    )
    if ranked and ranked[0][0] <= limit:
        return ranked[0][2]
    return next((option for option in options if len(word) >= 4 and option.startswith(word)), None)


def is_other_number(word: str, option: str) -> bool:
    """Return whether two names differ only in their numbers.

    7B is not a misspelling of 1B, nor llama4 of llama3. 23B may be a misspelling of 32B.
    """
    left, right = normalize_spelling(word), normalize_spelling(option)
    return (
        left != right
        and DIGIT.sub("#", left) == DIGIT.sub("#", right)
        and sorted(left) != sorted(right)
    )


def is_respelling(word: str, meant: str, candidates: Iterable[str]) -> bool:
    """Return whether `word` is `meant` except for case, hyphens and underscores.

    No other candidate may match in that way.
    """
    return [
        option for option in candidates if normalize_spelling(option) == normalize_spelling(word)
    ] == [meant]


def is_certain_typo(word: str, meant: str, candidates: Iterable[str]) -> bool:
    """Return whether `word` is `meant` with one wrong letter, and no other candidate is as near.

    That is a letter too many, too few or replaced, or two swapped ones. Words with another first
    letter or number, and short words with another letter, are often other words: cpus and gpus,
    beta1 and beta2, silu and selu.
    """
    written, right = normalize_spelling(word), normalize_spelling(meant)
    is_swap = sorted(written) == sorted(right)
    is_short = len(written) < MIN_TYPO_LENGTH
    if len(written) < MIN_SHORT_TYPO_LENGTH or not (is_swap or written[0] == right[0]):
        return False
    if is_short and not is_swap and len(written) >= len(right):
        return False
    near = [
        option for option in candidates if edit_distance(written, normalize_spelling(option), 1) < 2
    ]
    return near == [meant] and DIGIT.findall(written) == DIGIT.findall(right)


def is_certain_spelling(word: str, meant: str, candidates: Collection[str]) -> bool:
    """Return whether `word` is another spelling or a misspelling of `meant` and no other one."""
    return is_respelling(word, meant, candidates) or is_certain_typo(word, meant, candidates)


def remove_slot_word(name: str, slot: str) -> str:
    """Return a component's name without the word for its slot: dpo_loss -> dpo."""
    whole = slot.removesuffix("s" * (slot != "loss"))
    word = rf"[-_ ]?({whole}|{whole.rpartition('_')[2]})$"
    return re.sub(word, "", name, flags=re.IGNORECASE) or name


def normalize_spelling(word: str) -> str:
    """Remove the spelling variants of a word.

    These are case, hyphens, underscores, dots, spaces and the quotes of a word processor.
    """
    return "".join(character for character in word.lower() if character not in IGNORED_CHARACTERS)


def edit_distance(left: str, right: str, limit: int) -> int:
    """Compute the optimal string alignment distance: insert, delete, replace, swap neighbors.

    Distances above `limit` are returned as `limit + 1`.
    """
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


def format_word_list(words: Iterable[str], *, conjunction: str = "or", max_words: int = 12) -> str:
    """Format words as `a, b or c`, truncated after `max_words` words."""
    shown = list(words)
    if len(shown) > max_words:
        return ", ".join(shown[:max_words]) + f" and {len(shown) - max_words} more"
    return (
        f" {conjunction} ".join([", ".join(shown[:-1]), shown[-1]])
        if len(shown) > 1
        else "".join(shown)
    )
