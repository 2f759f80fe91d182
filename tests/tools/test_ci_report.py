"""The report at the end of CI fails for whatever did not run and is not on the list."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_one(): pass

@pytest.mark.skip(reason="no device")
def test_two(): pass

def test_three(): {third}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    return tmp_path / "parts"


def report(folder: Path, gaps: str) -> tuple[int, str]:
    (folder.parent / "gaps.txt").write_text(gaps)
    command = [sys.executable, "tools/ci_report.py", str(folder), str(folder.parent / "gaps.txt")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def record_session(folder: Path, third: str) -> None:
    """Run three tests in a session of their own that records its outcomes as CI does."""
    (folder.parent / "test_it.py").write_text(TESTS.format(third=third))
    program = (
        "import pytest, sys; from pathlib import Path; "
        "from tests.outcomes import OutcomeRecorder; "
        "pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir', sys.argv[1], sys.argv[1]], "
        "plugins=[OutcomeRecorder(Path(sys.argv[2]))])"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(folder.parent), str(folder / "unit.json")],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    (folder / "unit.status").write_text("passed\n")


def test_a_skipped_test_fails_ci_unless_it_is_listed(folder: Path) -> None:
    record_session(folder, "pass")
    code, text = report(folder, "")
    assert code == 1 and "NOT LISTED: test_it.py::test_two: skipped" in text, text
    code, text = report(folder, "test_it.py::test_two  # no device here\n")
    assert code == 0 and "2 passed, 1 skipped" in text, text


def test_a_test_that_did_not_finish_fails_ci_unless_it_is_listed(folder: Path) -> None:
    record_session(folder, "raise KeyboardInterrupt")
    listed = "test_it.py::test_two  # no device here\n"
    code, text = report(folder, listed)
    assert code == 1 and "NOT LISTED: test_it.py::test_three: unfinished" in text, text


def test_a_session_that_vanishes_with_exit_code_0_fails_ci(folder: Path) -> None:
    """Row D4 of the defect list: a test that replaced its process by a run left no record."""
    record_session(folder, "import os; os._exit(0)")
    code, text = report(folder, "test_it.py::test_two  # no device here\n")
    assert code == 1 and "NOT LISTED: test_it.py::test_three: unfinished" in text, text


def test_a_part_that_may_run_out_of_time_may_leave_tests_unfinished(folder: Path) -> None:
    record_session(folder, "raise KeyboardInterrupt")
    (folder / "unit.status").write_text("left out: out of time\n")
    listed = "test_it.py::test_two  # no device here\nunit  # as many as fit\n"
    code, text = report(folder, listed)
    assert code == 0 and "1 tests unfinished, the first: test_it.py::test_three" in text, text


def test_a_failed_test_cannot_be_listed(folder: Path) -> None:
    record_session(folder, "assert False")
    code, text = report(folder, "test_it.py::*  # everything\n")
    assert code == 1 and "NOT LISTED: test_it.py::test_three: failed" in text, text


def test_a_part_that_was_left_out_fails_ci_unless_it_is_listed(folder: Path) -> None:
    (folder / "browser.status").write_text("left out: no chromium\n")
    assert report(folder, "")[0] == 1
    assert report(folder, "browser  # no chromium\n")[0] == 0


def test_a_gap_needs_a_reason(folder: Path) -> None:
    code, text = report(folder, "browser\n")
    assert code != 0 and "no reason for browser" in text


def test_the_committed_list_names_tests_that_exist() -> None:
    gaps = (ROOT / ".ci" / "gaps.txt").read_text(encoding="utf-8").splitlines()
    files = {line.split("::")[0] for line in gaps if line.startswith("tests/") and "::" in line}
    assert files and all((ROOT / file).is_file() for file in files)
