"""Draw the documents of the corpus.

A training stream and a held-out stream that shares no window of text with it.
"""

from collections.abc import Callable, Iterable

import numpy as np

from tiny_corpus import records, stories
from tiny_corpus.dice import Dice

TRAIN_SEED, HELD_OUT_SEED = 11, 12
TRAIN_CHARACTERS = 1_900_000
HELD_OUT_CHARACTERS = 100_000
WINDOW = 50

KINDS: tuple[Callable[[Dice], str], ...] = (
    stories.journey,
    stories.conversation,
    stories.chain_tale,
    stories.village,
    stories.recipe,
    stories.family,
    records.ledger,
    records.ships_log,
    records.timetable,
    records.roster,
    records.word_list,
    records.store_room,
)


def draw_document(dice: Dice) -> str:
    """Draw one document of any kind."""
    return dice.pick(KINDS)(dice)


def window_hashes(text: str) -> np.ndarray:
    """Return a 64-bit polynomial hash of each window of WINDOW characters.

    Empty for a shorter text.
    """
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    count = max(len(points) - WINDOW + 1, 0)
    hashes = np.zeros(count, dtype=np.uint64)
    for start in range(WINDOW):
        # wraps modulo 2**64; the multiplier is odd, so no character is shifted out
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + points[start : start + count]
    return hashes


def all_window_hashes(documents: Iterable[str]) -> np.ndarray:
    """Return the sorted different hashes of all windows of all documents."""
    return np.unique(np.concatenate([window_hashes(document) for document in documents]))


def shares_window(document: str, sorted_hashes: np.ndarray) -> bool:
    """Return whether a window of the document is among the hashes.

    Equal hashes count as equal windows: at worst a good document is refused.
    """
    hashes = window_hashes(document)
    places = np.minimum(np.searchsorted(sorted_hashes, hashes), len(sorted_hashes) - 1)
    return bool(np.any(sorted_hashes[places] == hashes))


def draw_training_documents() -> list[str]:
    """Draw documents until there are TRAIN_CHARACTERS characters."""
    dice = Dice(TRAIN_SEED)
    documents: list[str] = []
    characters = 0
    while characters < TRAIN_CHARACTERS:
        documents.append(draw_document(dice))
        characters += len(documents[-1])
    return documents


def draw_held_out_documents(training: list[str]) -> list[str]:
    """Draw documents of the same kinds from another seed.

    One that shares a window with training is drawn again.
    """
    dice = Dice(HELD_OUT_SEED)
    taken = all_window_hashes(training)
    documents: list[str] = []
    characters = 0
    while characters < HELD_OUT_CHARACTERS:
        document = draw_document(dice)
        if not shares_window(document, taken):
            documents.append(document)
            characters += len(document)
    return documents
