"""What holds for every test: one thread, since the models are tiny and the machine is shared; the
same examples in every run.

`pytest --hypothesis-profile=default` draws new ones.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.integrations import proofs as engines
from tests.models import proofs as families
from tests.outcomes import OutcomeRecorder, sort_longest_file_first
from tests.sizes import split_by_size
from titanrun.config.trust import TRUST_VARIABLE
from titanrun.recipe.plugin_files import PLACES_VARIABLE

os.environ.setdefault("OMP_NUM_THREADS", "1")
# a quarter of the time of a collection goes into looking for garbage among what stays
gc.disable()
hypothesis.settings.register_profile(
    "same", derandomize=True, database=None, print_blob=True, deadline=None
)
hypothesis.settings.load_profile("same")


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-k "[B9]"` runs what proves row B9 of docs/training_engine.md."""
    item.extra_keyword_matches.update(f"[{name}]" for name in engines.rows_of(item.nodeid))


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Consent that a test gives is not remembered for the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def forgotten_variables() -> Iterator[None]:
    """What a command tells the processes that it starts does not reach the next test."""
    before = {name: os.environ.get(name) for name in (TRUST_VARIABLE, PLACES_VARIABLE)}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def pytest_collection_finish() -> None:
    """What was collected and imported stays until the end: no later search looks at it."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def default_hangup() -> None:
    """Under nohup, processes would ignore SIGHUP, and those that tests start would, too."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def own_process() -> Iterator[None]:
    """A test that replaced its process by a run would end all tests, with the run's exit code."""

    def refuse(*arguments: Any) -> None:
        pytest.fail(f"it would replace the process of the tests: {arguments[:2]}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execve", refuse)
        yield


class Proofs:
    """Keeps what proves the cells of docs/models.md and the rows of docs/training_engine.md."""

    def __init__(self) -> None:
        cells = (proof for proofs in families.PROOFS.values() for proof in proofs.values())
        rows = (test for row in engines.ROWWISE.values() for test in row.tests)
        self.kept = [
            families.Passed(cells, families.RESULTS),
            families.Passed(rows, engines.RESULTS),
        ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed_origins:
            for passed in self.kept:
                passed.observe(report.nodeid, passed=report.passed)

    def pytest_sessionfinish(self) -> None:
        for passed in self.kept:
            passed.write()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--size`; without it, tests of both sizes run."""
    parser.addoption("--size", choices=["small", "medium"], help="see tests/medium_tests.txt")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the files that take longest: the last ones then end at about the same time."""
    size = config.getoption("--size")
    if size:
        medium, small = split_by_size(items)
        items[:], others = (small, medium) if size == "small" else (medium, small)
        config.hook.pytest_deselected(items=others)
    sort_longest_file_first(items)


def pytest_configure(config: pytest.Config) -> None:
    """TITANRUN_WRITE_FAMILIES=1 keeps what passed in the results.json of tests/models and
    tests/integrations; TITANRUN_TEST_OUTCOMES=FILE keeps what was run in FILE."""
    # processes that tests start are not part of this record
    outcomes = os.environ.pop("TITANRUN_TEST_OUTCOMES", None)
    if outcomes:
        config.pluginmanager.register(OutcomeRecorder(Path(outcomes)))
    if os.environ.get("TITANRUN_WRITE_FAMILIES"):
        config.pluginmanager.register(Proofs())
