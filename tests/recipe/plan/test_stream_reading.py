"""What a plan says of a stream: lanes, memory and processes of a rank."""

import json

import pytest

from titanrun.components.data.lane_plan import find_lanes
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.recipe.plan.devices import DEVICES
from titanrun.recipe.plan.plan_layout import ZERO_SIZE, PlanLayout
from titanrun.recipe.plan.plan_report import format_plan, plan_to_dict
from titanrun.recipe.plan.stream_reading import estimate_stream_reading
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training:
  dataset: {name: text, path: "texts/*.jsonl", streaming: true}
  local_batch_size: 1
  global_batch_size: 64
  seq_len: 1000
  steps: 10
"""


@pytest.fixture
def laid_out(tmp_path):
    """A plan of a stream on some data-parallel ranks."""

    def make(*overrides, dp_size=1):
        (tmp_path / "recipe.yaml").write_text(RECIPE)
        ranks = {"environment": {}, "ranks": dp_size}
        run = resolve_recipe(str(tmp_path / "recipe.yaml"), list(overrides), **ranks).run
        dims = ParallelDims(dp_shard=dp_size)
        return PlanLayout(run, dims, ZERO_SIZE, [ZERO_SIZE], ZERO_SIZE)

    return make


@pytest.mark.parametrize(
    ("lanes", "dp_size"), [(64, 1), (64, 4), (32, 64), (4, 64), (16, 16), (8, 16), (64, 64)]
)
def test_lanes_are_those_that_the_fullest_rank_runs(laid_out, lanes, dp_size):
    found = estimate_stream_reading(laid_out(f"training.lanes={lanes}", dp_size=dp_size), 1.0)
    held = max(len(find_lanes(rank, dp_size, lanes)) for rank in range(dp_size))
    assert (found["lanes"], found["lanes_per_rank"]) == (lanes, held)
    # two windows, each of at most 16 MiB of text
    assert found["memory"] == held * 2 * 16 * 2**20
    # sequences of other ranks are tokenized too, and dropped
    assert found["tokens_per_second"] == held * (64 // lanes) * 1000


@pytest.mark.parametrize(("seconds", "processes"), [(2.0, 1), (64 / 250, 3), (64 / 6400, 64)])
def test_processes_are_as_many_as_the_speed_of_the_device_needs(laid_out, seconds, processes):
    found = estimate_stream_reading(laid_out(), seconds)
    assert found["processes"] == processes
    assert found["tokens_per_second"] / processes <= 100_000


def test_a_stream_that_is_too_fast_for_its_lanes_is_told(laid_out):
    layout = laid_out("training.lanes=2")
    assert estimate_stream_reading(layout, 0.1)["processes"] is None
    text = format_plan(layout, plan_to_dict(layout, DEVICES["h100"]))
    assert "  needs    more than 2 processes, and each needs a lane, if each process " in text
    assert "raise training.lanes, or set streaming: false to tokenize before the run" in text
    assert " tokens/s in the fastest steps of H100 80 GB; --device names another\n" in text


def test_the_plan_shows_them_and_says_nothing_without_a_stream(laid_out):
    layout = laid_out("model.n_layers=600", dp_size=4)
    data = plan_to_dict(layout, DEVICES["h100"])
    text = format_plan(layout, data)
    assert data["stream"]["lanes_per_rank"] == 16
    assert "  lanes    16 of 64\n" in text and "  memory   0.50 GiB at most on the host" in text
    each = data["stream"]["processes"]
    assert f"training.dataloader.num_workers: {each} (here 2)" in text
    indexed = laid_out("training.dataset=tiny")
    data = plan_to_dict(indexed, DEVICES["h100"])
    assert data["stream"] is None and "lanes" not in format_plan(indexed, data)


def test_of_a_mixture_only_the_streams_are_tokenized_and_each_has_windows(laid_out):
    text = {"name": "text", "path": "texts/*.jsonl"}
    streamed = {**text, "streaming": True}
    # 0.75 of the sequences are of streams
    sources = [(streamed, 2.0), (text, 1.0), (streamed, 1.0)]
    mixed = {"name": "mixture", "sources": [{"dataset": d, "weight": w} for d, w in sources]}
    layout = laid_out(f"training.dataset={json.dumps(mixed)}", dp_size=4)
    found = estimate_stream_reading(layout, 1.0)
    assert found["memory"] == 16 * 2 * 2 * 16 * 2**20
    assert found["tokens_per_second"] == 0.75 * 16 * 1000
    text = format_plan(layout, plan_to_dict(layout, DEVICES["h100"]))
    assert "  lanes    16 of 64, 75% of the sequences\n" in text
    assert "for each lane of each of 2 streams\n" in text


def test_files_of_streams_are_counted_where_they_are_known(laid_out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for name in ("a.jsonl", "b.jsonl", "notes.md"):
        (tmp_path / "texts" / name).write_bytes(b"x" * 1024)
    web = {"name": "text", "path": "https://example.com/texts/", "streaming": True}
    local = {**web, "path": "texts"}
    index = {"name": "text", "path": "texts/a.jsonl"}
    gone = {**local, "path": "elsewhere/*.jsonl"}
    mixed = {"name": "mixture", "sources": [{"dataset": d} for d in (local, index, web, gone)]}
    layout = laid_out(f"training.dataset={json.dumps(mixed)}", "model.n_layers=600")
    data = plan_to_dict(layout, DEVICES["h100"])
    assert [(one["count"], one["bytes"]) for one in data["stream"]["files"]] == [
        (2, 2048),
        (None, None),
        (None, None),
    ]
    unknown = "  files    not known here: listed when the run starts: "
    expected = [
        "  files    2 files, 2.0 KiB: 'texts'",
        f"{unknown}'https://example.com/texts/'",
        f"{unknown}'elsewhere/*.jsonl'",
    ]
    assert "\n".join(expected) in format_plan(layout, data)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # 20 steps of 4 sequences of 1001 tokens
        (
            ["validation.holdout=0.005", "validation.steps=20"],
            "the first 80,080 tokens of documents that are held out: about 16,016,000 tokens",
        ),
        (["validation.dataset=c4_validation", "validation.steps=20"], "the first 80,080 tokens"),
        (["validation.dataset=c4_validation"], "the whole split: validation.steps is null"),
    ],
)
def test_the_plan_says_what_is_read_before_the_first_step(laid_out, overrides, expected):
    layout = laid_out("validation.enable=true", "validation.local_batch_size=4", *overrides)
    text = format_plan(layout, plan_to_dict(layout, DEVICES["h100"]))
    assert f"\n  validation  {expected}" in text
    assert "are held out" in text or "holdout" not in overrides[0]


def test_the_plan_says_nothing_of_validation_data_in_an_index(laid_out):
    layout = laid_out(
        "validation={enable: true, dataset: tiny, further: [{id: web, dataset: c4}], steps: 2}"
    )
    text = format_plan(layout, plan_to_dict(layout, DEVICES["h100"]))
    assert "\n  web  the first 2,002 tokens\n" in text and "\n  validation " not in text
