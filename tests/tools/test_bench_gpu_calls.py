"""What a call of the GPU benchmark leaves on the disk, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recipe.plan.test_layout_search import count_sizes
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.recipe.plan.devices import DEVICES
from titanrun.recipe.plan.memory_estimate import estimate_memory, sum_bytes
from titanrun.recipe.plan.plan_layout import PlanLayout
from titanrun.recipe.resolving.resolve import resolve_recipe

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "tools" / "bench"
sys.path[:0] = [str(BENCH), str(ROOT / "tools")]

from gpu import Call, Options, gpu_report, read_memory_gib, run_side  # noqa: E402
from gpu_ceiling_sum import compute_ceiling  # noqa: E402
from gpu_command import list_rows, parse_options  # noqa: E402
from gpu_commands import run_limited  # noqa: E402
from gpu_earlier import Machine, read_machine  # noqa: E402
from gpu_files import write_json  # noqa: E402
from gpu_rows import CALLS, ROWS, toy_row  # noqa: E402
from gpu_verdicts import fails  # noqa: E402
from write_benchmarks import build_call  # noqa: E402


def side(**values: Any) -> dict[str, Any]:
    done = {
        "row": "",
        "side": "",
        "state": "done",
        "ms": 10.0,
        "noise": 0.005,
        "first_losses": [6.0, 5.5],
    }
    return done | {"tokens_per_second": 1e3, "tflops": 1.0, "torch": "2.11.0"} | values


def find_processes(argument: str) -> list[str]:
    """Return the ids of processes that were started with an argument."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # it may have ended meanwhile
        with suppress(OSError):
            if argument.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


def test_a_call_that_is_cut_off_keeps_the_table_of_what_was_measured(tmp_path: Path) -> None:
    def end_early(name: str, side_: str, *_: Any) -> dict[str, Any]:
        if (name, side_) == ("1b_s4096_float8_tensorwise", "bare"):
            raise KeyboardInterrupt
        return side()

    call = Call(options=Options(folder=tmp_path, budget=900, toy=True), run_side=end_early)
    with pytest.raises(KeyboardInterrupt):
        call.run(["1b_s4096", "1b_s4096_float8_tensorwise", "8b_s4096"])
    table = json.loads((tmp_path / "table.json").read_text())
    assert [found["verdict"] for found in table] == ["tie", "FAILED: bare cut off"]
    # the side that ended keeps what it measured, and the page shows it
    assert table[1]["titanrun"]["ms"] == 10.0
    assert "| 1b_s4096_float8_tensorwise | 10.00 | 1,000 |" in build_call(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        *("table.json", "commands.json", "clocks.json")
    }


def test_a_file_of_results_is_whole_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_json(path, [1])
    with pytest.raises(TypeError):
        write_json(path, [1, object()])
    assert json.loads(path.read_text()) == [1]


def test_a_call_that_is_terminated_leaves_no_side_running(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "gpu", "--toy", "--rows", "debugmodel"]
    call = subprocess.Popen([*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL)
    running = tmp_path / "debugmodel-titanrun.json"
    while not running.exists():
        assert call.poll() is None
        time.sleep(0.05)
    sides = find_processes(str(running))
    call.terminate()
    assert call.wait(60) == 128 + signal.SIGTERM
    assert len(sides) == 1 and not find_processes(str(running))
    (found,) = json.loads((tmp_path / "table.json").read_text())
    assert found["verdict"] == "FAILED: titanrun cut off"


def test_commands_find_this_source_tree_and_the_packages_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/wheels")
    log = tmp_path / "log"
    show = "import os; print(os.environ['PYTHONPATH'])"
    assert run_limited([sys.executable, "-c", show], log, 60) == 0
    assert log.read_text().strip() == os.pathsep.join([str(ROOT), "/wheels"])


CPU = {"device_name": "cpu", "torch": torch.__version__}
PARTS = {
    "copy": {"ms": 1.0, "gb_per_second": 1.0},
    "products bf16": {"ms": 3.0, "tflops": 1.0},
    "attention flash": {"ms": 2.0, "tflops": 1.0},
}


class FakeMachine:
    """Runs sides that take what it is told, by a clock of its own."""

    def __init__(self, **seconds: float) -> None:
        self.time, self.seconds, self.ran = 0.0, seconds, list[str]()

    def run_side(self, name: str, side_: str, _: Path, limit: float, __: bool) -> dict[str, Any]:
        self.ran.append(f"{name} {side_}")
        taken = self.seconds.get(side_, ROWS[name].seconds)
        self.time += min(taken, limit)
        if taken > limit:
            return {"state": "timeout in timed"}
        found = side(row=name, side=side_, seconds=taken, **CPU)
        return found | ({"parts": PARTS} if ROWS[name].part == "ceilings" else {})


def run_call(
    machine: FakeMachine, folder: Path, rows: list[str], budget: float, *, toy: bool = False
) -> Any:
    options = Options(folder=folder, budget=budget, toy=toy)
    call = Call(options=options, run_side=machine.run_side, now=lambda: machine.time)
    call.run(rows)
    return call.table


def test_rows_run_by_value_and_those_that_do_not_fit_are_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = FakeMachine()
    rows = ["head_loss", "8b_s4096", "1b_ceilings", "1b_s4096", "1b_s4096_eager"]
    # after 130 s for the first 100 are left; after 30 and 25 for the two that fit, 45
    table = run_call(machine, tmp_path, rows, 230)
    verdicts = {found["row"]: found["verdict"] for found in table}
    assert verdicts == {
        "1b_s4096": "tie",
        "8b_s4096": "not run: 100 s left, needs about 220 s",
        "1b_ceilings": "alone",
        "head_loss": "alone",
        "1b_s4096_eager": "not run: 45 s left, needs about 90 s",
    }
    assert [ran.split()[0] for ran in machine.ran] == [
        *("1b_s4096", "1b_s4096", "1b_ceilings", "head_loss")
    ]
    assert "not run: 100 s left, needs about 220 s" in capsys.readouterr().out
    assert "| not run: 100 s left, needs about 220 s |" in build_call(tmp_path)
    assert fails(verdicts["8b_s4096"], toy=True) and fails(verdicts["8b_s4096"], toy=False)


def test_rows_that_do_not_fit_into_the_gpu_are_not_begun(tmp_path: Path) -> None:
    machine = FakeMachine()
    options = Options(folder=tmp_path, budget=900, toy=False)
    rows = ["8b_s4096", "8b_s4096_bf16_storage"]
    for gib, verdicts in (
        (79.6, ["not run: needs 109 GiB, the GPU has 80", "tie"]),
        (140.4, ["tie", "tie"]),
        (None, ["tie", "tie"]),
    ):
        call = Call(
            options=options,
            run_side=machine.run_side,
            now=lambda: 0.0,
            read_memory=lambda gib=gib: gib,
        )
        call.run(rows)
        assert [found["verdict"] for found in call.table if found["row"] in rows] == verdicts
        assert bool(call.list_faults()) is (gib == 79.6)


def test_the_memory_of_a_gpu_is_what_nvidia_smi_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_memory_gib() is None
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 81559\necho 81559\n")
    program.chmod(0o755)
    assert read_memory_gib() == pytest.approx(79.65, abs=0.01)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.part is None])
def test_a_row_needs_the_memory_that_plan_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(ROWS[name].recipe(tmp_path / "rows.npy", "gpu"))
    run = resolve_recipe(str(path), [], environment={}, ranks=1).run
    sizes = count_sizes(run).sizes
    layout = PlanLayout(run, ParallelDims(), sizes[0], sizes[1:-1], sizes[-1])
    planned = sum_bytes(estimate_memory(layout, DEVICES["h200"])) / 2**30
    assert planned <= ROWS[name].memory_gib
    assert ROWS[name].memory_gib == 70 or planned == pytest.approx(ROWS[name].memory_gib, abs=1)


def test_the_second_side_is_judged_by_what_the_first_took(tmp_path: Path) -> None:
    fast = run_call(FakeMachine(titanrun=100, bare=30), tmp_path, ["1b_s4096"], 130)
    assert fast[0]["verdict"] == "FAILED: bare not run: 30 s left, needs about 100 s"
    slow = run_call(FakeMachine(titanrun=30, bare=30), tmp_path, ["1b_s4096"], 130)
    assert slow[0]["verdict"] == "tie"


def test_a_side_may_be_slower_than_its_estimate_but_not_without_end(tmp_path: Path) -> None:
    late = run_call(FakeMachine(titanrun=166), tmp_path, ["8b_s4096"], 900)
    assert late[0]["verdict"] == "FAILED: titanrun timeout in timed"
    done = run_call(FakeMachine(titanrun=164), tmp_path, ["8b_s4096"], 900)
    assert done[0]["verdict"] == "tie"


def test_ceilings_that_no_earlier_call_measured_are_measured_once(tmp_path: Path) -> None:
    machine = FakeMachine()
    rows = ["1b_s4096_float8_tensorwise", "1b_s4096_eager"]
    table = run_call(machine, tmp_path, rows, 900, toy=True)
    assert [found["row"] for found in table] == [rows[0], "1b_ceilings", rows[1]]
    assert all("ceiling_share" in table[number] for number in (0, 2))
    # ceilings of a row that was not measured are of no use
    none = run_call(FakeMachine(titanrun=999), tmp_path / "none", ["8b_s4096"], 2000, toy=True)
    assert [found["row"] for found in none] == ["8b_s4096"]


def test_a_call_takes_the_ceilings_of_an_earlier_one_on_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    monkeypatch.setattr("gpu.RESULTS", results)
    (results / "call1").mkdir(parents=True)
    earlier = {"row": "1b_ceilings", "side": "titanrun", "state": "done", "parts": PARTS}
    file = results / "call1" / "1b_ceilings-titanrun.json"

    def run(name: str, **values: Any) -> Any:
        write_json(file, earlier | {"seconds": 3.0} | CPU | values)
        return run_call(FakeMachine(), tmp_path / name, ["1b_s4096"], 900, toy=True)

    (same,) = run("same")
    assert same["ceiling_ms"] == pytest.approx(compute_ceiling(toy_row(ROWS["1b_s4096"]), PARTS))
    for name, other in (
        ("device", {"device_name": "NVIDIA H100"}),
        ("torch", {"torch": "2.0.0"}),
        ("unfinished", {"state": "unfinished"}),
    ):
        assert [found["row"] for found in run(name, **other)] == ["1b_s4096", "1b_ceilings"]


def test_a_row_that_ran_before_is_estimated_by_what_it_took(tmp_path: Path) -> None:
    for name in ("titanrun", "bare"):
        found = side(row="1b_s4096", side=name, seconds=50.0, **CPU)
        write_json(tmp_path / f"1b_s4096-{name}.json", found)
    (row,) = run_call(FakeMachine(), tmp_path, ["1b_s4096"], 100, toy=True)
    assert row["verdict"] == "not run: 100 s left, needs about 110 s"


def test_the_machine_is_known_without_torch() -> None:
    clocks = "name, driver_version\nNVIDIA H100 80GB HBM3, 570.86\n"
    assert read_machine(clocks, toy=False) == Machine("NVIDIA H100 80GB HBM3", torch.__version__)
    assert read_machine(clocks, toy=True) == Machine("cpu", torch.__version__)
    assert read_machine(None, toy=False).device is None


def test_a_void_row_cannot_be_overlooked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def differ(name: str, side_: str, *_: Any) -> dict[str, Any]:
        is_off = (name, side_) == ("8b_s4096", "bare")
        losses = [6.0, 5.6] if is_off else [6.0, 5.5]
        return side(row=name, side=side_, first_losses=losses, parts=PARTS)

    call = Call(options=Options(folder=tmp_path, budget=900, toy=True), run_side=differ)
    assert not gpu_report(call, ["1b_s4096", "8b_s4096"])
    void = "VOID: first losses differ by 0.0e+00, 1.8e-02"
    lines = capsys.readouterr().out.splitlines()
    # its figures are in no line, its verdict is in two and once more at the very end
    assert [line for line in lines if line.startswith("8b_s4096")] == [
        *2 * [f"{'8b_s4096':<28} {void}"],
        f"8b_s4096: {void}",
    ]
    assert lines[-2].endswith("DO NOT COUNT OR FAILED:") and lines[-1] == f"8b_s4096: {void}"
    assert f"| 8b_s4096 |  |  |  |  |  |  |  |  |  | **{void}** |" in build_call(tmp_path)


COMMAND = re.compile(r"`python tools/bench gpu ([^`]*)`")


def test_the_commands_of_the_documentation_are_those_of_the_program() -> None:
    commands = COMMAND.findall((ROOT / "docs" / "profiling.md").read_text())
    asked = [parse_options(["gpu", *command.split()]) for command in commands]
    assert [options.call for options in asked if options.call] == list(CALLS)
    assert all(list_rows(options) <= {*ROWS} for options in asked)
    # two rows of the page's own example
    assert len(list_rows(asked[-1])) == 2


def test_every_call_and_its_rows_are_in_the_order_of_value() -> None:
    for rows in CALLS.values():
        assert list(rows) == sorted(rows, key=list(ROWS).index)


def test_a_side_whose_time_is_over_in_its_profile_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "1b_s4096-bare.json"

    def stop(*_: Any) -> None:
        write_json(out, side(state="unfinished", phase=phase))

    monkeypatch.setattr("gpu.run_limited", stop)
    phase = "host"
    assert run_side("1b_s4096", "bare", tmp_path, 1, True)["host_share"] is None
    phase = "profile"
    found = run_side("1b_s4096", "bare", tmp_path, 1, True)
    assert found["state"] == "done" and found["profile_missing"] == "its time was over"
    phase = "timed"
    assert run_side("1b_s4096", "bare", tmp_path, 1, True)["state"] == "timeout in timed"


# what a bare machine lacks, or what takes seconds to import and is not for the runner
MISSING = """
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec

def find(name, *rest):
    return None if name.partition(".")[0] in {names} else find_spec(name, *rest)

PathFinder.find_spec = staticmethod(find)
"""


def lack_modules(folder: Path, *names: str) -> dict[str, str]:
    """Return an environment in which Python lacks modules."""
    (folder / "sitecustomize.py").write_text(MISSING.format(names=names))
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_an_unknown_row_is_told_at_once_with_the_names_of_all(tmp_path: Path) -> None:
    environment = lack_modules(tmp_path, "torch", "titanrun", "packaging", "pygls", "transformers")
    command = [sys.executable, str(BENCH), "gpu", "--rows", "1b_s4096,2b"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("no row 2b: the rows are 1b_s4096, ")
