"""Every fault of a file of a stream gets the message it should, as a run tells it.

`SERVER` in a recipe stands for the address of the server that the test starts.
"""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from tests.components.data.fragile_server import FragileServer, serve_files
from tests.problems.test_golden_problems import SOURCE_FAULTS, check_text
from titanrun.components.data import source_faults
from titanrun.components.data.source_faults import FaultKind
from titanrun.config.diagnostics import render_problems
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.object_collectives import RankGroup
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.value_sources import build_run_sources
from titanrun.worker.build.build_data import DataParallelRank, build_tokenizer
from titanrun.worker.build.build_stream_loader import build_stream_loader, plan_training_streams
from titanrun.worker.problem_origins import attach_resolved_origin

LINES = "".join(json.dumps({"text": f"{number} and so on"}) + "\n" for number in range(200))
Fault = Callable[[FragileServer], None]
PLAIN, PACKED = "a.jsonl", "a.jsonl.gz"


def answer(status: int) -> Fault:
    """Return what lets a server answer all requests for a file with a status."""
    return lambda server: server.status.update({PLAIN: status})


def change_file(server: FragileServer) -> None:
    server.files[PLAIN] += b"\n"


def damage_file(server: FragileServer) -> None:
    # the checksum is before the size
    packed = server.files[PACKED]
    server.files[PACKED] = packed[:-8] + b"abcd" + packed[-4:]


def stop_ranges(server: FragileServer) -> None:
    server.has_ranges = False


# whether it comes before the files are listed, and what fails
FAULTS: dict[FaultKind, tuple[bool, Fault]] = {
    "unreachable": (False, answer(503)),
    "refused": (False, answer(403)),
    "gone": (False, answer(404)),
    "changed": (False, change_file),
    "damaged": (True, damage_file),
    "without-ranges": (True, stop_ranges),
}


def test_every_fault_has_a_golden_case() -> None:
    assert set(FAULTS) == set(get_args(FaultKind))
    assert [folder.name for folder in SOURCE_FAULTS] == sorted(f"source-{kind}" for kind in FAULTS)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_reads_as_it_should(
    kind: FaultKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_faults, "FIRST_DELAY_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    folder = Path(__file__).parent / f"source-{kind}"
    is_early, fail = FAULTS[kind]
    with serve_files() as server:
        server.files |= {PLAIN: LINES.encode(), PACKED: gzip.compress(LINES.encode(), mtime=0)}
        recipe = (folder / "recipe.yaml").read_text(encoding="utf-8")
        Path("recipe.yaml").write_text(recipe.replace("SERVER", server.url), encoding="utf-8")
        resolved = resolve_recipe("recipe.yaml", environment={})
        if is_early:
            fail(server)
        with pytest.raises(ProblemsFound) as found:
            read_stream(resolved.run, tmp_path, server, None if is_early else fail)
        report = build_run_sources(resolved, [])
        told = render_problems(
            [attach_resolved_origin(problem, report) for problem in found.value.problems]
        )
    told = told.replace(server.url, "SERVER")
    check_text(folder, re.sub(r"after \d+ tries in \d+ s", "after 2 tries in 1 s", told))


def read_stream(run: Recipe, folder: Path, server: FragileServer, fail: Fault | None) -> None:
    """Read a stream, whose files may fail once it is opened."""
    plans, tokenizer = plan_training_streams(run, RankGroup()), build_tokenizer(run)
    assert tokenizer is not None
    loader = build_stream_loader(run, tokenizer, folder, DataParallelRank(), RankGroup(), plans)
    if fail is not None:
        fail(server)
    while True:
        loader.next_samples()
