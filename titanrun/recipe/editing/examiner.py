"""Examination of recipes while they are edited: open texts stand for the files on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from titanrun.config.checksum import get_checksum_state
from titanrun.config.problems import DataPath, Origin, Problem
from titanrun.config.read_source import share_trees
from titanrun.config.source_streams import provide_text, withdraw_text
from titanrun.config.tree import Node, iter_nodes, to_plain_data
from titanrun.recipe.editing.cursor_context import RecipeFormat
from titanrun.recipe.resolving.multi_stage import STAGES
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.resolving.validation_levels import (
    ValidationLevel,
    ValidationResult,
    merge_stage_results,
    validate_file,
)

# a text without any of these is a part that other recipes extend
WHOLE_RECIPE_KEYS = frozenset({"model", "extends", STAGES})


@dataclass(slots=True)
class Document:
    """One open recipe, with the overrides of the command that would run it.

    `tree` and `runs` are those of the last text that could be read; positions in them may be out of
    date by the edits since.
    """

    path: str
    text: str
    overrides: tuple[str, ...] = ()
    tree: Node | None = None
    runs: tuple[Resolved, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def format(self) -> RecipeFormat:
        """Format by the suffix of the file name."""
        return "toml" if self.path.lower().endswith(".toml") else "yaml"

    @property
    def is_resolved(self) -> bool:
        """Whether this is a resolved recipe, which nobody edits."""
        return get_checksum_state(self.text) == "good"

    @property
    def data(self) -> object:
        """Plain data of the tree, which tells the components that the recipe uses."""
        return {} if self.tree is None else to_plain_data(self.tree)


@dataclass(slots=True)
class Examiner:
    """Open recipes, and the environment variables that they may name.

    Not re-entrant: reading a recipe activates its plug-ins for the whole process.
    """

    environment: Mapping[str, str]
    documents: dict[str, Document] = field(default_factory=dict)

    def open(self, path: str, text: str) -> Document:
        """Let `text` be what the file at `path` holds, until it is closed."""
        document = self.documents.setdefault(path, Document(path, text))
        document.text = text
        provide_text(path, text.encode("utf-8", "surrogatepass"))
        return document

    def close(self, path: str) -> None:
        """Let the file hold again what the disk holds."""
        self.documents.pop(path, None)
        withdraw_text(path)

    def examine(self, document: Document, level: ValidationLevel = "rules") -> tuple[Problem, ...]:
        """Return the problems of a document, and keep what its readable part says."""
        # a text with mistakes is read up to three times, and once more for each stage
        with share_trees():
            return self.examine_shared(document, level)

    def examine_shared(self, document: Document, level: ValidationLevel) -> tuple[Problem, ...]:
        """Examine a document, whose files are parsed once."""
        overrides = document.overrides
        result = self.validate(document.path, level, overrides)
        if result.stages:
            stages = [
                self.validate(f"{document.path}#{stage}", level, overrides)
                for stage in result.stages
            ]
            result = merge_stage_results(result, stages)
        tree = result.tree or self.validate(document.path, "syntax", overrides).tree
        if tree is not None:
            document.tree = tree
        runs = result.stage_runs or ((result.resolved,) if result.resolved else ())
        document.runs = runs or document.runs
        document.problems = tuple(
            problem
            for problem in result.problems
            if not (problem.code == "missing-key" and is_part(tree))
        )
        return document.problems

    def validate(
        self, file: str, level: ValidationLevel, overrides: tuple[str, ...]
    ) -> ValidationResult:
        """Validate one recipe, or one stage of it."""
        return validate_file(file, overrides, level=level, environment=self.environment)


def is_part(tree: Node | None) -> bool:
    """Return whether a text is only a part of recipes: it neither has a model nor extends one."""
    return (
        tree is not None
        and isinstance(tree.value, dict)
        and not WHOLE_RECIPE_KEYS.intersection(tree.value)
    )


def is_in_document(origin: Origin | None, document: Document) -> bool:
    """Return whether a location is in the file of a document."""
    return (
        origin is not None and origin.source.kind == "file" and origin.source.name == document.path
    )


def find_path_at(document: Document, line: int, column: int) -> tuple[DataPath, Origin] | None:
    """Return the innermost path whose key or value is at a location, and that location.

    The line and the column count from 1.
    """
    found: tuple[DataPath, Origin] | None = None
    if document.tree is None:
        return None
    for path, node in iter_nodes(document.tree):
        for origin in (node.key, node.origin):
            if (
                path
                and origin is not None
                and is_in_document(origin, document)
                and origin.line == line
                and origin.column <= column <= origin.end_column
                and not (origin is node.origin and isinstance(node.value, dict | list))
            ):
                found = path, origin
    return found


def strip_stage(path: DataPath) -> DataPath:
    """Return the path inside a run of what `stages[0].training.steps` sets."""
    is_staged = path[:1] == (STAGES,) and len(path) > 2 and isinstance(path[1], int)
    return path[2:] if is_staged else path


def get_folder(document: Document) -> Path:
    """Return the folder of a document, to which its paths are relative."""
    return Path(document.path).parent
