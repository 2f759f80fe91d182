"""Validates files one by one under limits or under watch, in a process of its own; prints one JSON
object a file.

python hostile_driver.py limits CPU_SECONDS MEGABYTES FILE...    each in a forked child with these
limits on top of what it has
python hostile_driver.py watch FILE...                           all in one process, with what they
opened, started and imported
"""

import contextlib
import io
import json
import os
import resource
import sys
import time
from pathlib import Path

from titanrun.cli import main
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.reference.schema_topics import get_topics

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    "subprocess.",
    "socket.",
    "pty.",
    "ctypes.",
    "shutil.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.startfile",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.putenv",
    "urllib.",
)


def validated(file: str) -> dict[str, object]:
    """Exit code and text of one validation in this process."""
    told = io.StringIO()
    before = time.process_time()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
        code = main.run(["validate", file])
    return {
        "file": file,
        "code": code,
        "told": told.getvalue()[:2000],
        "seconds": time.process_time() - before,
    }


def limited(file: str, cpu_seconds: int, megabytes: int) -> dict[str, object]:
    """The same in a child that is killed beyond the limits."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20,) * 2)
        spent = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (spent + cpu_seconds,) * 2)
        os.write(writing, json.dumps(validated(file)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return (
        json.loads(answer)
        if answer
        else {"file": file, "code": None, "told": f"killed, status {status}"}
    )


def watched(files: list[str]) -> None:
    """All of them, with the events that a validation must not cause."""
    get_topics()
    validated(files[0])
    events: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            events.append(f"open for writing: {arguments[0]}")
        elif event == "import":
            events.append(f"import: {arguments[0]}")
        elif event.startswith(FORBIDDEN):
            events.append(f"{event}: {arguments[0]!r}")

    sys.addaudithook(note)
    for file in files:
        del events[:]
        outcome = validated(file)
        print(json.dumps({**outcome, "events": list(events)}))


if sys.argv[1] == "watch":
    watched(sys.argv[2:])
else:
    get_topics()
    validated(
        str(shipped_recipes.list_shipped_recipes()[0].path)
    )  # so that a child pays for its own file only
    for name in sys.argv[4:]:
        print(json.dumps(limited(name, int(sys.argv[2]), int(sys.argv[3]))), flush=True)
