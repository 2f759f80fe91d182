"""Ignore one setting after the other, and tell which tests do not notice.

The tests are those in tests/recipe/leaves.yaml.

python tools/try_leaves.py                      # all of them; a few seconds each
python tools/try_leaves.py optimizer:adamw.lr   # these
"""

import os
import subprocess
import sys
from pathlib import Path

from recipe_leaves import NOT_BUILT, Leaf, leaves, table

TOOLS = Path(__file__).parent
ROOT = TOOLS.parent
# pytest's exit codes: a test failed, or broke where it was collected
TESTS_FAILED = 1
# a length that is ignored makes a run of ten thousand steps
TOO_LONG_SECONDS = 120


def main(names: list[str]) -> int:
    """Exit code 1 where a test passes though its setting is ignored."""
    tests = table()
    tried = [
        leaves()[name]
        for name in names or leaves()
        if tests[name] != NOT_BUILT and leaves()[name].has_a_choice
    ]
    blind = [leaf.name for leaf in tried if not notices(leaf, tests[leaf.name])]
    print(
        f"{len(tried) - len(blind)} of {len(tried)} settings are missed by their test when they "
        f"are ignored"
    )
    return 1 if blind else 0


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
