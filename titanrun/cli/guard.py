"""Runs one command so that nobody ever sees a traceback: problems are printed, an internal fault is saved and reported."""

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from titanrun.cli.terminal import columns
from titanrun.config.masking import likely_secrets, masked
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.render import in_file_order, render, render_text
from titanrun.launch.environment import colour_wanted, environment, logs_json

EXIT_USAGE = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


def guarded(command: Callable[[list[str]], int], arguments: Sequence[str]) -> int:
    """The command's exit code; problems go to stderr with theirs."""
    try:
        return command(list(arguments))
    except ProblemsFound as found:
        print_problems(found.problems)
        return found.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return 0  # the reader went away, as `| head` does
    except OSError as error:
        place = f" '{error.filename}'" if error.filename else ""
        print_problems(
            [Problem("file", f"cannot use{place}: {(error.strerror or str(error)).lower()}")]
        )
        return EXIT_USAGE
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 2
    except BaseException as error:
        hidden = likely_secrets(environment())
        report = save_report(arguments, hidden)
        fault = Problem(
            "internal",
            masked(f"{type(error).__name__}: {error}", hidden),
            help=f"this is a fault of titanrun; the report is in {report}",
        )
        print_problems([fault])
        return EXIT_INTERNAL


def print_problems(problems: Sequence[Problem]) -> None:
    """Problems for a person, on stderr."""
    if logs_json():
        sys.stderr.write(render(problems, format="json"))
        return
    text = render_text(
        in_file_order(problems),
        colour=colour_wanted(sys.stderr.isatty()),
        columns=columns(sys.stderr),
    )
    sys.stderr.write(text)


def save_report(arguments: Sequence[str], hidden: Collection[str]) -> Path:
    """The traceback of the exception being handled, in a file, without what is `hidden`."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="titanrun-internal-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(
            masked(
                f"arguments: {list(arguments)}\npython: {sys.version}\n\n{traceback.format_exc()}",
                hidden,
            )
        )
    return Path(file.name)
