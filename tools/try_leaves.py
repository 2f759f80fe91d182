"""Ignore one setting after the other, and tell which tests do not notice.

The tests are those in tests/recipe/leaves.yaml.

python tools/try_leaves.py --all                # a few seconds each: an hour on two cores
python tools/try_leaves.py --rotating 10        # every tenth, others with every commit
python tools/try_leaves.py optimizer:adamw.lr   # these
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recipe_leaves import NOT_BUILT, Leaf, leaves, table

TOOLS = Path(__file__).parent
ROOT = TOOLS.parent
# pytest's exit codes: a test failed, or broke where it was collected
TESTS_FAILED = 1
# a length that is ignored makes a run of ten thousand steps
TOO_LONG_SECONDS = 120
# tests run at the same time
NUM_PROCESSES = 2


def main(arguments: list[str]) -> int:
    """Exit code 1 where a test passes though its setting is ignored."""
    tests = table()
    names = select_names(arguments, [name for name in leaves() if tests[name] != NOT_BUILT])
    tried = [leaves()[name] for name in names if leaves()[name].has_a_choice]
    with ThreadPoolExecutor(NUM_PROCESSES) as pool:
        noticed = list(pool.map(lambda leaf: notices(leaf, tests[leaf.name]), tried))
    blind = [leaf for leaf, seen in zip(tried, noticed, strict=True) if not seen]
    print(
        f"{len(tried) - len(blind)} of {len(tried)} settings are missed by their test when they "
        f"are ignored"
    )
    return 1 if blind else 0


def select_names(arguments: list[str], built: list[str]) -> list[str]:
    """Return the names of the settings that the command line asks for."""
    match arguments:
        case ["--all"]:
            return built
        case ["--rotating", count]:
            done = subprocess.run(
                ["git", "rev-list", "--count", "HEAD"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            # a copy without a history always tries the first share
            return built[int(done.stdout or 0) % int(count) :: int(count)]
        case []:
            raise SystemExit(__doc__)
        case names:
            return names


def notices(leaf: Leaf, test: str) -> bool:
    """Whether the test fails while the setting is ignored."""
    paths = [str(TOOLS / "ignoring"), str(TOOLS), str(ROOT)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TITANRUN_IGNORED": leaf.name,
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        f"tests/{test}",
    ]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TOO_LONG_SECONDS,
        )
    except subprocess.TimeoutExpired:
        print(f"{leaf.name}: {test}: does not end, which counts as noticed", flush=True)
        return True
    if done.returncode == TESTS_FAILED:
        return True
    reason = (
        "the test passes"
        if done.returncode == 0
        else f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
    print(f"{leaf.name}: {test}: {reason}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
