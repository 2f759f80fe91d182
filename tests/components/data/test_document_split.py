"""Documents that training holds out, against the hash of each document computed here."""

import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from tests.components.data.conftest import ByteTokenizer
from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.chat_dataset import build_chat_dataset, iter_conversations
from titanrun.components.data.config import (
    DatasetConfig,
    MixtureDatasetConfig,
    TextDatasetConfig,
    TinyDatasetConfig,
)
from titanrun.components.data.data_inspection import iter_document_spans
from titanrun.components.data.document_split import HeldOutDataTooSmall, Holdout, format_split
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.preference_dataset import build_preference_dataset
from titanrun.components.data.replies_config import PreferenceDatasetConfig
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.config.problems import ProblemsFound

TEXTS = [f"document {number} \u00e9\u4e2d" for number in range(2000)]
NUM_QUESTIONS = 400


class ShiftedTokenizer(ByteTokenizer):
    """Another tokenizer: bytes in another order of ids."""

    fingerprint = "shifted bytes"

    def encode(self, text: str, *, add_bos: bool = True, add_eos: bool = True) -> list[int]:
        ids = super().encode(text, add_bos=add_bos, add_eos=add_eos)
        return [3 + (token - 3 + 7) % 256 if token >= 3 else token for token in ids]

    def decode(self, ids: Any) -> str:
        return super().decode([3 + (token - 3 - 7) % 256 if token >= 3 else token for token in ids])


def is_held_out(key: str, share: float) -> bool:
    """The definition, written once more."""
    digest = xxhash.xxh3_64(b"titanrun holdout 1\x00" + key.encode()).intdigest()
    return digest < math.floor(share * 2**64)


def open_side(
    config: DatasetConfig, folder: Path, holdout: Holdout | None, tokenizer: Any, length: int
) -> IndexedDataset:
    split = {} if holdout is None else {"holdout": holdout}
    rows: IndexedDataset = config.load_builder()(
        config,
        tokenizer=tokenizer,
        sample_length=length,
        cache_folder=folder / "cache",
        **split,
    )
    return rows


def read_texts(
    config: DatasetConfig,
    folder: Path,
    holdout: Holdout | None,
    tokenizer: Any = None,
) -> list[str]:
    """Return the text of each document of one side, in order."""
    tokenizer = tokenizer or ByteTokenizer()
    rows = open_side(config, folder, holdout, tokenizer, 4096)
    return [
        tokenizer.decode(row[0][start:end].tolist())
        for row in map(rows.__getitem__, range(len(rows)))
        for start, end in iter_document_spans(row)
    ]


def read_both_sides(
    config: DatasetConfig,
    folder: Path,
    size: float,
    by: str | None = None,
    tokenizer: Any = None,
) -> tuple[list[str], list[str]]:
    """Return the documents to train on, and the held-out ones."""
    trained = read_texts(config, folder, Holdout(size, by), tokenizer)
    return trained, read_texts(config, folder, Holdout(size, by, is_validation=True), tokenizer)


def text_config(path: Path | str, **options: Any) -> TextDatasetConfig:
    return TextDatasetConfig(path=str(path), packing="best_fit", **options)


def write_jsonl(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "texts.jsonl", *({"text": text} for text in TEXTS))


def test_the_log_says_which_side_is_tokenized(
    texts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    read_both_sides(text_config(texts), tmp_path, 0.1)
    told = re.findall(r"tokenizing '.*' \((.*)\) into", caplog.text)
    assert told == ["training", "held out"]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.5])
def test_each_document_is_on_the_side_that_its_hash_says(
    share: float, texts: Path, tmp_path: Path
) -> None:
    expected = [text for text in TEXTS if is_held_out(text, share)]
    assert abs(len(expected) - share * len(TEXTS)) < 4 * math.sqrt(len(TEXTS) * share * (1 - share))
    if len(expected) < 2:
        with pytest.raises(HeldOutDataTooSmall):
            read_both_sides(text_config(texts), tmp_path, share)
        return
    trained, held_out = read_both_sides(text_config(texts), tmp_path, share)
    assert sorted(held_out) == sorted(expected)
    assert sorted([*trained, *held_out]) == sorted(TEXTS) and not set(trained) & set(held_out)


def test_formats_orders_and_tokenizers_have_the_same_split(texts: Path, tmp_path: Path) -> None:
    expected = {text for text in TEXTS if is_held_out(text, 0.05)}
    backwards = [{"text": text} for text in reversed(TEXTS)]
    for number in range(3):
        write_jsonl(tmp_path / f"part-{number}.jsonl", *backwards[number::3])
    table = pa.table({"text": TEXTS, "other": list(range(len(TEXTS)))})
    pq.write_table(table, tmp_path / "texts.parquet")
    sources = [str(texts), str(tmp_path / "texts.parquet"), f"{tmp_path}/part-*.jsonl"]
    for source in sources:
        for tokenizer in (ByteTokenizer(), ShiftedTokenizer()):
            trained, held_out = read_both_sides(
                text_config(source), tmp_path, 0.05, tokenizer=tokenizer
            )
            assert set(held_out) == expected and not expected & set(trained)


def test_each_txt_file_is_a_document(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"first\nline {number}\n")
    expected = {f"first\nline {n}\n" for n in range(60) if is_held_out(f"first\nline {n}\n", 0.2)}
    trained, held_out = read_both_sides(text_config(folder), tmp_path, 0.2)
    assert set(held_out) == expected and len(trained) == 60 - len(expected) > 0
    by_text = read_both_sides(text_config(folder), tmp_path, 0.2, by="text")[1]
    assert set(by_text) == {
        f"first\nline {n}\n"
        for n in range(60)
        if is_held_out(json.dumps(f"first\nline {n}\n"), 0.2)
    }


def test_a_number_of_documents_is_exact(texts: Path, tmp_path: Path) -> None:
    trained, held_out = read_both_sides(text_config(texts), tmp_path, 52)
    assert len(held_out) == 52 and len(trained) == len(TEXTS) - 52
    # those that the smallest share with 52 documents holds out
    ranked = sorted(
        TEXTS, key=lambda text: xxhash.xxh3_64_intdigest(b"titanrun holdout 1\x00" + text.encode())
    )
    assert set(held_out) == set(ranked[:52])


def test_format_and_filters_come_before_the_hash(tmp_path: Path) -> None:
    records = [{"a": text, "b": "!", "n": number} for number, text in enumerate(TEXTS)]
    config = TextDatasetConfig.model_validate_json(
        json.dumps(
            {
                "path": str(write_jsonl(tmp_path / "two.jsonl", *records)),
                "packing": "best_fit",
                "format": "{a}{b}",
                "filters": [{"column": "n", "at_least": 1000}],
                "max_documents": 500,
            }
        )
    )
    read = [f"{text}!" for text in TEXTS[1000:1500]]
    trained, held_out = read_both_sides(config, tmp_path, 0.1)
    assert sorted(held_out) == sorted(text for text in read if is_held_out(text, 0.1))
    assert sorted([*trained, *held_out]) == sorted(read)


def test_records_with_one_value_of_the_column_stay_together(tmp_path: Path) -> None:
    records = [{"text": text, "author": number % 50} for number, text in enumerate(TEXTS)]
    config = text_config(write_jsonl(tmp_path / "by.jsonl", *records))
    trained, held_out = read_both_sides(config, tmp_path, 0.2, by="author")
    expected = {number for number in range(50) if is_held_out(str(number), 0.2)}
    assert {TEXTS.index(text) % 50 for text in held_out} == expected
    assert {TEXTS.index(text) % 50 for text in trained} == set(range(50)) - expected
    with pytest.raises(ProblemsFound, match="no column 'writer'"):
        read_both_sides(config, tmp_path, 0.2, by="writer")


def chat_records(layout: str) -> list[dict[str, Any]]:
    asked = [(f"what is {number}?", f"it is {number}") for number in range(NUM_QUESTIONS)]
    if layout == "prompt_completion":
        return [{"prompt": question, "completion": reply} for question, reply in asked]
    if layout == "lists":
        return [
            {
                "prompt": [{"role": "user", "content": question}],
                "completion": [{"role": "assistant", "content": reply}],
            }
            for question, reply in asked
        ]
    role, content, names = (
        ("from", "value", ("human", "gpt"))
        if layout == "sharegpt"
        else ("role", "content", ("user", "assistant"))
    )
    column = "conversations" if layout == "sharegpt" else "messages"
    return [
        {column: [{role: name, content: text} for name, text in zip(names, pair, strict=True)]}
        for pair in asked
    ]


def chat_key(*contents: str) -> str:
    roles = ("user", "assistant")
    messages = [
        {"content": content, "role": role} for content, role in zip(contents, roles, strict=False)
    ]
    return json.dumps(messages, separators=(",", ":"))


@pytest.mark.parametrize("layout", ["messages", "sharegpt", "prompt_completion", "lists"])
def test_conversations_are_split_by_their_messages_and_completions_by_their_prompt(
    layout: str, tmp_path: Path
) -> None:
    records = chat_records(layout)
    path = write_jsonl(tmp_path / "chats.jsonl", *records)
    layout = "prompt_completion" if layout == "lists" else layout
    config = ChatDatasetConfig.model_validate({"path": str(path), "layout": layout})
    expected = set()
    for number in range(NUM_QUESTIONS):
        question, reply = f"what is {number}?", f"it is {number}"
        key = chat_key(question) if layout == "prompt_completion" else chat_key(question, reply)
        if is_held_out(key, 0.05):
            expected.add(question)
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    side = {
        is_validation: open_side(
            config, tmp_path, Holdout(0.05, None, is_validation=is_validation), tokenizer, 257
        )
        for is_validation in (False, True)
    }
    assert (len(side[False]), len(side[True])) == (NUM_QUESTIONS - len(expected), len(expected))
    decoded = [tokenizer.decode(side[True][index][0].tolist()) for index in range(len(side[True]))]
    assert all(any(question in text for text in decoded) for question in expected)
    holdout = Holdout(0.05, None, is_validation=True)
    read = {one.messages[0]["content"] for one in iter_conversations(config, holdout=holdout)}
    assert read == expected
    five = Holdout(5, None, is_validation=True)
    assert len(list(iter_conversations(config, holdout=five))) == 5


def test_pairs_of_one_prompt_are_on_one_side(tmp_path: Path) -> None:
    pairs = [
        {"prompt": f"what is {number % 100}?", "chosen": f"{number}", "rejected": "no idea"}
        for number in range(NUM_QUESTIONS)
    ]
    whole = [
        {
            "chosen": [
                {"role": "user", "content": pair["prompt"]},
                {"role": "assistant", "content": pair["chosen"]},
            ],
            "rejected": [
                {"role": "user", "content": pair["prompt"]},
                {"role": "assistant", "content": pair["rejected"]},
            ],
        }
        for pair in pairs
    ]
    expected = [number for number in range(100) if is_held_out(chat_key(f"what is {number}?"), 0.1)]
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    for records in (pairs, whole):
        config = PreferenceDatasetConfig(path=str(write_jsonl(tmp_path / "pairs.jsonl", *records)))
        rows = build_preference_dataset(
            config,
            tokenizer=tokenizer,
            sample_length=513,
            cache_folder=tmp_path / "cache",
            holdout=Holdout(0.1, is_validation=True),
        )
        assert len(rows) == 4 * len(expected)
        decoded = " ".join(tokenizer.decode(rows[index][0].tolist()) for index in range(len(rows)))
        assert all(f"what is {number}?" in decoded for number in expected)


def test_a_mixture_holds_documents_of_each_source_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = []
    for number, texts in enumerate((TEXTS[:800], TEXTS[800:1600], TEXTS[1600:1603])):
        path = write_jsonl(tmp_path / f"{number}.jsonl", *({"text": text} for text in texts))
        dataset = {"name": "text", "path": str(path), "packing": None}
        sources.append({"dataset": dataset, "weight": number + 1.0, "max_rows": 700})
    assert not any(is_held_out(text, 0.05) for text in TEXTS[1600:1603])
    config = MixtureDatasetConfig.model_validate_json(json.dumps({"sources": sources}))
    with caplog.at_level(logging.WARNING):
        trained, held_out = read_both_sides(config, tmp_path, 0.05)
    assert set(held_out) == {text for text in TEXTS[:1600] if is_held_out(text, 0.05)}
    assert set(trained) == {text for text in TEXTS[:1603] if not is_held_out(text, 0.05)}
    assert "source 2 is not validated" in caplog.text
    few = MixtureDatasetConfig.model_validate_json(json.dumps({"sources": sources[2:]}))
    with pytest.raises(HeldOutDataTooSmall):
        read_texts(few, tmp_path, Holdout(0.05, is_validation=True))


FIVE_PERCENT = ", which is 5% of them"


@pytest.mark.parametrize(
    ("size", "message", "advised"),
    [
        (0.001, "0 of the 30 documents of '<path>' would be held out", " to hold out that many"),
        (29, "1 of the 30 documents of '<path>' would be left to train on", FIVE_PERCENT),
        (1000, "0 of the 30 documents of '<path>' would be left to train on", FIVE_PERCENT),
    ],
)
def test_both_sides_need_two_documents(
    size: float, message: str, advised: str, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "few.jsonl", *({"text": text} for text in TEXTS[:30]))
    for _ in range(2):
        with pytest.raises(ProblemsFound) as caught:
            read_texts(text_config(path), tmp_path, Holdout(size))
        (problem,) = caught.value.problems
        assert problem.message == (
            f"validation.holdout {size:g}: {message.replace('<path>', str(path))}"
        )
        assert problem.code == "conflict" and problem.path == ("holdout",)
        # the usual share where too many are asked for, the least number where too few are
        assert problem.hint == f"each side needs 2 or more: set validation.holdout: 2{advised}"


def test_held_out_documents_that_fill_no_sequence_are_told(texts: Path, tmp_path: Path) -> None:
    config = TextDatasetConfig(path=str(texts))
    open_side(config, tmp_path, Holdout(2), ByteTokenizer(), 65)
    with pytest.raises(HeldOutDataTooSmall, match="one sequence of seq_len 64 needs 65"):
        open_side(config, tmp_path, Holdout(2, is_validation=True), ByteTokenizer(), 65)


def test_the_number_of_held_out_documents_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ChatDatasetConfig(
        path=str(write_jsonl(tmp_path / "chats.jsonl", *chat_records("messages")))
    )
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            build_chat_dataset(
                config,
                tokenizer=tokenizer,
                sample_length=257,
                cache_folder=tmp_path / "cache",
                holdout=Holdout(20),
            )
        assert "held out 20 of 400 conversations (5%)" in caplog.text


def test_the_shipped_corpus_is_split_too(tmp_path: Path) -> None:
    folder = TinyTokenizerConfig().folder
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line)["text"] for line in lines]
    expected = [text for text in documents if is_held_out(text, 0.1)]
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    rows = open_side(TinyDatasetConfig(), tmp_path, Holdout(0.1, is_validation=True), tokenizer, 65)
    ids = [token for index in range(len(rows)) for token in rows[index].tolist()]
    wanted = [token for text in expected for token in tokenizer.encode(text)]
    assert ids == wanted[: len(ids)] and len(wanted) - len(ids) < 65


@pytest.mark.parametrize(
    ("held", "asked", "told"),
    [
        (20, 0.05, "held out 20 of 200 pairs (10%, 5% asked)"),
        (10, 0.05, "held out 10 of 200 pairs (5%)"),
        (12, 12, "held out 12 of 200 pairs (6%)"),
        (13, 12, "held out 13 of 200 pairs (6.5%, 12 asked)"),
    ],
)
def test_a_share_that_is_missed_is_told_with_what_was_asked(
    held: int, asked: float, told: str
) -> None:
    assert format_split(200 - held, held, "pair", asked=asked) == told
