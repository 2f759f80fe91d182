"""Command lines that the page can start; what a user wrote never becomes an option."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from titanrun.cli.arguments import OVERRIDE_PATTERN
from titanrun.recipe.plan.devices import DEVICES
from titanrun.ui.folder_walk import confine
from titanrun.ui.refusal import Refusal
from titanrun.ui.run_catalog import RunCatalog
from titanrun.ui.workspace import Workspace

# what each does with one checkpoint
CHECKPOINT_COMMANDS = ("eval", "export", "verify")
# what each trains, or runs for a while: they wait for devices in the queue
LONG_COMMANDS = ("train", "resume", "fork", "reproduce", "sweep", "launch", *CHECKPOINT_COMMANDS)
# what each reads from a recipe: they answer within seconds, and need no device
SHORT_COMMANDS = ("plan", "data-show", "data-stats", "submission", "sweep-table")
RUN_COMMANDS = ("resume", "fork", "reproduce", *CHECKPOINT_COMMANDS)
WITHOUT_OVERRIDES = ("reproduce", "export", "verify")
EXPORT_FORMATS = ("hf", "safetensors", "torch", "gguf")
MAX_RANKS = 100_000
MAX_ROWS = 100


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and what it is about.

    Args:
        name: What the page asked for.
        words: Arguments of `titanrun`.
        target: The word that names a recipe, sweep, run or checkpoint.
        overrides: Changes of the recipe.
        other: The word that names a second checkpoint.
    """

    name: str
    words: tuple[str, ...]
    target: str
    overrides: tuple[str, ...] = ()
    other: str | None = None

    @property
    def is_short(self) -> bool:
        """Whether it only reads a recipe, and what it prints is the answer."""
        return self.name in SHORT_COMMANDS

    @property
    def shell(self) -> str:
        """The command as a shell would take it."""
        return shlex.join(["titanrun", *self.words])


@dataclass(frozen=True, slots=True)
class CommandBuilder:
    """Builds the command lines that a page asks for."""

    workspace: Workspace
    catalog: RunCatalog

    def build(self, request: Mapping[str, Any]) -> Command:
        """Return the command of a request.

        Raises:
            Refusal: The request is not one of a page.
        """
        name, overrides = request.get("command"), request.get("overrides", [])
        if name == "chat":
            return self.build_chat(request)
        if name not in (*LONG_COMMANDS, *SHORT_COMMANDS) or not isinstance(overrides, list):
            raise Refusal(400, "usage", "this command cannot be started here")
        for text in overrides:
            check_override(text)
        if name in WITHOUT_OVERRIDES and overrides:
            raise Refusal(400, "usage", f"{name} takes no overrides")
        if name in CHECKPOINT_COMMANDS and request.get("step") is None:
            raise Refusal(400, "usage", "choose a checkpoint")
        target = (
            self.get_run(request)
            if name in RUN_COMMANDS
            else self.get_recipe(str(request.get("target", "")))
        )
        if name == "export":
            confine(self.workspace.root, str(request.get("out", "")))
        words = BUILDERS[name](target, request) if name in BUILDERS else (name, target)
        return Command(str(name), (*words, *overrides), target, tuple(overrides))

    def build_chat(self, request: Mapping[str, Any]) -> Command:
        """Return the command that converses with a checkpoint, or with two."""
        second = request.get("other")
        names = [request, *([second] if isinstance(second, dict) else [])]
        if any(name.get("step") is None for name in names):
            raise Refusal(400, "usage", "choose a checkpoint")
        targets = [self.get_run(name) for name in names]
        words = ("chat", *targets, "--requests")
        return Command("chat", words, targets[0], other=targets[1] if len(targets) == 2 else None)

    def get_recipe(self, name: str) -> str:
        """Return the word that names a recipe or a sweep of the workspace."""
        if not self.workspace.read(name).text:
            raise Refusal(400, "usage", "the recipe is empty")
        if name.startswith("shipped:"):
            return name.partition(":")[2].removesuffix(".yaml")
        return f"./{name}"

    def get_run(self, request: Mapping[str, Any]) -> str:
        """Return the word that names a run, or one of its checkpoints."""
        folder = self.catalog.find_checkpoint(str(request.get("target", "")), request.get("step"))
        if folder.is_relative_to(self.workspace.root):
            return f"./{folder.relative_to(self.workspace.root)}"
        return str(folder)


def build_plan_words(target: str, request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of `titanrun plan` for a number of ranks on a device."""
    device = request.get("device", "h100")
    if device not in DEVICES:
        raise Refusal(400, "usage", "there is no such device")
    ranks = get_option(request, "ranks", range(1, MAX_RANKS))
    return ("plan", target, "--world-size", str(ranks), "--device", str(device), "--json")


def build_data_show_words(target: str, request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of `titanrun data show` for the first rows, or for one."""
    if request.get("row") is not None:
        row = get_option(request, "row", range(10**12))
        return ("data", "show", target, "--json", "--row", str(row))
    count = get_option(request, "count", range(1, MAX_ROWS + 1))
    return ("data", "show", target, "--json", "--count", str(count))


def build_checkpoint_export_words(target: str, request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of `titanrun checkpoint export` into a new place of the workspace."""
    format_name, out = request.get("format"), request.get("out")
    if format_name not in EXPORT_FORMATS:
        raise Refusal(400, "usage", "there is no such format")
    if not isinstance(out, str):
        raise Refusal(400, "usage", "name the new file or folder")
    return ("checkpoint", "export", target, f"./{out}", "--format", str(format_name))


BUILDERS: dict[str, Callable[[str, Mapping[str, Any]], tuple[str, ...]]] = {
    "plan": build_plan_words,
    "data-show": build_data_show_words,
    "data-stats": lambda target, _: ("data", "stats", target, "--json"),
    "export": build_checkpoint_export_words,
    "verify": lambda target, _: ("checkpoint", "verify", target),
    "submission": lambda target, _: ("launch", target, "--dry-run"),
    "sweep-table": lambda target, _: ("sweep", target, "--table", "--format", "json"),
}


def get_option(request: Mapping[str, Any], name: str, allowed: range) -> int:
    """Return a whole number of a request. Raise Refusal if it is missing or out of range."""
    value = request.get(name)
    if type(value) is not int or value not in allowed:
        raise Refusal(400, "usage", f"{name} is from {allowed.start} to {allowed.stop - 1}")
    return value


def check_override(text: object) -> None:
    """Raise Refusal for text that is not one override on one line."""
    if (
        not isinstance(text, str)
        or not OVERRIDE_PATTERN.match(text)
        or any(ord(letter) < 32 for letter in text)
    ):
        raise Refusal(400, "override", "an override is path=value, path+=item, path-=item or path!")
