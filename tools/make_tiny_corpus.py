"""Makes the corpus and the tokenizer that ship with titanrun, the same bytes each time.

`make_tiny_corpus.py` writes them, `--check` compares the committed files with their hashes and with
a fresh make,
`--baseline` prints the held-out loss of a trigram model, which a trained model has to beat.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tiny_corpus.documents import draw_held_out_documents, draw_training_documents
from tiny_corpus.kneser_ney import kneser_ney_loss
from tiny_corpus.tokenizer import (
    BOS,
    VOCAB_SIZE,
    tokenise,
    train_tokenizer,
    unigram_entropy,
    write_tokenizer,
)

ASSETS = Path(__file__).resolve().parents[1] / "titanrun" / "assets" / "tiny"
FILES = (
    "held_out.jsonl",
    "held_out.npy",
    "tokenizer.json",
    "tokenizer_config.json",
    "train.jsonl",
    "train.npy",
)


def write_documents(documents: list[str], path: Path) -> None:
    """Write each document as one line of JSON."""
    lines = [json.dumps({"text": document}) + "\n" for document in documents]
    path.write_text("".join(lines), encoding="ascii", newline="\n")


def hash_files(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of the corpus, by name; a missing file is left out."""
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in FILES
        if (folder / name).is_file()
    }


def make_corpus(folder: Path) -> None:
    """Write the documents, the tokenizer, the token streams and the hashes into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    training = draw_training_documents()
    held_out = draw_held_out_documents(training)
    tokenizer = train_tokenizer(training)
    write_tokenizer(tokenizer, folder)
    for name, documents in (("train", training), ("held_out", held_out)):
        write_documents(documents, folder / f"{name}.jsonl")
        np.save(folder / f"{name}.npy", tokenise(tokenizer, documents))
    (folder / "hashes.json").write_text(
        json.dumps(hash_files(folder), indent=2) + "\n", encoding="ascii", newline="\n"
    )


def find_differences(folder: Path) -> list[str]:
    """One line for each file that differs from its hash or from a fresh make."""
    written = json.loads((folder / "hashes.json").read_text(encoding="ascii"))
    found = hash_files(folder)
    with tempfile.TemporaryDirectory() as fresh:
        make_corpus(Path(fresh))
        made = hash_files(Path(fresh))
    lines = [
        f"{name}: differs from hashes.json"
        for name in FILES
        if found.get(name) != written.get(name)
    ]
    return lines + [
        f"{name}: differs from a fresh make" for name in FILES if found.get(name) != made[name]
    ]


def measure_baseline(folder: Path) -> float:
    """Held-out nats per token of the Kneser-Ney trigram model of the training tokens."""
    bos_id = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(BOS)
    train, held_out = np.load(folder / "train.npy"), np.load(folder / "held_out.npy")
    return kneser_ney_loss(train, held_out, vocab_size=VOCAB_SIZE, bos_id=bos_id)


def describe(folder: Path) -> str:
    """Describe the sizes of the corpus in one line."""
    train, held_out = np.load(folder / "train.npy"), np.load(folder / "held_out.npy")
    return (
        f"{len(train)} training tokens, {len(held_out)} held-out tokens, unigram entropy "
        f"{unigram_entropy(train):.3f} nats"
    )


def main() -> int:
    """Write the corpus, or compare it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder of the corpus")
    parser.add_argument(
        "--check", action="store_true", help="compare instead of writing; exit 1 on a difference"
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="print the trigram model's held-out loss instead of writing",
    )
    arguments = parser.parse_args()
    if not arguments.check and not arguments.baseline:
        make_corpus(arguments.out)
        print(f"{arguments.out}: {describe(arguments.out)}")
    if arguments.baseline:
        print(
            f"Kneser-Ney trigram, held-out loss: {measure_baseline(arguments.out):.4f} nats per "
            f"token"
        )
    differences = find_differences(arguments.out) if arguments.check else []
    print("".join(f"{line}\n" for line in differences), end="", file=sys.stderr)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
