"""Examination of the texts of an editor: problems, values, descriptions and completions."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from titanrun.cli.diff_config import field_diff_to_dict
from titanrun.cli.show_plot import build_lr_curve
from titanrun.config.base import dump_config
from titanrun.config.diagnostics import problem_to_dict
from titanrun.config.problems import Origin, Problem, ProblemsFound
from titanrun.config.secrets import iter_secrets
from titanrun.config.source_streams import withdraw_text
from titanrun.config.tree import format_path, iter_nodes
from titanrun.recipe.comparing.recipe_diff import DiffSide, diff_recipes, load_diff_side
from titanrun.recipe.editing.code_actions import fix_text, list_code_actions
from titanrun.recipe.editing.completions import complete
from titanrun.recipe.editing.definitions import find_definition, iter_extended_files
from titanrun.recipe.editing.examiner import Document, Examiner
from titanrun.recipe.editing.hover import describe_position
from titanrun.recipe.editing.utf16_text import Utf16Text
from titanrun.recipe.resolving.provenance import (
    collect_value_sources,
    list_data_leaves,
    source_to_dict,
)
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.ui.workspace import Workspace

MAX_DOCUMENTS = 50
MASK = "•••"
Answer = TypeVar("Answer")


class TextExaminer:
    """The examiner behind the editor.

    Reading a recipe activates its plug-ins for the whole process, so that all reading holds one
    lock. A text stands for its file only while it is examined.
    """

    def __init__(self, workspace: Workspace, environment: Mapping[str, str]) -> None:
        """Start without any text."""
        self.workspace = workspace
        self.environment = environment
        self.lock = RLock()
        self.examiner = Examiner(environment)

    def open(self, path: str, text: str) -> Document:
        """Return the document of a file, with this text; the last good tree is kept."""
        documents = self.examiner.documents
        while len(documents) >= MAX_DOCUMENTS and path not in documents:
            documents.pop(next(iter(documents)))
        return self.examiner.open(path, text)

    def ask(
        self,
        path: str,
        text: str,
        answer: Callable[[Document], Answer],
        overrides: Sequence[str] = (),
    ) -> Answer:
        """Return an answer about a text, which stands for its file meanwhile."""
        self.workspace.check_suffix(path)
        with self.lock:
            document = self.open(path, text)
            document.overrides = tuple(overrides)
            try:
                self.examiner.examine(document)
                self.follow(document)
                return answer(document)
            finally:
                withdraw_text(path)

    def follow(self, document: Document) -> None:
        """Remember the files elsewhere that a recipe extends, which may be opened."""
        if document.tree is None:
            return
        names = {node.origin.source.name for _, node in iter_nodes(document.tree)}
        names |= {file.path for file in iter_extended_files(document)}
        self.workspace.followed |= {name for name in names if name.startswith("/")}

    def examine(
        self, path: str, text: str, wanted: Sequence[str], overrides: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return the problems of a text with overrides, and what else is wanted of it."""
        return self.ask(path, text, lambda document: self.describe(document, wanted), overrides)

    def describe(self, document: Document, wanted: Sequence[str]) -> dict[str, Any]:
        """Return what an examination found."""
        positions = Utf16Text(document.text)
        actions = list_code_actions(document.problems)
        problems = [
            convert_problem(problem, document, positions, actions) for problem in document.problems
        ]
        runs = [] if any(one.severity == "error" for one in document.problems) else document.runs
        found: dict[str, Any] = {
            "problems": problems,
            "is_resolved": document.is_resolved,
            "runs": [describe_run_size(run) for run in runs],
        }
        if "resolved" in wanted:
            found["resolved"] = [list_values(run) for run in runs]
        if "schedule" in wanted:
            found["schedule"] = [build_schedule(run) for run in runs]
        return found

    def hover(self, path: str, text: str, offset: int) -> dict[str, Any] | None:
        """Return the description of the setting at an offset, or None."""

        def answer(document: Document) -> dict[str, Any] | None:
            positions = Utf16Text(text)
            index = positions.to_index(offset)
            found = describe_position(document, *positions.to_line_and_column(index), index)
            if found is None:
                return None
            start, end = (
                (offset, offset) if found.origin is None else positions.to_span(found.origin)
            )
            facts = [list(fact) for fact in found.facts]
            return {
                "from": start,
                "to": end,
                "title": found.title,
                "body": found.text,
                "facts": facts,
            }

        return self.ask(path, text, answer)

    def complete(self, path: str, text: str, offset: int) -> dict[str, Any]:
        """Return what may be written at an offset."""

        def answer(document: Document) -> dict[str, Any]:
            positions = Utf16Text(text)
            index = positions.to_index(offset)
            found = complete(document, index)
            start = found[0].start if found else index
            return {
                "from": positions.to_utf16(start),
                "options": [
                    {
                        "label": one.label,
                        "apply": one.insert,
                        "kind": one.kind,
                        "detail": one.detail,
                        "info": one.text,
                    }
                    for one in found
                ],
            }

        return self.ask(path, text, answer)

    def define(self, path: str, text: str, offset: int) -> dict[str, Any] | None:
        """Return the recipe and the line where what is at an offset is defined, or None."""

        def answer(document: Document) -> dict[str, Any] | None:
            positions = Utf16Text(text)
            line, column = positions.to_line_and_column(positions.to_index(offset))
            target = find_definition(document, line, column)
            if target is None or not target.path.lower().endswith((".yaml", ".yml", ".toml")):
                return None
            name = self.find_name(target.path)
            return {"path": name, "line": target.line, "column": target.column}

        return self.ask(path, text, answer)

    def find_name(self, path: str) -> str:
        """Return the name of a file as the workspace knows it: relative where it is inside."""
        real = Path(path).resolve()
        if real.is_relative_to(self.workspace.root):
            return str(real.relative_to(self.workspace.root))
        self.workspace.followed.add(path)
        return path

    def fix_all(self, path: str, text: str) -> dict[str, Any]:
        """Return the text with all certain corrections."""

        def answer(document: Document) -> dict[str, Any]:
            document.text = text
            fixed = fix_text(document, lambda new: self.examiner.examine(self.open(path, new)))
            self.open(path, text)
            return {"text": fixed}

        return self.ask(path, text, answer)

    def compare(self, path: str, text: str, other: str, *, is_written: bool) -> dict[str, Any]:
        """Return the differences of a text from another recipe, run or checkpoint."""

        def answer(document: Document) -> dict[str, Any]:
            right = DiffSide(path, resolve_recipe(path, (), environment=self.environment))
            left = load_diff_side(other, [], self.environment)
            found = diff_recipes(left, right, "written" if is_written else "effective")
            secret = {format_path(where) for where, _ in iter_secrets(right.resolved.run)}
            secret |= {format_path(where) for where, _ in iter_secrets(left.resolved.run)}
            changes = [field_diff_to_dict(item) for item in found]
            for change in changes:
                if change["path"] in secret:
                    change |= {"a": MASK, "b": MASK}
            return {"changes": changes}

        return self.ask(path, text, answer)

    def read_alone(self, action: Callable[[], Answer]) -> Answer:
        """Return what reads other recipes, while no text is examined."""
        with self.lock:
            return action()


def convert_problem(
    problem: Problem, document: Document, positions: Utf16Text, actions: Sequence[Any]
) -> dict[str, Any]:
    """Return a problem with its offsets in the text, and the edits for it."""
    is_here = is_in_text(problem.origin, document)
    start, end = positions.to_span(problem.origin) if is_here and problem.origin else (None, None)
    edits = [
        {
            "title": action.title,
            "preferred": action.is_preferred,
            "from": span[0],
            "to": span[1],
            "text": action.fix.replacement,
        }
        for action in actions
        if action.problem is problem
        and is_in_text(action.fix.origin, document)
        and (span := positions.to_span(action.fix.origin))
    ]
    data = {**problem_to_dict(problem), "label": problem.label}
    if problem.origin is not None and problem.origin.source.kind == "override":
        data["is_override"] = True
    if start is None and problem.origin is not None and problem.origin.source.kind == "file":
        data["included"] = find_include_span(problem.origin, document, positions)
    return {**data, "from": start, "to": end, "actions": edits}


def find_include_span(
    origin: Origin, document: Document, positions: Utf16Text
) -> tuple[int, int] | None:
    """Return where the text names the file that a problem is in, or None."""
    place = origin.source.included_from
    while place is not None:
        if is_in_text(place, document):
            return positions.to_span(place)
        place = place.source.included_from
    return None


def is_in_text(origin: Origin | None, document: Document) -> bool:
    """Return whether a location is in a document."""
    return (
        origin is not None and origin.source.kind == "file" and origin.source.name == document.path
    )


def describe_run_size(resolved: Resolved) -> dict[str, Any]:
    """Return the size of a run: what a person checks before it starts."""
    training = resolved.run.training
    batch = training.global_batch_size
    tokens = batch * training.seq_len if isinstance(batch, int) else None
    steps = training.steps if isinstance(training.steps, int) else None
    return {
        "name": resolved.run.name,
        "model": resolved.run.model.name,
        "steps": steps,
        "epochs": training.epochs,
        "tokens_per_step": tokens,
        "tokens": steps * tokens if steps and tokens else None,
        "ranks": resolved.ranks,
        "has_checkpoints": getattr(resolved.run.checkpoint, "enable", None),
    }


def list_values(resolved: Resolved) -> list[dict[str, Any]]:
    """Return every value of a run with its source; secrets are masked."""
    values = dict(list_data_leaves(dump_config(resolved.run)))
    secret = {path for path, _ in iter_secrets(resolved.run)}
    return [
        {
            "path": format_path(path),
            "value": MASK if path in secret else values[path],
            **source_to_dict(source),
        }
        for path, source in collect_value_sources(resolved).items()
    ]


def build_schedule(resolved: Resolved) -> dict[str, Any] | None:
    """Return the learning rate over the steps, or None if the run sets no number of steps."""
    with suppress(ProblemsFound):
        curve = build_lr_curve(resolved.run)
        return {"x": list(curve.x), "y": list(curve.y)}
    return None
