"""Record of what a pytest session ran: tests collected, passed, failed, skipped and unfinished.

`TITANRUN_TEST_OUTCOMES=FILE pytest ...` writes it as JSON; `tools/ci_report.py` reads it. With
pytest-xdist the main process collects the reports of its workers.
"""

import json
from pathlib import Path
from typing import Any

import pytest

# a file whose tests have no recorded duration counts as this long
UNKNOWN_SECONDS = 10.0
DURATIONS = Path(__file__).with_name("durations.json")


class OutcomeRecorder:
    """Collects the outcome of each test and writes them when the session ends.

    Before that the record has every test as unfinished: a session may end without a word.
    """

    def __init__(self, path: Path) -> None:
        """Record into `path`."""
        self.path = path
        self.collected: set[str] = set()
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the collected tests of a session without workers."""
        self.collected.update(item.nodeid for item in session.items)
        self.write()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Note the collected tests of a session with workers."""
        self.collected.update(ids)
        self.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of one phase of a test; a failure in any phase wins."""
        name = report.nodeid
        self.seconds[name] = self.seconds.get(name, 0.0) + report.duration
        if report.failed:
            self.outcomes[name] = "failed"
        elif report.skipped:
            self.outcomes[name] = "skipped"
            detail = report.longrepr
            self.reasons[name] = detail[2] if isinstance(detail, tuple) else str(detail)
        elif report.when == "teardown":
            self.outcomes.setdefault(name, "passed")

    def pytest_sessionfinish(self) -> None:
        """Write the outcomes."""
        self.write()

    def write(self) -> None:
        """Write the record as it is."""
        unfinished = sorted(self.collected - self.outcomes.keys())
        record = {
            "outcomes": dict(sorted(self.outcomes.items())),
            "skipped": {name: self.reasons[name] for name in sorted(self.reasons)},
            "unfinished": unfinished,
            "seconds": {name: round(value, 2) for name, value in sorted(self.seconds.items())},
        }
        self.path.write_text(json.dumps(record, indent=0), encoding="utf-8")


def sort_longest_file_first(items: list[pytest.Item]) -> None:
    """Sort tests in place so that the files that take longest start first.

    The durations are those that `tools/ci_report.py --durations` recorded. The tests of a file keep
    their order.
    """
    durations: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -durations.get(item.nodeid.split("::")[0], UNKNOWN_SECONDS))
