"""Command-line parser that raises problems, and separation of overrides from options."""

import re
from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter, Namespace
from collections.abc import Sequence
from textwrap import fill, wrap
from typing import Any, NoReturn

from titanrun.cli.command_docs import format_command_page, select_examples, wrap_examples
from titanrun.config.problems import Problem, problem_error
from titanrun.config.suggest import find_closest
from titanrun.config.trust import TRUST_ALL, TRUST_FLAG, TRUST_MODEL_CODE
from titanrun.launch.launch_env import (
    get_trust,
    set_log_format,
    set_moved_paths,
    set_notify_command,
    set_trust,
)
from titanrun.recipe.moved_paths import MOVED_FLAG, parse_moved_path

TORCHTITAN_FLAG = re.compile(r"--[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_\-\[\]]+)+(=.*)?", re.DOTALL)
OVERRIDE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-\[\]]*(\+=|-=|=|!$)")
OVERRIDE_HELP = (
    "overrides after the file, in this order: path=value, path+=item, path-=item, "
    "path! (reset to the default)"
)
RECIPE_SUFFIXES = (".yaml", ".yml", ".toml")
EXAMPLES_HEAD = "examples:\n"
# read until 0.3, with a warning
OLD_TRUST_FLAG = "--trust-remote-code"
# choices up to this length are shown in place of the value
MAX_CHOICES_LENGTH = 50
OUTPUT_OPTIONS = ("-o", "--out", "--output", "--output-dir", "--output_dir")
"""Options of other commands, and of other programs, for where something is written."""
RECIPE_OPTIONS = ("-c", "--config", "--config-file", "--config_file", "--recipe")
"""Options of other programs for the file that describes a run."""
RUN_STARTERS = ("train", "launch", "fork")
RUN_FOLDER = "write dump_folder=FOLDER: the directory of the run"
UNRECOGNIZED_PREFIX = "unrecognized arguments: "


class WrappedHelpFormatter(HelpFormatter):
    """Help formatter that fits paragraphs to the terminal and keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self.wrap_paragraph(part, width) for part in text.split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        words = " ".join(text.split())
        return wrap(words, width, break_on_hyphens=False, break_long_words=False)

    def wrap_paragraph(self, text: str, width: int) -> str:
        """Wrap a paragraph, or the examples."""
        if not text.startswith(EXAMPLES_HEAD):
            return fill(text, width, break_on_hyphens=False, break_long_words=False)
        return EXAMPLES_HEAD + wrap_examples(text.removeprefix(EXAMPLES_HEAD), width)


class MarkdownHelpAction(Action):
    """`--help-markdown`: the command as a page of docs/commands for tools/write_reference.py."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        """Print the page and exit."""
        print(format_command_page(parser), end="")
        parser.exit()


class TrustAction(Action):
    """Action of `--trust`."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the flag and apply it to this process and its children."""
        set_trust(TRUST_ALL)
        setattr(namespace, self.dest, True)


class OldTrustAction(Action):
    """Action of `--trust-remote-code`, the former name of a part of `--trust`."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Allow code that comes with weights, and warn once."""
        # imported here, so that completion of a word stays quick
        from titanrun.cli.error_boundary import print_problems

        setattr(namespace, self.dest, True)
        if get_trust() is None:
            set_trust(TRUST_MODEL_CODE)
            message = f"{OLD_TRUST_FLAG} is now {TRUST_FLAG}, which allows all code of a recipe"
            hint = f"write {TRUST_FLAG}; {OLD_TRUST_FLAG} is read until 0.3 and allows model code"
            print_problems([Problem("deprecated", message, severity="warning", hint=hint)])


class CommandParser(ArgumentParser):
    """Argument parser that raises a problem instead of exiting the process."""

    def __init__(self, command: str, summary: str, examples: str) -> None:
        super().__init__(
            prog=f"titanrun {command}",
            description=summary,
            epilog=EXAMPLES_HEAD + select_examples(command, examples),
            formatter_class=WrappedHelpFormatter,
            allow_abbrev=False,
        )
        self._takes_overrides = False
        self.register("action", "markdown", MarkdownHelpAction)
        self.add_argument("--help-markdown", action="markdown", nargs=0, help=SUPPRESS)
        loudness = self.add_mutually_exclusive_group()
        loudness.add_argument(
            "-q", "--quiet", action="store_true", help="print only the result and errors"
        )
        loudness.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            help="log to stderr which files are read",
        )

    def add_argument(self, *names: str, **settings: Any) -> Action:
        """Add an argument. The choices of an option that are too long for a line go to its help."""
        choices = ", ".join(map(str, settings.get("choices") or ()))
        if len(choices) > MAX_CHOICES_LENGTH and names[0].startswith("-"):
            settings.setdefault("metavar", names[-1].lstrip("-").upper())
            settings["help"] = f"{settings['help']}: {choices}"
        return super().add_argument(*names, **settings)

    def add_format_option(self, hint: str, *, choices: Sequence[str] = ("text", "json")) -> None:
        """Add --format, with the help `hint`, and --json, short for --format json."""
        self.add_argument("--format", choices=choices, default="text", help=hint)
        self.add_argument(
            "--json",
            action="store_const",
            const="json",
            dest="format",
            help="short for --format json",
        )

    def add_trust_option(self) -> None:
        """Add --trust and its former name, which apply to this process and its children."""
        self.register("action", "trust", TrustAction)
        self.register("action", "old trust", OldTrustAction)
        self.add_argument(
            TRUST_FLAG,
            action="trust",
            nargs=0,
            default=False,
            help="allow the code that the recipe names, now and later; read it first",
        )
        self.add_argument(OLD_TRUST_FLAG, action="old trust", nargs=0, default=False, help=SUPPRESS)

    def add_moved_option(self) -> None:
        """Add --moved, which applies to this process and its children."""
        self.add_argument(
            MOVED_FLAG,
            action="append",
            default=[],
            metavar="OLD=NEW",
            help="a model, data or a run that the run names as OLD was moved or renamed: it is "
            "NEW now; may be repeated",
        )

    def add_reporting_options(self) -> None:
        """Add --log-format and --notify, which apply to this process and its children."""
        self.add_argument(
            "--log-format",
            choices=("text", "json"),
            help="json: one object per line on stderr, for programs",
        )
        self.add_argument(
            "--notify",
            metavar="COMMAND",
            help="shell command to run at the end of the run; see docs/troubleshooting.md",
        )

    def parse_args(self, arguments: Sequence[str]) -> Namespace:  # type: ignore[override]
        """Parse the options and apply those of add_reporting_options from here on."""
        found = super().parse_args(arguments)
        if getattr(found, "log_format", None) is not None:
            set_log_format(found.log_format)
        if getattr(found, "notify", None) is not None:
            set_notify_command(found.notify)
        if getattr(found, "moved", None):
            set_moved_paths(dict(map(parse_moved_path, found.moved)))
        return found

    def allow_overrides(self) -> None:
        """Mention overrides in the help. Call this after all arguments are added."""
        self._takes_overrides = True
        usage, more = self.format_usage().rstrip(), "[path=value ...]"
        fits = len(f"{usage.splitlines()[-1]} {more}") <= self._get_formatter()._width
        gap = " " if fits else "\n" + " " * len(f"usage: {self.prog} ")
        self.usage = f"{usage}{gap}{more}".removeprefix("usage: ")
        self.epilog = f"{OVERRIDE_HELP}\n\n{self.epilog}"

    def error(self, message: str) -> NoReturn:
        """Raise a problem for a mistake in the command line."""
        if message.startswith(UNRECOGNIZED_PREFIX):
            word, *rest = message.removeprefix(UNRECOGNIZED_PREFIX).split() or [""]
            meant = (
                find_closest(word, self._option_string_actions) if word.startswith("-") else None
            )
            setting = self._describe_setting(word, rest)
            # without its value, which may be a secret
            told = (
                f"unknown option '{word.partition('=')[0]}'"
                if word.startswith("-")
                else f"unexpected argument '{word}'"
            )
            raise problem_error(
                "usage",
                told,
                hint=setting
                or (f"did you mean '{meant}'?" if meant else f"see {self.prog} --help"),
            )
        raise problem_error("usage", message, hint=f"see {self.prog} --help")

    def _describe_setting(self, word: str, rest: Sequence[str]) -> str:
        """Return the override to write for an unknown option or word, else an empty text."""
        if not self._takes_overrides:
            return ""
        # imported here, so that the other commands stay quick
        from titanrun.recipe.editing.option_settings import (
            describe_option_setting,
            describe_spaced_override,
        )

        option, sign, value = word.partition("=")
        if not word.startswith("-"):
            return describe_spaced_override(word, rest)
        if option in RECIPE_OPTIONS:
            return f"write the recipe without it: {self.prog} RECIPE"
        if option in OUTPUT_OPTIONS and self.prog.rpartition(" ")[2] in RUN_STARTERS:
            return RUN_FOLDER
        if not option.startswith("--"):
            return ""
        return describe_option_setting(option, value if sign else next(iter(rest), None))


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into overrides, in either spelling, and the other arguments."""
    overrides: list[str] = []
    others: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if argument == MOVED_FLAG:
            # its value OLD=NEW looks like an override
            others += [argument, *waiting[:1]]
            waiting = waiting[1:]
        elif TORCHTITAN_FLAG.fullmatch(argument):
            overrides.append(argument)
            if (
                "=" not in argument
                and waiting
                and not waiting[0].startswith("--")
                and not OVERRIDE_PATTERN.match(waiting[0])
                and not is_first_recipe(waiting[0], others)
            ):
                overrides.append(waiting.pop(0))
        elif OVERRIDE_PATTERN.match(argument) and not argument.startswith("-"):
            overrides.append(argument)
        else:
            others.append(argument)
    return overrides, others


def is_first_recipe(argument: str, others: Sequence[str]) -> bool:
    """Return whether an argument is a file like a recipe, and none stands before it."""
    return argument.endswith(RECIPE_SUFFIXES) and not any(
        word.endswith(RECIPE_SUFFIXES) for word in others
    )
