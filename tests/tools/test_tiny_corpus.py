"""The corpus and tokenizer that ship: hashes, vocabulary, entropy, separation of held-out text, and
the trigram baseline."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from make_tiny_corpus import ASSETS, find_differences, hash_files, make_corpus, measure_baseline  # noqa: E402
from tiny_corpus.documents import WINDOW, all_window_hashes, shares_window  # noqa: E402
from tiny_corpus.kneser_ney import TrigramModel, estimate_discount, kneser_ney_loss  # noqa: E402
from tiny_corpus.tokenizer import BOS, EOS, VOCAB_SIZE, tokenise, unigram_entropy  # noqa: E402


def read_documents(name: str) -> list[str]:
    return [
        json.loads(line)["text"]
        for line in (ASSETS / f"{name}.jsonl").read_text(encoding="ascii").splitlines()
    ]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(ASSETS / "tokenizer.json"))


@pytest.fixture
def toy_model() -> TrigramModel:
    """Vocabulary 9 with BOS 7 and EOS 8; token 6 is never seen."""
    return TrigramModel.build(
        np.array([7, 0, 1, 2, 0, 1, 3, 8, 7, 0, 1, 2, 4, 8, 7, 5, 8]), vocab_size=9, bos_id=7
    )


def test_committed_files_have_the_committed_hashes():
    assert hash_files(ASSETS) == json.loads((ASSETS / "hashes.json").read_text(encoding="ascii"))


def test_corpus_has_the_promised_size():
    assert 1_000_000 <= (ASSETS / "train.jsonl").stat().st_size <= 2_500_000
    ratio = (ASSETS / "held_out.jsonl").stat().st_size / (ASSETS / "train.jsonl").stat().st_size
    assert 0.04 < ratio < 0.07


def test_tokenizer_fills_every_id(tokenizer):
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCAB_SIZE))
    assert (tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)) == (2046, 2047)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_encoding_and_decoding(text):
    tokenizer = Tokenizer.from_file(str(ASSETS / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  a  b ",
        "a\r\n\tb\n\n",
        "naïve Ω 漢字 עברית",
        "e\u0301 \u00a0\u200d\ufeff",
        "👩‍👩‍👧🏽🚀",
        "\x00\x7f",
        f"{BOS}x{EOS}",
    ],
)
def test_odd_text_survives_encoding_and_decoding(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_unigram_entropy_is_at_least_five_nats():
    assert unigram_entropy(np.load(ASSETS / "train.npy")) >= 5.0


@pytest.mark.parametrize("name", ["train", "held_out"])
def test_token_streams_begin_with_the_tokens_of_the_first_documents(tokenizer, name):
    stream = np.load(ASSETS / f"{name}.npy")
    expected = tokenise(tokenizer, read_documents(name)[:100])
    assert (stream.dtype, stream.ndim) == (np.uint16, 1)
    np.testing.assert_array_equal(stream[: len(expected)], expected)


def test_held_out_documents_share_no_window_with_training():
    held_out = all_window_hashes(read_documents("held_out"))
    assert not any(shares_window(document, held_out) for document in read_documents("train"))


def test_a_shared_window_is_found_and_a_shorter_one_is_not():
    phrase = "".join(chr(65 + place % 57) for place in range(WINDOW))
    hashes = all_window_hashes([f"before {phrase} after"])
    assert shares_window(f"elsewhere: {phrase}!", hashes)
    assert not shares_window(f"elsewhere: {phrase[1:]}!", hashes)
    assert not shares_window("short", hashes)


@pytest.mark.parametrize(
    ("before", "last"), [(7, 7), (7, 0), (0, 1), (2, 0), (6, 6), (5, 1), (1, 6)]
)
def test_trigram_probabilities_sum_to_one(toy_model, before, last):
    every = np.arange(9)
    probabilities = toy_model.probabilities(np.full(9, before), np.full(9, last), every)
    assert probabilities.min() > 0
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)


def test_trigram_probability_is_the_one_worked_out_by_hand(toy_model):
    # 11 kinds of trigram, 8 seen once and 3 twice; 10 kinds of pair, 9 after one kind of token and
    # 1 after two;
    # 7 kinds of token, 5 after one kind of token and 1 after two
    three, two, one = 8 / 14, 9 / 11, 5 / 7
    unigram = (1 - one) / 10 + one * 7 / 10 * (1 / 9)
    bigram = (1 - two) / 2 + two * 2 / 2 * unigram
    trigram = (2 - three) / 3 + three * 2 / 3 * bigram
    assert toy_model.probabilities(np.array([0]), np.array([1]), np.array([2]))[0] == pytest.approx(
        trigram, rel=1e-12
    )


def test_discount_is_one_half_where_nothing_was_seen_once():
    assert estimate_discount(np.array([1, 1, 2, 3])) == 0.5
    assert estimate_discount(np.array([1, 1, 1, 2])) == 0.6
    assert estimate_discount(np.array([3, 4])) == 0.5


def test_documents_are_scored_apart_from_each_other(toy_model):
    train = np.array([7, 0, 1, 2, 0, 1, 3, 8, 7, 0, 1, 2, 4, 8, 7, 5, 8])
    first, second = np.array([7, 0, 1, 8]), np.array([7, 5, 2, 0, 8])
    loss = [
        kneser_ney_loss(train, tokens, vocab_size=9, bos_id=7)
        for tokens in (first, second, np.concatenate([first, second]))
    ]
    assert loss[2] == pytest.approx((3 * loss[0] + 4 * loss[1]) / 7, rel=1e-12)


def test_baseline_lies_between_a_perfect_and_a_unigram_model():
    assert 1.5 < measure_baseline(ASSETS) < unigram_entropy(np.load(ASSETS / "train.npy")) - 1.5


@pytest.mark.slow
def test_a_fresh_make_equals_the_committed_files():
    assert find_differences(ASSETS) == []


@pytest.mark.slow
@pytest.mark.parametrize(("hash_seed", "threads"), [("1", "1"), ("2", "2")])
def test_the_make_depends_on_neither_hash_seed_nor_threads(tmp_path, hash_seed, threads):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": threads}
    subprocess.run(
        [sys.executable, TOOLS / "make_tiny_corpus.py", "--out", tmp_path],
        env=environment,
        check=True,
        capture_output=True,
    )
    assert hash_files(tmp_path) == hash_files(ASSETS)


@pytest.mark.slow
def test_token_streams_are_the_tokens_of_all_documents(tokenizer):
    for name in ("train", "held_out"):
        np.testing.assert_array_equal(
            np.load(ASSETS / f"{name}.npy"), tokenise(tokenizer, read_documents(name))
        )


@pytest.mark.slow
def test_check_names_the_file_that_was_changed(tmp_path):
    make_corpus(tmp_path)
    (tmp_path / "held_out.jsonl").write_text('{"text": "other"}\n', encoding="ascii")
    command = [sys.executable, TOOLS / "make_tiny_corpus.py", "--out", tmp_path, "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr.splitlines()) == (
        1,
        ["held_out.jsonl: differs from hashes.json", "held_out.jsonl: differs from a fresh make"],
    )
