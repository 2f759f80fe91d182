"""Run the tests that need a GPU, within a time limit, with their results as JUnit XML.

    run_gpu_tests.py RESULTS.xml                       on one GPU, 120 seconds
    run_gpu_tests.py RESULTS.xml --marker multi_gpu    on several
    run_gpu_tests.py RESULTS.xml --seconds 300 -- -k attention --maxfail 100

It needs pytest, and of titanrun only what a run needs. The first failure ends the session. Return
pytest's exit code: 5 if nothing could run, because torch finds no GPU. Return 124 if the time ran
out; RESULTS.xml has then what was run before, and an error that says so.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
# pytest reports what it has after an interrupt; a kernel that hangs does not let it
GRACE_SECONDS = 10.0
EXIT_TIMED_OUT = 124
# what the time limit cuts off is what compiles: it takes most of the time
TOPICS = (
    *("device", "precision", "loss", "optimizers", "experts", "steps", "checkpoints"),
    *("attention", "compile", "multi_gpu"),
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, metavar="RESULTS.xml")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--marker", default="gpu")
    # what follows -- is for pytest
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    results = options.results.absolute()
    results.unlink(missing_ok=True)
    command = build_command(options.marker, results, arguments[end + 1 :])
    return run_within(command, results, seconds=options.seconds)


def build_command(marker: str, results: Path, rest: Sequence[str]) -> list[str]:
    """Build pytest's command."""
    return [
        *(sys.executable, "-m", "pytest", "-m", marker),
        *(f"tests/gpu/test_{topic}.py" for topic in TOPICS),
        # the other tests' fixtures need more packages, and pytest-timeout may be missing, too
        *("--confcutdir", "tests/gpu", "-W", "default::pytest.PytestConfigWarning"),
        *("-x", "--durations=10", "-rs", "-p", "no:cacheprovider"),
        f"--junit-xml={results}",
        *rest,
    ]


def run_within(
    command: Sequence[str], results: Path, *, seconds: float, grace: float = GRACE_SECONDS
) -> int:
    """Run pytest and return its exit code, or that of a time limit."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    finally:
        kill_group(process)
    message = f"the limit of {seconds:g} seconds is over: the tests that follow were not run"
    sys.stderr.write(f"\n{message}\n")
    add_error(results, message)
    return EXIT_TIMED_OUT


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End pytest and what its tests started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def add_error(results: Path, message: str) -> None:
    """Add an error to the results, which may not be there."""
    try:
        tree = ElementTree.parse(results)
    except (FileNotFoundError, ElementTree.ParseError):
        tree = ElementTree.ElementTree(ElementTree.Element("testsuites"))
    root = tree.getroot()
    suite = root.find("testsuite")
    if suite is None:
        suite = ElementTree.SubElement(root, "testsuite", name="pytest")
    for count in ("tests", "errors"):
        suite.set(count, str(int(suite.get(count, "0")) + 1))
    case = ElementTree.SubElement(suite, "testcase", classname="tools", name="time_limit")
    ElementTree.SubElement(case, "error", message=message)
    tree.write(results, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
