"""Global batches of streams: equal for all ranks, bitwise after a resume, each document once."""

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import xxhash

from tests.components.data.lane_streams import (
    Ranks,
    lane_texts,
    numbers_in,
    same,
    write_numbered,
)
from titanrun.components.data import late_data
from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.config import (
    DatasetConfig,
    MixtureDatasetConfig,
    MixtureSource,
    TextDatasetConfig,
    TokensDatasetConfig,
)
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.lane_runner import LaneShare
from titanrun.components.data.replies_config import PreferenceDatasetConfig
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.heartbeat import on_heartbeat

KINDS = ["windows", "documents", "best_fit", "null", "chat", "preference", "mixture"]
Make = Callable[..., Ranks]


def text(folder: Path, **options: Any) -> TextDatasetConfig:
    return TextDatasetConfig(path=str(folder), **{"streaming": True, "window": 32, **options})


def write_chats(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for part in range(5):
        lines = []
        for number in range(60):
            said = f"{part}.{number}" + " more" * (number % 7)
            prompt = [{"role": "user", "content": said}]
            replies = [
                [{"role": "assistant", "content": f"{said} {word}"}] for word in ("yes", "no")
            ]
            lines.append(
                json.dumps(
                    {
                        "messages": prompt + replies[0],
                        "prompt": prompt,
                        "chosen": replies[0],
                        "rejected": replies[1],
                    }
                )
            )
        (folder / f"{part}.jsonl").write_text("\n".join(lines))


def configure(kind: str, folder: Path) -> DatasetConfig:
    """Write the files of a dataset and return its config."""
    if kind in ("chat", "preference"):
        write_chats(folder / "chats")
        path = str(folder / "chats")
        if kind == "chat":
            return ChatDatasetConfig(path=path, streaming=True, window=16, packing="best_fit")
        return PreferenceDatasetConfig(path=path, streaming=True, window=16)
    if kind == "mixture":
        following = write_numbered(folder / "one", [90, 70, 300, 40, 55])
        write_numbered(folder / "two", [50] * 4, first=following)
        np.save(folder / "rows.npy", np.arange(4, 4 + 40 * 65).reshape(40, 65) % 250)
        sources = [
            MixtureSource(dataset=text(folder / "one"), weight=0.5),
            MixtureSource(dataset=text(folder / "two", packing="best_fit"), weight=0.3),
            MixtureSource(dataset=TokensDatasetConfig(path=str(folder / "rows.npy")), weight=0.2),
        ]
        return MixtureDatasetConfig(sources=tuple(sources))
    write_numbered(folder / "texts", [150, 80, 500, 120, 90, 60, 200])
    return text(folder / "texts", packing=None if kind == "null" else kind)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, tokenizer: Tokenizer) -> Make:
    config = configure(request.param, tmp_path)
    words = request.param in ("chat", "preference")
    used = build_tiny_tokenizer(TinyTokenizerConfig()) if words else tokenizer

    def make_ranks(dp_size: int = 1, **options: Any) -> Ranks:
        return Ranks(config, used, dp_size, folder=tmp_path, length=129 if words else 65, **options)

    return make_ranks


def test_global_batches_are_equal_for_every_number_of_ranks(make: Make) -> None:
    alone = make().batches(60)
    assert len({batch.tobytes() for batch in alone}) == 60
    for dp_size in (2, 4, 8):
        assert same(make(dp_size).batches(60), alone)


def test_a_run_goes_on_bitwise_from_every_step_on_other_ranks(make: Make) -> None:
    alone = make().batches(26)
    states, ranks = [], make(2)
    for _ in range(20):
        ranks.next()
        states.append(ranks.state())
    for step, state in enumerate(states, start=1):
        dp_size = (1, 4, 2, 8)[step % 4]
        resumed = make(dp_size)
        resumed.load(state)
        assert resumed.state() == state
        assert same(resumed.batches(6), alone[step : step + 6])
        # a rollback goes back to an earlier step in the same process
        resumed.load(states[0])
        assert same(resumed.batches(2), alone[1:3])


def test_rows_of_a_batch_are_named_by_lane_and_number(make: Make) -> None:
    ranks = make(2)
    assert ranks.loaders[1].last_indices() == []
    ranks.batches(3)
    assert [loader.last_indices() for loader in ranks.loaders] == [
        [[0, 4], [0, 5], [1, 4], [1, 5]],
        [[2, 4], [2, 5], [3, 4], [3, 5]],
    ]


def test_another_seed_shuffles_otherwise_and_no_shuffle_keeps_the_order(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write_numbered(tmp_path, [40] * 8)
    shuffled = [Ranks(text(tmp_path), tokenizer, seed=seed).batches(12) for seed in (0, 0, 1)]
    assert same(shuffled[0], shuffled[1]) and not same(shuffled[0], shuffled[2])
    kept = Ranks(text(tmp_path, shuffle=False), tokenizer)
    for lane, found in enumerate(lane_texts(kept.batches(8), tokenizer, 4)):
        own = [*range(40 * lane, 40 * lane + 40), *range(160 + 40 * lane, 200 + 40 * lane)]
        assert numbers_in(found) == own[: len(numbers_in(found))]
        assert len(numbers_in(found)) > 20


@pytest.mark.parametrize("packing", ["windows", "documents", "best_fit", None])
@pytest.mark.parametrize("counts", [[900], [300] * 3, [130] * 7, [14] * 64, [14] * 65])
def test_every_document_comes_once_without_repeat(
    counts: list[int], packing: str | None, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    total = write_numbered(tmp_path, counts)
    config = text(tmp_path, packing=packing, repeat=False)
    found: list[int] = []
    ended = []
    for dp_size in (1, 4):
        batches = Ranks(config, tokenizer, dp_size, lanes=8).rest()
        ended.append(len(batches))
        texts = lane_texts(batches, tokenizer, 8)
        found = [number for lane in texts for number in numbers_in(lane)]
        assert sorted(found) == list(range(total))
    assert ended[0] == ended[1]


@pytest.mark.parametrize("counts", [[200], [90] * 3, [40] * 7, [6] * 64, [6] * 65, [20] * 9])
def test_nothing_is_lost_or_repeated_in_any_epoch_over_restarts_on_other_ranks(
    counts: list[int], tmp_path: Path, tokenizer: Tokenizer
) -> None:
    # one file of ten times the size of the others is read by all lanes
    total = write_numbered(tmp_path, [*counts, 10 * counts[0]])
    config = text(tmp_path, packing=None, window=8)
    by_epoch: dict[int, list[int]] = {}
    ranks, turn = Ranks(config, tokenizer, lanes=8), 0
    while True:
        state = ranks.state()
        epochs = [cursor[state["fields"].index("epoch")] for cursor in state["cursors"][0]]
        if turn and min(epochs) == 2:
            break
        if turn % 50 == 49:
            ranks = Ranks(config, tokenizer, (1, 2, 4, 8)[turn // 50 % 4], lanes=8)
            ranks.load(state)
        # one document a row, one row a lane: the cursor is in the epoch of the row
        row_texts = [numbers_in(tokenizer.decode(row[0])) for row in ranks.next()]
        after = ranks.state()["cursors"][0]
        for (number,), cursor in zip(row_texts, after, strict=True):
            by_epoch.setdefault(cursor[state["fields"].index("epoch")], []).append(number)
        turn += 1
    assert sorted(by_epoch[0]) == sorted(by_epoch[1]) == list(range(total))
    assert by_epoch[0] != by_epoch[1]


def test_a_stream_has_the_documents_of_an_index_and_in_one_lane_its_rows(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write_numbered(tmp_path / "texts", [150, 80, 500, 120], suffix=".jsonl")
    for packing in ("windows", "documents", None):
        config = text(tmp_path / "texts", packing=packing, shuffle=False)
        index = build_text_dataset(
            TextDatasetConfig(path=config.path, packing=packing),
            tokenizer=tokenizer,
            sample_length=65,
            cache_folder=tmp_path / "cache",
        )
        stream = np.concatenate(Ranks(config, tokenizer, lanes=1).batches(len(index) // 8))
        rows = np.stack([index[number] for number in range(len(stream))])
        assert np.array_equal(stream, rows)


def test_data_too_small_for_its_lanes_is_told(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_numbered(tmp_path, [40])
    ranks = Ranks(text(tmp_path), tokenizer)
    with pytest.raises(ProblemsFound) as found:
        ranks.batches(9)
    (problem,) = found.value.problems
    assert problem.message == "the stream has 2 windows of up to 32 records for 4 lanes"
    fewer = "training.lanes: 2"
    assert problem.hint == f"set streaming: false, which suits data this small, or {fewer}"
    assert Ranks(text(tmp_path), tokenizer, lanes=2).batches(9)


def test_as_many_windows_as_lanes_are_enough_in_every_epoch(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    # windows of fewer files than lanes: 2, 1, 4 and 1
    write_numbered(tmp_path, [50, 20, 100, 32])
    ranks = Ranks(text(tmp_path, packing=None), tokenizer, lanes=8)
    first = ranks.state()["fields"].index("epoch")
    by_epoch: dict[int, list[int]] = {}
    for turn in range(250):
        if turn % 20 == 7:
            state = ranks.state()
            ranks = Ranks(text(tmp_path, packing=None), tokenizer, 2 ** (turn // 20 % 4), lanes=8)
            ranks.load(state)
        row_texts = [numbers_in(tokenizer.decode(row[0])) for row in ranks.next()]
        for (number,), cursor in zip(row_texts, ranks.state()["cursors"][0], strict=True):
            by_epoch.setdefault(cursor[first], []).append(number)
    complete = [
        epoch
        for epoch in by_epoch
        if epoch < min(one[first] for one in ranks.state()["cursors"][0])
    ]
    assert len(complete) >= 5
    assert all(sorted(by_epoch[epoch]) == list(range(202)) for epoch in complete)


def test_a_lane_whose_records_no_filter_lets_through_is_told(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write_numbered(tmp_path, [40] * 4)
    config = text(tmp_path, filters=({"column": "text", "min_characters": 1000},))
    with pytest.raises(ProblemsFound, match="finds nothing to train on in the 2 windows"):
        Ranks(config, tokenizer).next()


def test_another_stream_is_not_gone_on_with(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = tmp_path / "texts"
    write_numbered(folder, [40] * 8, suffix=".jsonl")
    ranks = Ranks(text(folder), tokenizer, folder=tmp_path)
    ranks.batches(2)
    state = ranks.state()

    def told(config: DatasetConfig, **options: Any) -> str:
        other = Ranks(config, tokenizer, folder=tmp_path, **options)
        with pytest.raises(ProblemsFound) as found:
            other.load(state)
        problem = found.value.problems[0]
        assert ("set training.lanes: 4, or" in (problem.hint or "")) == ("lanes" in options)
        return problem.message

    assert told(text(folder), lanes=8) == "the checkpoint's stream has 4 lanes, the recipe 8"
    settings = "the checkpoint was trained on other data: the same files, read with other settings"
    assert told(text(folder, window=31)) == told(text(folder), seed=3) == settings
    with pytest.raises(ProblemsFound, match="dealt to its lanes by another version of titanrun"):
        ranks.load({**state, "version": 1})
    # another global batch continues each lane where it is
    larger = Ranks(text(folder), tokenizer, batch=16, folder=tmp_path)
    larger.load(state)
    following = ranks.batches(4)
    for lane, batch in enumerate(larger.batches(2)):
        assert same(
            batch.reshape(4, 4, 65)[:, :2], [one.reshape(4, 2, 65) for one in following][2 * lane]
        )
    (folder / "part-000.jsonl").unlink()
    (folder / "part-003.jsonl").write_text('{"text": "other"}\n')
    write_numbered(folder / "zzz", [9], suffix=".jsonl")
    changed = (
        "the checkpoint was trained on other data: added zzz/part-000.jsonl, removed "
        "part-000.jsonl, changed part-003.jsonl"
    )
    assert told(text(folder)) == changed
    # a crash has left a part of the plan
    for plan in (tmp_path / "plans").glob("plan-*"):
        plan.write_bytes(plan.read_bytes()[:20])
    assert told(text(folder)).startswith("the checkpoint was trained on other data: ")
    assert told(text(folder)).endswith(" files now")
    new = Ranks(text(folder), tokenizer, folder=tmp_path)
    new.load(state, allows_other_data=True)
    assert same(new.batches(2), Ranks(text(folder), tokenizer).batches(2))


def test_a_copied_folder_is_the_same_data(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name in ("one", "other"):
        write_numbered(tmp_path / name, [40] * 8)
    before = Ranks(text(tmp_path / "one"), tokenizer)
    before.batches(3)
    after = Ranks(text(tmp_path / "other"), tokenizer)
    after.load(before.state())
    assert same(after.batches(3), before.batches(3))


@pytest.mark.parametrize(
    ("change", "rule", "message"),
    [
        (
            lambda file: file.write_text(file.read_text() * 2),
            "source-changed",
            "has changed since the run began",
        ),
        (Path.unlink, "source-gone", "cannot be read: there is no such file"),
    ],
)
def test_a_file_that_changes_or_goes_while_the_run_trains_ends_it(
    change: Callable[[Path], object], rule: str, message: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write_numbered(tmp_path, [40] * 8, suffix=".jsonl")
    ranks = Ranks(text(tmp_path), tokenizer)
    ranks.next()
    for file in tmp_path.iterdir():
        change(file)
    with pytest.raises(ProblemsFound, match=message) as found:
        ranks.batches(40)
    assert found.value.problems[0].rule == rule


def test_a_rank_is_alive_while_it_waits_for_local_files(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system of many machines may answer late too, on this rank or on another."""
    monkeypatch.setattr(late_data, "HEARTBEAT_SECONDS", 0.01)
    write_numbered(tmp_path, [40] * 4)
    expected = Ranks(text(tmp_path), tokenizer).next()
    (loader,) = Ranks(text(tmp_path), tokenizer).loaders
    was_heard, read = Event(), loader._runner.next_shares

    def read_late() -> dict[int, LaneShare]:
        assert was_heard.wait(30), "the watchdog would end this rank"
        return read()

    monkeypatch.setattr(loader._runner, "next_shares", read_late)
    with on_heartbeat(was_heard.set):
        assert np.array_equal(loader.next_samples(), expected)


def test_bad_records_are_skipped_up_to_a_share(tmp_path: Path, tokenizer: Tokenizer) -> None:
    lines = [json.dumps({"text": f"<{number}>"}) for number in range(300)]
    lines[17] = "not json"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    options = {"repeat": False, "packing": None}
    with pytest.raises(ProblemsFound) as found:
        Ranks(text(tmp_path, **options), tokenizer).rest()
    assert "a.jsonl' record 18 column 1 is not JSON" in found.value.problems[0].message
    skipping = text(tmp_path, bad_records="skip", **options)
    texts = lane_texts(Ranks(skipping, tokenizer).rest(), tokenizer, 4)
    numbers = sorted(number for one in texts for number in numbers_in(one))
    assert numbers == [number for number in range(300) if number != 17]
    limited = text(tmp_path, bad_records="skip", max_bad_share=0.000001, **options)
    with pytest.raises(ProblemsFound, match="more than max_bad_share"):
        Ranks(limited, tokenizer).rest()


def test_another_window_shuffles_otherwise(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_numbered(tmp_path, [80] * 4)
    batches = [Ranks(text(tmp_path, window=size), tokenizer).batches(8) for size in (8, 8, 80)]
    assert same(batches[0], batches[1]) and not same(batches[0], batches[2])


@pytest.mark.parametrize("by", [None, "group"])
def test_training_on_a_stream_leaves_out_what_is_held_out(
    by: str | None, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    records = [{"text": f"<{number}>", "group": number // 10} for number in range(1200)]
    for part in range(4):
        lines = [json.dumps(record) for record in records[part::4]]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    holdout = Holdout(0.1, by)
    # the definition: xxh3 of the text, or of the column as JSON, after a fixed prefix
    expected = [
        number
        for number, record in enumerate(records)
        if xxhash.xxh3_64_intdigest(
            b"titanrun holdout 1\0"
            + (record["text"] if by is None else json.dumps(record[by])).encode()  # type: ignore[attr-defined]
        )
        >= int(0.1 * 2**64)
    ]
    assert 1000 < len(expected) < 1150
    ranks = Ranks(text(tmp_path, repeat=False, packing=None), tokenizer, holdout=holdout)
    texts = lane_texts(ranks.rest(), tokenizer, 4)
    assert sorted(number for one in texts for number in numbers_in(one)) == expected
    plain = Ranks(text(tmp_path, repeat=False, packing=None), tokenizer)
    with pytest.raises(ProblemsFound, match="the same files, read with other settings"):
        plain.load(ranks.state())


def test_conversations_and_pairs_of_a_stream_are_held_out_by_their_prompts(tmp_path: Path) -> None:
    used = build_tiny_tokenizer(TinyTokenizerConfig())
    for kind, keeps in (("chat", 300), ("preference", 300)):
        config = configure(kind, tmp_path)
        counts = []
        for holdout in (None, Holdout(0.3)):
            once = (
                type(config)(**{**dict(config), "repeat": False, "packing": None})
                if (kind == "chat")
                else type(config)(**{**dict(config), "repeat": False})
            )
            batches = Ranks(once, used, length=129, holdout=holdout).rest()
            counts.append(sum(bool(row[1].any()) for batch in batches for row in batch))
        assert counts[0] == keeps and 0.6 * keeps < counts[1] < 0.8 * keeps


@pytest.mark.parametrize(
    ("packing", "shape"),
    [("windows", (8, 65)), ("documents", (8, 3, 65)), ("best_fit", (8, 3, 65))],
)
def test_windows_of_a_stream_are_ids_alone(
    packing: str, shape: tuple[int, ...], tmp_path: Path, tokenizer: Tokenizer
) -> None:
    ranks = Ranks(configure(packing, tmp_path), tokenizer, folder=tmp_path)
    assert ranks.next().shape == shape
    ranks.close()
