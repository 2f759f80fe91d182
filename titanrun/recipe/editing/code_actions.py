"""Edits that an editor offers for problems: certain corrections, suggestions, and all at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from titanrun.config.checksum import get_checksum_state
from titanrun.config.problems import Fix, Problem
from titanrun.config.text_edits import build_word_fix
from titanrun.recipe.editing.autofix import MOST_ROUNDS, get_source_texts, try_apply_fixes
from titanrun.recipe.editing.examiner import Document, is_in_document


@dataclass(frozen=True, slots=True)
class CodeAction:
    """One edit for one problem. A preferred one is certain, others are guesses."""

    title: str
    problem: Problem
    fix: Fix
    is_preferred: bool


def list_code_actions(problems: Sequence[Problem]) -> list[CodeAction]:
    """Return the edits for problems, none in a resolved recipe."""
    found = []
    for problem in problems:
        if problem.origin is None or get_checksum_state(problem.origin.source.text) == "good":
            continue
        guess = find_suggested_fix(problem)
        if problem.fix is not None:
            title = f"Replace by '{problem.fix.replacement}'"
            found.append(CodeAction(title, problem, problem.fix, is_preferred=True))
        elif guess is not None:
            title = f"Replace by '{guess.replacement}'"
            found.append(CodeAction(title, problem, guess, is_preferred=False))
    return found


def find_suggested_fix(problem: Problem) -> Fix | None:
    """Return the edit to the suggestion of a problem, if the word it replaces is in its place."""
    if problem.suggestion is None:
        return None
    named = problem.got.get("name") if isinstance(problem.got, dict) else problem.got
    written = [word for word in (*problem.path[-1:], named) if isinstance(word, str)]
    for word in written:
        fix = build_word_fix(problem.origin, word, problem.suggestion)
        if fix is not None:
            return fix
    return None


def fix_text(document: Document, examine: Callable[[str], Sequence[Problem]]) -> str:
    """Return the text of a document with all certain corrections in its own file.

    Args:
        document: The recipe.
        examine: Returns the problems of a text of this recipe.
    """
    text = document.text
    for _ in range(MOST_ROUNDS):
        fixes = [
            problem.fix
            for problem in examine(text)
            if problem.fix is not None and is_in_document(problem.fix.origin, document)
        ]
        done = [try_apply_fixes(source, fixes) for source in get_source_texts(fixes)]
        new = next((found for found in done if found is not None), None)
        if new is None or new == text:
            return text
        text = new
    return text
