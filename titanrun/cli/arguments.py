"""Command lines: a parser whose mistakes are problems, and overrides told apart from options."""

import re
from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter, Namespace
from collections.abc import Sequence
from textwrap import fill
from typing import Any, NoReturn

from titanrun.cli.command_docs import as_markdown, fitted_examples
from titanrun.config.problems import fail
from titanrun.config.suggest import closest
from titanrun.launch.environment import log_as, notify_by, trust_remote_code

TORCHTITAN_FLAG = re.compile(r"--[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_\-\[\]]+)+(=.*)?", re.DOTALL)
OVERRIDE = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-\[\]]*(\+=|-=|=|!$)")
OVERRIDE_HELP = "changes after the file, in this order: path=value, path+=item, path-=item, path! (back to the default)"
EXAMPLES = "examples:\n"
TRUST_FLAG = "--trust-remote-code"
UNRECOGNIZED = "unrecognized arguments: "


class WrappedHelp(HelpFormatter):
    """Help whose paragraphs fit the terminal, and whose examples keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self.paragraph(part, width) for part in text.split("\n\n"))

    def paragraph(self, text: str, width: int) -> str:
        """A paragraph, or the examples."""
        if not text.startswith(EXAMPLES):
            return fill(text, width)
        return EXAMPLES + fitted_examples(text.removeprefix(EXAMPLES), width)


class MarkdownHelp(Action):
    """`--help-markdown`: the command as a page of docs/commands, which tools/write_reference.py writes."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        print(as_markdown(parser), end="")
        parser.exit()


class Trust(Action):
    """`--trust-remote-code`."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        trust_remote_code(True)
        setattr(namespace, self.dest, True)


class Parser(ArgumentParser):
    """An argument parser that raises a problem instead of leaving the process."""

    def __init__(self, command: str, summary: str, examples: str) -> None:
        super().__init__(
            prog=f"titanrun {command}",
            description=summary,
            epilog=EXAMPLES + examples,
            formatter_class=WrappedHelp,
            allow_abbrev=False,
        )
        self.register("action", "markdown", MarkdownHelp)
        self.add_argument("--help-markdown", action="markdown", nargs=0, help=SUPPRESS)
        loudness = self.add_mutually_exclusive_group()
        loudness.add_argument(
            "-q", "--quiet", action="store_true", help="say nothing beside the answer and errors"
        )
        loudness.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            help="say on stderr what was read, and from where",
        )

    def takes_trust(self) -> None:
        """Take --trust-remote-code, which holds for this process and those that it starts."""
        self.register("action", "trust", Trust)
        self.add_argument(
            TRUST_FLAG,
            action="trust",
            nargs=0,
            default=False,
            help="run code that comes with weights, for model transformers; read it first",
        )

    def takes_reporting(self) -> None:
        """Take how the run speaks, and whom it tells of its end; both hold for the processes that this one starts."""
        self.add_argument(
            "--log-format",
            choices=("text", "json"),
            help="json: each line on stderr is an object, for programs",
        )
        self.add_argument(
            "--notify",
            metavar="COMMAND",
            help="what the shell runs when the run ends; see docs/operations.md",
        )

    def parse_args(self, arguments: Sequence[str]) -> Namespace:  # type: ignore[override]
        """The options; those of takes_reporting hold from here on."""
        found = super().parse_args(arguments)
        if getattr(found, "log_format", None) is not None:
            log_as(found.log_format)
        if getattr(found, "notify", None) is not None:
            notify_by(found.notify)
        return found

    def takes_overrides(self) -> None:
        """Say in the help that changes may follow; called when all arguments are added."""
        usage, more = self.format_usage().rstrip(), "[path=value ...]"
        fits = len(f"{usage.splitlines()[-1]} {more}") <= self._get_formatter()._width
        gap = " " if fits else "\n" + " " * len(f"usage: {self.prog} ")
        self.usage = f"{usage}{gap}{more}".removeprefix("usage: ")
        self.epilog = f"{OVERRIDE_HELP}\n\n{self.epilog}"

    def error(self, message: str) -> NoReturn:
        """A mistake in the command line."""
        if message.startswith(UNRECOGNIZED):
            word = next(iter(message.removeprefix(UNRECOGNIZED).split()), "")
            meant = closest(word, self._option_string_actions) if word.startswith("-") else None
            kind = "unknown option" if word.startswith("-") else "unexpected argument"
            raise fail(
                "usage",
                f"{kind} '{word}'",
                help=f"did you mean '{meant}'?" if meant else f"see {self.prog} --help",
            )
        raise fail("usage", message, help=f"see {self.prog} --help")


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides, in either spelling, and the other arguments."""
    overrides: list[str] = []
    others: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if TORCHTITAN_FLAG.fullmatch(argument):
            overrides.append(argument)
            if (
                "=" not in argument
                and waiting
                and not waiting[0].startswith("--")
                and not OVERRIDE.match(waiting[0])
            ):
                overrides.append(waiting.pop(0))
        elif OVERRIDE.match(argument) and not argument.startswith("-"):
            overrides.append(argument)
        else:
            others.append(argument)
    return overrides, others
