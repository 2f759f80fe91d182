"""Documentation of the exit codes, as the page docs/exit_codes.md."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from titanrun.config.exit_codes import (
    EXIT_CHECKPOINT,
    EXIT_DATA,
    EXIT_DIFFERS,
    EXIT_FINISHED,
    EXIT_HANG,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_KILLED,
    EXIT_NO_QUORUM,
    EXIT_NON_FINITE,
    EXIT_OUT_OF_SPACE,
    EXIT_PREEMPTED,
    EXIT_STOPPED_EARLY,
    EXIT_TERMINATED,
    EXIT_USAGE,
    LASTING_EXIT_CODES,
)
from titanrun.config.problems import EXIT_CODES
from titanrun.config.suggest import format_word_list

HEAD = """\
# Exit codes

What the exit code of a `titanrun` command means, and what to do about it.

`status.json` in a run directory has the exit code of the run; with several processes, it is that of
the rank that failed first. After {lasting} another start ends in the same way, so
that neither `launch.max_restarts` nor jobs on clusters repeat the command.
"""


@dataclass(frozen=True, slots=True)
class ExitCodeDocumentation:
    """Meaning of an exit code, and the codes of the messages that come with it.

    `meaning` is the heading, `remedy` a paragraph of Markdown.
    """

    meaning: str
    remedy: str
    message_codes: tuple[str, ...] = ()


EXIT_CODE_DOCUMENTATION: dict[int, ExitCodeDocumentation] = {
    EXIT_FINISHED: ExitCodeDocumentation(
        "success", "The command did what it should: a run is finished, a recipe has no problems."
    ),
    EXIT_DIFFERS: ExitCodeDocumentation(
        "a difference or a warning",
        "`diff-config`, `reproduce`, `runs diff` and `checkpoint diff` found a difference, `plan` "
        "a run that does not fit, `doctor` a fault, `validate --strict` a warning, or `launch` "
        "could not submit its job. Read the output.",
    ),
    EXIT_USAGE: ExitCodeDocumentation(
        "a mistake in the recipe or the command line",
        "The message names file, line and the correction; the list of "
        "[problem codes](reference.md#problem-codes) explains each. With `is in use by process "
        "...` the run is already running.",
    ),
    EXIT_DATA: ExitCodeDocumentation(
        "the data",
        "A file is missing, damaged or has changed: "
        "[what to do](troubleshooting.md#exit-code-3-data).",
    ),
    EXIT_CHECKPOINT: ExitCodeDocumentation(
        "a checkpoint",
        "It is missing, damaged or does not fit: "
        "[what to do](troubleshooting.md#exit-code-4-checkpoints).",
    ),
    EXIT_NON_FINITE: ExitCodeDocumentation(
        "NaN or infinite loss",
        "The loss, a gradient or a weight is NaN or infinite: "
        "[what to do](troubleshooting.md#exit-code-5-nan-or-infinite-loss).",
        ("non-finite",),
    ),
    EXIT_HANG: ExitCodeDocumentation(
        "a rank that hangs",
        "It made no progress for too long: [what to do](troubleshooting.md#exit-code-6-hang).",
        ("hang",),
    ),
    EXIT_OUT_OF_SPACE: ExitCodeDocumentation(
        "out of memory or disk space",
        "The device, the machine or the disk is full: "
        "[what to do](troubleshooting.md#exit-code-7-out-of-memory-or-disk).",
        ("memory", "disk"),
    ),
    EXIT_NO_QUORUM: ExitCodeDocumentation(
        "replica groups without a lighthouse, or too few of them",
        "The message names the lighthouse: start it or the missing groups again, then the same "
        "command. See [replica groups](fault_tolerance.md).",
    ),
    EXIT_INTERNAL: ExitCodeDocumentation(
        "an internal error of titanrun or a library, or a hardware error",
        "Start again. If it happens again, report it with the file that the message names: "
        "[what to do](troubleshooting.md#exit-code-70-internal-error-or-hardware-error).",
        ("corruption",),
    ),
    EXIT_PREEMPTED: ExitCodeDocumentation(
        "preempted: stopped by a signal after saving",
        "After SIGTERM, SIGINT, SIGUSR1, SIGXCPU, or SIGHUP except under nohup, everything is "
        "saved. Start the same command again, or requeue the job: the run resumes.",
    ),
    EXIT_INTERRUPTED: ExitCodeDocumentation(
        "Ctrl-C, twice during training",
        "The steps since the last checkpoint are lost. Start again: the run resumes from it.",
    ),
    EXIT_KILLED: ExitCodeDocumentation(
        "killed by SIGKILL",
        "Often by the kernel, out of host memory (see `dmesg`), or by the scheduler. Start again.",
        ("killed",),
    ),
    EXIT_STOPPED_EARLY: ExitCodeDocumentation(
        "stopped by SIGUSR1 before the run could save", "Start the same command again."
    ),
    EXIT_TERMINATED: ExitCodeDocumentation(
        "stopped by SIGTERM without saving",
        "The run was still starting, or has `checkpoint.enable: false` and is lost: enable "
        "checkpoints.",
    ),
}


def build_exit_code_page() -> str:
    """Return the page: a table of all codes, and a section for each."""
    rows = [
        f"| [{code}](#{format_anchor(code, about)}) | {about.meaning} |"
        for code, about in EXIT_CODE_DOCUMENTATION.items()
    ]
    table = "\n".join(["| exit code | meaning |", "|---|---|", *rows])
    sections = [format_section(code, about) for code, about in EXIT_CODE_DOCUMENTATION.items()]
    lasting = format_word_list([str(code) for code in LASTING_EXIT_CODES], conjunction="and")
    return "\n".join([HEAD.format(lasting=lasting), table, "", *sections])


def format_section(code: int, about: ExitCodeDocumentation) -> str:
    """Format the section of one exit code."""
    parts = [f"## {format_title(code, about)}", about.remedy]
    messages = format_messages([*find_problem_codes(code), *about.message_codes])
    return "\n\n".join([*parts, *messages]) + "\n"


def format_title(code: int, about: ExitCodeDocumentation) -> str:
    """Format the heading of an exit code, as people search for it."""
    return f"Exit code {code}: {about.meaning}"


def format_anchor(code: int, about: ExitCodeDocumentation) -> str:
    """Return the anchor of a heading, on GitHub and on the site."""
    title = format_title(code, about).lower().replace(" ", "-")
    return re.sub(r"[^\w-]", "", title)


def find_problem_codes(exit_code: int) -> list[str]:
    """Return the problem codes whose exit code is declared to be this one."""
    return [code for code, declared in EXIT_CODES.items() if declared == exit_code]


def format_messages(codes: Iterable[str]) -> list[str]:
    """Return a paragraph that names the messages of these codes, if there are any."""
    named = ", ".join(f"`error[{code}]`" for code in codes)
    return [f"Message: {named}."] if named else []
