"""`titanrun doctor`: versions, devices, memory, disk, missing extras, and whether training works here; made to be pasted."""

import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from re import match
from typing import Any

from titanrun.cli.arguments import Parser
from titanrun.cli.terminal import columns, fitted
from titanrun.config.base import ComponentConfig
from titanrun.config.counted import counted
from titanrun.config.emit import emit
from titanrun.launch.machine import GIB, free_disk, in_gib, memory, processor
from titanrun.recipe.installed import is_installed
from titanrun.recipe.topics import topics

EXAMPLES = """  titanrun doctor
  titanrun doctor --no-training      without the two steps of training
  titanrun doctor --json"""
TIMEOUT_SECONDS = 300
# a checkpoint of a small model and the index of a small corpus
LEAST_DISK = GIB // 2
WIDTH = 16
TOY = {
    "version": 1,
    "name": "doctor",
    "model": {
        "name": "llama3",
        "vocab_size": 2048,
        "dim": 16,
        "n_layers": 1,
        "n_heads": 2,
        "feed_forward": {"multiple_of": 16},
    },
    "training": {
        "dataset": "tiny",
        "local_batch_size": 2,
        "seq_len": 32,
        "steps": 2,
        "mixed_precision_param": "float32",
    },
    "metrics": {"log_freq": 1},
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `wrong` marks what keeps titanrun from working, `help` what to do about it."""

    topic: str
    text: str
    wrong: bool = False
    help: str | None = None


def run(arguments: list[str]) -> int:
    """0: everything works; 1: something is wrong."""
    parser = Parser(
        "doctor",
        "What titanrun finds on this machine, and whether it can train here. No paths, no environment variables.",
        EXAMPLES,
    )
    parser.add_argument(
        "--no-training",
        action="store_true",
        help="leave out the training of a toy model, which takes some seconds",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    wrong = 0
    for finding in findings(trains=not options.no_training):
        wrong += finding.wrong
        if options.quiet and not finding.wrong:
            continue
        if options.json:
            print(json.dumps(asdict(finding), ensure_ascii=False), flush=True)
        else:
            print(fitted(as_text(finding), columns()), flush=True)
    if not options.json and (wrong or not options.quiet):
        print(
            f"\n{wrong} {'thing is' if wrong == 1 else 'things are'} wrong"
            if wrong
            else "\nnothing is wrong"
        )
    return 1 if wrong else 0


def as_text(finding: Finding) -> str:
    """A finding on one line, its help on the next."""
    help = f"\n{'':<{WIDTH}} help: {finding.help}" if finding.help else ""
    return f"{finding.topic:<{WIDTH}} {'WRONG: ' if finding.wrong else ''}{finding.text}{help}"


def findings(*, trains: bool) -> Iterator[Finding]:
    """All findings, quick ones first."""
    yield Finding(
        "python",
        f"{platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}",
    )
    yield from packages()
    cpu = processor()
    bf16 = (
        "unknown"
        if cpu.bf16 is None
        else f"yes ({', '.join(cpu.bf16)})"
        if cpu.bf16
        else "no: bfloat16 is emulated, and slow"
    )
    yield Finding("cpu", f"{cpu.model}, {cpu.cores} usable cores; bf16 arithmetic: {bf16}")
    main = memory()
    limit = f"; this container may use {in_gib(main.limit)}" if main.limit is not None else ""
    yield Finding("memory", f"{in_gib(main.total)}, {in_gib(main.available)} available{limit}")
    yield disk("disk", "here", Path.cwd())
    yield disk("temporary", "in the temporary folder", Path(tempfile.gettempdir()))
    yield from extras()
    yield from devices()
    if trains:
        yield training()


def packages() -> Iterator[Finding]:
    """Versions of titanrun and of the packages it needs."""
    try:
        needed = [
            found[0]
            for line in requires("titanrun") or []
            if "extra ==" not in line and (found := match(r"[\w.-]+", line))
        ]
    except PackageNotFoundError:
        yield Finding("titanrun", "not installed", wrong=True, help="pip install titanrun")
        return
    for name in ("titanrun", *needed):
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            yield Finding(
                name, "not installed", wrong=True, help="pip install titanrun installs it"
            )


def disk(topic: str, where: str, folder: Path) -> Finding:
    """Free space; too little for any run is wrong."""
    free = free_disk(folder)
    too_little = free < LEAST_DISK
    return Finding(
        topic,
        f"{in_gib(free)} free {where}",
        wrong=too_little,
        help="make room, or train elsewhere" if too_little else None,
    )


def extras() -> Iterator[Finding]:
    """The installation extras that components need; a missing one is not wrong, it only is not there."""
    wanted: dict[str, list[str]] = {}
    for topic in topics():
        if issubclass(topic.config, ComponentConfig) and topic.config.extra is not None:
            wanted.setdefault(topic.config.extra, []).append(topic.title)
    for extra, components in wanted.items():
        missing = not is_installed(extra)
        help = f'pip install "titanrun[{extra}]"' if missing else None
        yield Finding(
            f"[{extra}]",
            f"{'not installed' if missing else 'installed'}; for {', '.join(components)}",
            help=help,
        )


def devices() -> Iterator[Finding]:
    """What torch finds, asked in a process of its own: the command line never loads torch."""
    done = subprocess.run(
        [sys.executable, "-m", "titanrun.worker.doctor"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        yield Finding(
            "accelerators",
            f"torch does not load: {last_line(done.stderr)}",
            wrong=True,
            help="install torch again",
        )
        return
    found: dict[str, Any] = json.loads(done.stdout)
    build = (
        f"CUDA {found['cuda']}"
        if found["cuda"]
        else f"ROCm {found['rocm']}"
        if found["rocm"]
        else "CPU only"
    )
    cpu = f"CPU kernels: {found['cpu_capability']}, {counted(found['threads'], 'thread')}"
    yield Finding("torch build", f"{found['torch']}, {build}; {cpu}")
    for device in found["accelerators"]:
        bf16 = (
            ""
            if device["bf16"] is None
            else f"; bf16 arithmetic: {'yes' if device['bf16'] else 'no'}"
        )
        yield Finding(
            "accelerator",
            f"{device['name']} ({device['kind']}), {in_gib(device['memory_bytes'])}{bf16}",
        )
    if not found["accelerators"]:
        yield Finding("accelerator", "none: training runs on the CPU")


def training() -> Finding:
    """Whether two steps of a toy model work, through the same command that users start."""
    with tempfile.TemporaryDirectory(prefix="titanrun-doctor-") as name:
        folder = Path(name)
        recipe = folder / "doctor.yaml"
        recipe.write_text(emit({**TOY, "dump_folder": str(folder / "run")}), encoding="utf-8")
        start = time.monotonic()
        try:
            command = [sys.executable, "-m", "titanrun", "train", str(recipe)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired:
            return Finding(
                "training",
                f"two steps of a toy model take longer than {TIMEOUT_SECONDS} s",
                wrong=True,
            )
        seconds = time.monotonic() - start
        if done.returncode == 0:
            return Finding(
                "training", f"two steps of a toy model work, in {seconds:.1f} s from start to end"
            )
        said = first_error(done.stderr).replace(name, "<temporary folder>")
        return Finding(
            "training",
            f"two steps of a toy model fail with exit code {done.returncode}: {said}",
            wrong=True,
        )


def first_error(text: str) -> str:
    """The line that says what went wrong, else the last one."""
    return next((line for line in text.splitlines() if line.startswith("error[")), last_line(text))


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word")
