"""Makes the conversations and pairs that ship with titanrun, the same bytes each time.

The user gives a few words, the assistant says them again. In a pair, the rejected reply says them
in capital letters. No answer of the held-out part is one of the training part.
`make_tiny_chat.py` writes them, `--check` compares the committed files with a fresh make.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[1] / "titanrun" / "assets"
# each is one token of the tiny tokenizer, so that what is learned is the task and not spelling
WORDS_TEXT = (
    "box car child stone river green pot dog fish cat moon sack night bread hen bird fire wolf "
    "tree knife water light net rope goat "
    "mill fox leeks wind eggs barn crow smith week eye goose owl duck attic beans sun road "
    "snow peas horse plums pears hill salt hand "
    "tower bear drum hall iron"
)
WORDS = WORDS_TEXT.split()
FEWEST, MOST = 2, 5
COUNTS = {"train": 6000, "held_out": 300}
PAIRS = {"train": 2000, "held_out": 100}
TWO_TURNS = 4
"""One conversation in so many has a second question."""

Turn = tuple[str, str]


def draw_turn(dice: random.Random, seen: set[str], avoided: set[str]) -> Turn:
    """Draw a question and its answer, which is in neither of two sets; add it to the first."""
    while True:
        words = dice.sample(WORDS, dice.randint(FEWEST, MOST))
        answer = " ".join(words)
        if answer not in avoided:
            seen.add(answer)
            return f"Say: {answer}", answer


def conversations(split: str, avoided: set[str]) -> Iterator[list[Turn]]:
    """Yield the turns of each conversation of a part.

    Its answers are added to `avoided` once all are drawn.
    """
    dice, seen = random.Random(f"tiny chat, {split}"), set[str]()
    for number in range(COUNTS[split]):
        yield [draw_turn(dice, seen, avoided) for _ in range(2 if number % TWO_TURNS == 0 else 1)]
    avoided |= seen


def lines(turns: list[Turn]) -> str:
    """Format a conversation as one line of JSON."""
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    return json.dumps({"messages": messages}) + "\n"


def pairs(split: str, avoided: set[str]) -> Iterator[str]:
    """Yield the lines of the pairs of a part.

    Its replies are added to `avoided` once all are drawn.
    """
    dice, seen = random.Random(f"tiny pairs, {split}"), set[str]()
    for _ in range(PAIRS[split]):
        question, answer = draw_turn(dice, seen, avoided)
        pair = {"prompt": question, "chosen": answer, "rejected": answer.upper()}
        yield json.dumps(pair) + "\n"
    avoided |= seen


def make() -> dict[str, str]:
    """Return the text of each file by its name."""
    answers: set[str] = set()
    replies: set[str] = set()
    return {
        f"tiny_chat/{split}.jsonl": "".join(map(lines, conversations(split, answers)))
        for split in COUNTS
    } | {f"tiny_pairs/{split}.jsonl": "".join(pairs(split, replies)) for split in PAIRS}


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="compare instead of writing; exit 1 on a difference"
    )
    made = make()
    if parser.parse_args().check:
        differing = [
            name
            for name, text in made.items()
            if (ASSETS / name).read_text(encoding="ascii") != text
        ]
        print(
            "".join(f"{name}: differs from a fresh make\n" for name in differing),
            end="",
            file=sys.stderr,
        )
        return 1 if differing else 0
    for name, text in made.items():
        (ASSETS / name).parent.mkdir(parents=True, exist_ok=True)
        (ASSETS / name).write_text(text, encoding="ascii", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
