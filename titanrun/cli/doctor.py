"""`titanrun doctor`: check this machine and its installation, with a shareable report.

It reports versions, devices, memory, disk and missing extras, and tries a training.
"""

import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from re import match
from typing import Any

from titanrun.cli.arguments import CommandParser
from titanrun.cli.color import style_text
from titanrun.cli.terminal import get_terminal_width, wrap_to_width
from titanrun.config.base import ComponentConfig
from titanrun.config.pluralize import pluralize
from titanrun.config.serialize import to_yaml
from titanrun.config.version import FULL_DISTRIBUTION, LIGHT_DISTRIBUTION
from titanrun.launch.host_info import (
    GIB,
    format_gib_or_unknown,
    get_free_disk_bytes,
    read_cpu_info,
    read_memory_info,
)
from titanrun.launch.torch_requirement import is_torch_installed
from titanrun.recipe.reference.schema_topics import get_topics
from titanrun.recipe.rundir.package_versions import is_installed

EXAMPLES = """  titanrun doctor
  titanrun doctor --no-training  skip the two training steps
  titanrun doctor --json"""
TIMEOUT_SECONDS = 300
# space for a checkpoint of a small model and the index of a small corpus
MIN_DISK_BYTES = GIB // 2
TOPIC_WIDTH = 15
WRONG = "WRONG: "
TRAINING = "training"
# module that verl's plug-in of titanrun names
VERL_BACKEND = "titanrun.integrations.verl.registered_engine"
TEXT_TOOLS_ONLY = "not installed: text tools only"
TOY_RECIPE = {
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
class DoctorFinding:
    """One line of the report.

    `wrong` marks findings that keep titanrun from working, `help` is the remedy, `device` the name
    of an accelerator.
    """

    topic: str
    text: str
    wrong: bool = False
    help: str | None = None
    device: str | None = None


def run(arguments: list[str]) -> int:
    """Return 0 if everything works, else 1."""
    parser = CommandParser(
        "doctor",
        "Check this machine and its installation, and whether titanrun can train here. The report "
        "contains no paths and no environment variables.",
        EXAMPLES,
    )
    parser.add_argument(
        "--no-training",
        action="store_true",
        help="skip the training of a toy model, which takes some seconds",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(arguments)
    findings = []
    for finding in iter_doctor_findings(should_train=not options.no_training):
        findings.append(finding)
        if options.quiet and not finding.wrong:
            continue
        if options.json:
            print(json.dumps(asdict(finding), ensure_ascii=False), flush=True)
        else:
            print(format_doctor_finding(finding), flush=True)
    wrong = sum(finding.wrong for finding in findings)
    if not options.json and (wrong or not options.quiet):
        conclusion = wrap_to_width(format_conclusion(findings), get_terminal_width())
        print(f"\n{style_text(conclusion, 'bad' if wrong else 'good')}")
    return 1 if wrong else 0


def format_doctor_finding(finding: DoctorFinding) -> str:
    """Format a finding on one line, with its help on the next."""
    hint = f"\n{'':<{TOPIC_WIDTH}}  help: {finding.help}" if finding.help else ""
    mark = WRONG if finding.wrong else ""
    text = wrap_to_width(
        f"{finding.topic:<{TOPIC_WIDTH}}  {mark}{finding.text}{hint}", get_terminal_width()
    )
    return text.replace(mark, style_text(mark, "bad"), 1) if mark else text


def format_conclusion(findings: list[DoctorFinding]) -> str:
    """Return one sentence: whether titanrun can train here, and on what."""
    wrong = sum(finding.wrong for finding in findings)
    if wrong:
        return f"not ready: {pluralize(wrong, 'problem')}, marked {WRONG.strip(': ')} above"
    if any(finding.text == TEXT_TOOLS_ONLY for finding in findings):
        return "ready for text work; training needs PyTorch"
    devices = [finding.device for finding in findings if finding.device]
    if not any(finding.topic == TRAINING for finding in findings):
        return "no problems found; without --no-training, doctor also tries a training"
    return f"ready: titanrun trains on this machine, on {devices[0] if devices else 'the CPU'}"


def iter_doctor_findings(*, should_train: bool) -> Iterator[DoctorFinding]:
    """Yield all findings, quick ones first."""
    yield DoctorFinding(
        "python",
        f"{platform.python_version()} on {platform.system()} {platform.release()} "
        f"{platform.machine()}",
    )
    yield from iter_package_findings()
    cpu = read_cpu_info()
    bf16 = (
        "unknown"
        if cpu.bf16 is None
        else f"yes ({', '.join(cpu.bf16)})"
        if cpu.bf16
        else "no: bfloat16 is emulated and slow"
    )
    yield DoctorFinding("cpu", f"{cpu.model}, {cpu.cores} usable cores; bf16 arithmetic: {bf16}")
    main = read_memory_info()
    limit = (
        f"; this container may use {format_gib_or_unknown(main.limit)}"
        if main.limit is not None
        else ""
    )
    yield DoctorFinding(
        "memory",
        f"{format_gib_or_unknown(main.total)}, {format_gib_or_unknown(main.available)} "
        f"available{limit}",
    )
    yield get_disk_finding("disk", "here", Path.cwd())
    yield get_disk_finding("temporary", "in the temporary folder", Path(tempfile.gettempdir()))
    yield from iter_extra_findings()
    if is_light_install():
        yield DoctorFinding(
            "torch", TEXT_TOOLS_ONLY, help=f"to train: pip install {FULL_DISTRIBUTION}"
        )
        return
    yield from iter_device_findings()
    yield from iter_verl_findings()
    if should_train:
        yield try_toy_training()


def iter_package_findings() -> Iterator[DoctorFinding]:
    """Yield the versions of titanrun and of the packages it needs."""
    installed = [name for name in (LIGHT_DISTRIBUTION, FULL_DISTRIBUTION) if has_metadata(name)]
    if not installed:
        help_text = f"pip install {FULL_DISTRIBUTION}"
        yield DoctorFinding(FULL_DISTRIBUTION, "not installed", wrong=True, help=help_text)
        return
    needed = [
        found[0]
        for name in installed
        for line in requires(name) or []
        if "extra ==" not in line and (found := match(r"[\w.-]+", line))
    ]
    for name in dict.fromkeys([*installed, *needed]):
        try:
            yield DoctorFinding(name, version(name))
        except PackageNotFoundError:
            yield DoctorFinding(
                name, "not installed", wrong=True, help="pip install titanrun installs it"
            )


def has_metadata(distribution: str) -> bool:
    """Return whether a distribution is installed."""
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def is_light_install() -> bool:
    """Return whether only the text tools were installed, and PyTorch is absent by intention."""
    return not (is_torch_installed() or has_metadata(FULL_DISTRIBUTION))


def get_disk_finding(topic: str, where: str, folder: Path) -> DoctorFinding:
    """Return the free space; too little for any run is an error."""
    free = get_free_disk_bytes(folder)
    too_little = free < MIN_DISK_BYTES
    return DoctorFinding(
        topic,
        f"{format_gib_or_unknown(free)} free {where}",
        wrong=too_little,
        help="free space, or train elsewhere" if too_little else None,
    )


def iter_extra_findings() -> Iterator[DoctorFinding]:
    """Yield the installation extras that components need. A missing one is not an error."""
    wanted: dict[str, list[str]] = {}
    for topic in get_topics():
        if issubclass(topic.config, ComponentConfig) and topic.config.extra is not None:
            wanted.setdefault(topic.config.extra, []).append(topic.title)
    for extra, components in wanted.items():
        missing = not is_installed(extra)
        hint = f'pip install "titanrun[{extra}]"' if missing else None
        yield DoctorFinding(
            f"[{extra}]",
            f"{'not installed' if missing else 'installed'}; for {', '.join(components)}",
            help=hint,
        )


def iter_device_findings() -> Iterator[DoctorFinding]:
    """Yield the findings of torch from a separate process.

    The command line never loads torch.
    """
    done = run_python("-m", "titanrun.worker.commands.doctor")
    if done.returncode != 0:
        yield DoctorFinding(
            "accelerators",
            f"torch does not load: {get_last_line(done.stderr)}",
            wrong=True,
            help="reinstall torch",
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
    cpu = f"CPU kernels: {found['cpu_capability']}, {pluralize(found['threads'], 'thread')}"
    yield DoctorFinding("torch build", f"{found['torch']}, {build}; {cpu}")
    for device in found["accelerators"]:
        bf16 = (
            ""
            if device["bf16"] is None
            else f"; bf16 arithmetic: {'yes' if device['bf16'] else 'no'}"
        )
        yield DoctorFinding(
            "accelerator",
            f"{device['name']} ({device['kind']}), "
            f"{format_gib_or_unknown(device['memory_bytes'])}{bf16}",
            device=device["name"],
        )
    if not found["accelerators"]:
        yield DoctorFinding("accelerator", "none: training runs on the CPU")


def run_python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run this interpreter in a separate process and return what it printed."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def iter_verl_findings() -> Iterator[DoctorFinding]:
    """Yield whether verl, if it is installed, can load the backend titanrun.

    verl itself says nothing when a plug-in does not load.
    """
    if not is_installed("verl"):
        return
    found = version("verl") if has_metadata("verl") else "of an unknown version"
    done = run_python("-c", f"import {VERL_BACKEND}")
    if done.returncode != 0:
        yield DoctorFinding(
            "verl",
            f"{found}; the backend titanrun does not load: {get_last_line(done.stderr)}",
            wrong=True,
            help="verl 0.9.1 was tried, with the versions that it requires",
        )
    elif all(point.value != VERL_BACKEND for point in entry_points(group="verl.plugins")):
        yield DoctorFinding(
            "verl",
            f"{found}; no entry point verl.plugins names the backend titanrun",
            wrong=True,
            help="reinstall titanrun",
        )
    else:
        yield DoctorFinding("verl", f"{found}; it finds the backend titanrun")


def try_toy_training() -> DoctorFinding:
    """Train a toy model for two steps through the public command and return the finding."""
    with tempfile.TemporaryDirectory(prefix="titanrun-doctor-") as name:
        folder = Path(name)
        recipe = folder / "doctor.yaml"
        recipe.write_text(
            to_yaml({**TOY_RECIPE, "dump_folder": str(folder / "run")}), encoding="utf-8"
        )
        start = time.monotonic()
        try:
            command = [sys.executable, "-m", "titanrun", "train", str(recipe)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired:
            return DoctorFinding(
                TRAINING,
                f"two steps of a toy model took longer than {TIMEOUT_SECONDS} s",
                wrong=True,
            )
        seconds = time.monotonic() - start
        if done.returncode == 0:
            return DoctorFinding(
                TRAINING, f"two steps of a toy model work, in {seconds:.1f} s from start to end"
            )
        said = get_error_line(done.stderr).replace(name, "<temporary folder>")
        return DoctorFinding(
            TRAINING,
            f"two steps of a toy model fail with exit code {done.returncode}: {said}",
            wrong=True,
        )


def get_error_line(text: str) -> str:
    """Return the line with the error message, else the last one."""
    return next(
        (line for line in text.splitlines() if line.startswith("error[")), get_last_line(text)
    )


def get_last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word")
