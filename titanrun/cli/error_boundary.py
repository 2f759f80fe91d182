"""Error boundary of commands: print problems, save and report internal errors.

The user never sees a traceback.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from titanrun.cli.terminal import get_terminal_width
from titanrun.config.diagnostics import render_problems, render_problems_as_text, sort_problems
from titanrun.config.exit_codes import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.redaction import (
    get_likely_secrets,
    redact,
    star_out_assigned_secrets,
)
from titanrun.config.version import FULL_DISTRIBUTION
from titanrun.launch.launch_env import get_environment, is_json_log_format, should_use_color
from titanrun.launch.torch_requirement import is_torch_installed


def run_guarded(command: Callable[[list[str]], int], arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; problems go to stderr and set the exit code."""
    try:
        return command(list(arguments))
    except ProblemsFound as found:
        print_problems(found.problems)
        return found.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return 0  # the reader closed the pipe, as `| head` does
    except OSError as error:
        place = f" '{error.filename}'" if error.filename else ""
        print_problems(
            [Problem("file", f"cannot use{place}: {(error.strerror or str(error)).lower()}")]
        )
        return EXIT_USAGE
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else EXIT_USAGE
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and not is_torch_installed():
            print_problems([build_light_install_problem(error)])
            return EXIT_USAGE
        hidden = get_likely_secrets(get_environment())
        report = save_crash_report(arguments, hidden)
        fault = Problem(
            "internal",
            redact(f"{type(error).__name__}: {error}", hidden),
            hint=f"{name_culprit(error)}; the report is in {report}",
        )
        print_problems([fault])
        return EXIT_INTERNAL


def name_culprit(error: BaseException) -> str:
    """Return whose bug an internal error is, as far as its traceback tells."""
    # no command without a recipe needs it
    from titanrun.recipe.plugin_errors import find_plugin_place

    return find_plugin_place(error) or "this is a bug in titanrun"


def build_light_install_problem(error: ModuleNotFoundError) -> Problem:
    """Build the problem of a package that a light install does not bring."""
    return Problem(
        "usage", f"this command needs {error.name}", hint=f"pip install {FULL_DISTRIBUTION}"
    )


def print_problems(problems: Sequence[Problem]) -> None:
    """Print problems for a person to stderr."""
    if is_json_log_format():
        sys.stderr.write(render_problems(problems, output_format="json"))
        return
    text = render_problems_as_text(
        sort_problems(problems),
        use_color=should_use_color(sys.stderr.isatty()),
        columns=get_terminal_width(sys.stderr),
    )
    sys.stderr.write(text)


def save_crash_report(arguments: Sequence[str], secrets: Collection[str]) -> Path:
    """Save the traceback of the exception being handled, without secrets, and return the file."""
    import tempfile
    import traceback

    words = [star_out_assigned_secrets(word) for word in arguments]
    with tempfile.NamedTemporaryFile(
        "w", prefix="titanrun-internal-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(
            redact(
                f"arguments: {words}\npython: {sys.version}\n\n{traceback.format_exc()}",
                secrets,
            )
        )
    return Path(file.name)
