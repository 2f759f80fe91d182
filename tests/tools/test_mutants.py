"""What tools/mutants.py changes, and which tests it runs."""

import ast
import json
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from called_functions import FileOfCalls, name_record  # noqa: E402
from forked_pytest import Job, Limits, Result, run_in_forks  # noqa: E402
from mutant_changes import iter_changes, iter_nodes  # noqa: E402
from mutant_session import Trial, apply_trial  # noqa: E402
from mutants import (  # noqa: E402
    Mutant,
    choose_mutants,
    copy_repository,
    describe_end,
    describe_score,
    is_near,
    limit_tests,
    measure_score,
    select_tests,
)

SOURCE = """
@dataclass(frozen=True)
class Box:
    size: int = 1

    def grow(self, by=2):
        def inner():
            return by + 3
        return [one for one in zip(self, inner(), strict=True) if one > 4]
"""


def test_each_change_knows_the_function_in_which_it_runs() -> None:
    found = {
        (ast.unparse(target), text, function)
        for node, function in iter_nodes(ast.parse(SOURCE), "", None)
        for target, text in iter_changes(node)
    }
    assert found == {
        ("1", "2", None),
        ("2", "3", None),
        ("by + 3", "(by - 3)", "Box.grow.<locals>.inner"),
        ("3", "4", "Box.grow.<locals>.inner"),
        ("one > 4", "(one >= 4)", "Box.grow"),
        ("4", "5", "Box.grow"),
    }


def test_the_copy_has_every_module_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compileall.compile_dir", lambda *_, **__: True)
    copy = copy_repository(tmp_path / "copy")
    for folder in ("titanrun", "tests"):
        modules = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py")}
        assert {path.relative_to(copy) for path in (copy / folder).rglob("*.py")} == modules


def test_a_line_gives_all_its_mutants_and_a_group_as_many_as_asked() -> None:
    file = "titanrun/distributed/grad_norm.py"
    assert len(choose_mutants([file], 5, seed=0)) == 5
    assert choose_mutants([file], 5, seed=0) == choose_mutants([file], 5, seed=0)
    line = choose_mutants([file], 1, seed=0)[0].line
    of_line = choose_mutants([f"{file}:{line}"], 0, seed=0)
    assert of_line and {mutant.line for mutant in of_line} == {line}


def test_tests_that_call_a_function_or_start_processes_meet_its_mutants() -> None:
    record = FileOfCalls(
        {"a.py:f": ["t.py::one"], "a.py:g": ["t.py"]},
        {"t.py::one": 1.0, "t.py::two": 1.0, "t.py::three": 1.0},
        ["t.py::three"],
    )
    assert record.get_tests("a.py:f") == ["t.py::one", "t.py::three"]
    # fixtures call it: whoever uses them may notice
    assert record.get_tests("a.py:g") == ["t.py::one", "t.py::two", "t.py::three"]
    assert record.get_tests("a.py:h") == ["t.py::three"]
    assert record.get_tests(None) == list(record.seconds)


def test_a_killed_mutant_names_the_test_that_failed() -> None:
    output = "F\n= short test summary info =\nFAILED tests/a.py::test_b[c-d] - assert 0\n"
    assert describe_end(Result("1", 1, output)) == "killed by tests/a.py::test_b[c-d]"
    assert describe_end(Result("1", -11, "")) == "killed by exit code -11"
    assert describe_end(Result("1", 0, "")) == "survived"
    # else a record of tests that are gone would kill every mutant
    with pytest.raises(RuntimeError, match="test_gone"):
        describe_end(Result("1", 4, "ERROR: not found: a.py::test_gone\n"))


def test_a_timeout_is_no_verdict_and_its_count_is_shown() -> None:
    timeout = describe_end(Result("1", None, ""))
    assert timeout == "no verdict: timeout"
    ends = [*["killed by tests/a.py::test_b"] * 9, "survived", timeout, timeout]
    assert measure_score(ends) == 0.9
    assert describe_score(ends) == (
        "NO VERDICT on 2 of 12 mutants, which the score leaves out: timeout\n"
        "90.0% of 10 mutants killed"
    )
    assert describe_score(ends[:10]) == "90.0% of 10 mutants killed"
    # nothing was measured
    assert measure_score([timeout]) == 0


@pytest.mark.parametrize("running", ["while True: pass", "import time; time.sleep(600)"])
def test_a_job_that_takes_too_long_has_no_exit_code(running: str) -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=600 if "while" in running else 0)
    jobs = [
        Job("long", lambda: exec(running), limits),
        Job("fault", lambda: os.kill(os.getpid(), signal.SIGTERM)),
        Job("short", lambda: 0, Limits(cpu_seconds=600, wall_seconds=600)),
    ]
    codes = {result.name: result.exit_code for result in run_in_forks(jobs)}
    assert codes == {"long": None, "fault": -signal.SIGTERM, "short": 0}


def test_tests_may_take_many_times_what_they_took_without_a_mutant(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("")
    record = FileOfCalls(
        {"a.py:f": ["t.py::one", "t.py::two", "t.py::long"]},
        {"t.py::one": 10.0, "t.py::two": 20.0, "t.py::long": 100.0, "t.py::starts": 1.0},
        ["t.py::starts"],
        {"t.py::one": 40.0, "t.py::two": 50.0, "t.py::long": 100.0, "t.py::starts": 300.0},
    )
    values = [getattr(record, one.name) for one in fields(record)]
    (tmp_path / name_record(tmp_path, "t.py")).write_text(json.dumps(values))
    mutant = Mutant(Path("a.py"), 1, 0, 1, "1", "2", "f", ("t.py",))
    inside = select_tests(mutant, tmp_path, tmp_path, 60, with_processes=False)
    assert inside == (["t.py::one", "t.py::two"], limit_tests(30, 90))
    assert inside[1].cpu_seconds >= 2 * 30 and inside[1].wall_seconds >= 10 * 90
    everything = select_tests(mutant, tmp_path, tmp_path, 200)
    assert everything == (
        ["t.py::one", "t.py::two", "t.py::long", "t.py::starts"],
        limit_tests(131, 490),
    )


def test_tests_near_a_mutant_run_even_if_they_start_processes(tmp_path: Path) -> None:
    seconds = {"test_a.py::starts": 50.0, "t.py::starts": 1, "t.py::fast": 5, "t.py::slow": 20}
    for file in ("test_a.py", "t.py"):
        own = {test: time for test, time in seconds.items() if test.startswith(file)}
        starts = [test for test in own if "starts" in test]
        values = [{"a.py:grow": list(own)}, own, starts, own]
        (tmp_path / file).write_text(file)
        (tmp_path / name_record(tmp_path, file)).write_text(json.dumps(values))
    mutant = Mutant(Path("a.py"), 1, 0, 1, "1", "2", "grow", ("test_a.py", "t.py"))
    for limit, expected in (
        (60, ["test_a.py::starts", "t.py::fast"]),
        (80, ["test_a.py::starts", "t.py::fast", "t.py::slow", "t.py::starts"]),
    ):
        assert select_tests(mutant, tmp_path, tmp_path, limit)[0] == expected


@pytest.mark.parametrize(
    ("test", "near"),
    [
        ("tests/problems/test_golden.py::test_text[steps-fit]", True),
        ("tests/recipe/rules/test_schedule.py::test_other", True),
        ("tests/recipe/rules/test_schedules.py::test_other", False),
        ("tests/problems/test_golden.py::test_text[heads-fit]", False),
    ],
)
def test_tests_named_after_a_function_or_its_module_meet_its_mutants_first(
    test: str, near: bool
) -> None:
    file = Path("titanrun/recipe/rules/schedule.py")
    assert is_near(Mutant(file, 1, 0, 1, "1", "2", "steps_fit", ()), test) == near


def test_a_change_reaches_methods_that_are_imported_already(tmp_path: Path) -> None:
    file = tmp_path / "box.py"
    file.write_text("class Box:\n    @property\n    def size(self):\n        return 1\n")
    module = ModuleType("box")
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    box = module.Box()
    changed = file.read_bytes().replace(b"1", b"2")
    apply_trial(Trial("0", file, "Box.size", changed, [], Limits(1, 1)))
    assert (box.size, file.read_bytes()) == (2, changed)
