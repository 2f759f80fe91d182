"""What holds for every test: one thread, since the models are tiny and the machine is shared; the same examples in every run.

`pytest --hypothesis-profile=default` draws new ones.
"""

import os

import hypothesis
import pytest

from tests.models.proofs import Passed

os.environ.setdefault("OMP_NUM_THREADS", "1")
hypothesis.settings.register_profile("same", derandomize=True, database=None, print_blob=True, deadline=None)
hypothesis.settings.load_profile("same")


class Proofs:
    """Keeps what proves the cells of docs/models.md."""

    def __init__(self) -> None:
        self.passed = Passed()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.passed.hear(report.nodeid, passed=report.passed)

    def pytest_sessionfinish(self) -> None:
        self.passed.write()


def pytest_configure(config: pytest.Config) -> None:
    """TITANRUN_WRITE_FAMILIES=1 keeps what passed in tests/models/results.json."""
    if os.environ.get("TITANRUN_WRITE_FAMILIES"):
        config.pluginmanager.register(Proofs())
