"""The tests of a GPU end in time, and leave their results as XML whatever happens."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from run_gpu_tests import EXIT_TIMED_OUT, TOPICS, add_error, main, run_within  # noqa: E402

SLEEPS = """
import signal
import time
import pytest

def test_quick(): pass

def test_slow():
    {before}
    time.sleep(300)
"""


def read_cases(results: Path) -> dict[str, str]:
    """What each test ended with: the first element below it, or nothing."""
    cases = ElementTree.parse(results).iter("testcase")
    return {str(case.get("name")): next((child.tag for child in case), "") for case in cases}


def test_every_file_of_tests_is_run() -> None:
    files = {path.name for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert {f"test_{topic}.py" for topic in TOPICS} == files - {"test_catalogue.py"}


def test_the_tests_of_the_cpu_pass_through_it(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text("of an earlier session")
    assert main([str(results), "--marker", "not gpu", "--", "-k", "test_finds_the_gpu"]) == 0
    assert read_cases(results) == {"test_finds_the_gpu[cpu]": ""}


def test_without_a_gpu_it_says_that_nothing_ran(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/run_gpu_tests.py", tmp_path / "results.xml"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "selected tests can run here: each needs 1 GPU" in done.stdout + done.stderr
    assert read_cases(tmp_path / "results.xml") == {}


@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGINT, signal.SIG_IGN)"])
def test_a_session_that_takes_too_long_is_ended(
    before: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, results = tmp_path / "test_slow.py", tmp_path / "results.xml"
    file.write_text(SLEEPS.format(before=before))
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider"]
    code = run_within(
        [*command, str(file), f"--junit-xml={results}"], results, seconds=3.0, grace=2.0
    )
    assert code == EXIT_TIMED_OUT
    assert read_cases(results)["time_limit"] == "error"
    assert "the limit of 3 seconds is over" in capfd.readouterr().err


def test_an_error_is_counted_beside_what_was_run(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text(
        '<testsuites><testsuite errors="0" failures="1" tests="2"><testcase name="a" />'
        '<testcase name="b"><failure /></testcase></testsuite></testsuites>'
    )
    add_error(results, "too late")
    assert read_cases(results) == {"a": "", "b": "failure", "time_limit": "error"}
    suite = ElementTree.parse(results).find("testsuite")
    assert suite is not None and suite.attrib == {"errors": "1", "failures": "1", "tests": "3"}
