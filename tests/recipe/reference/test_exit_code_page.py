"""The page of exit codes: all codes of the program, each with what to do."""

import re
from pathlib import Path

import pytest

from titanrun.config import exit_codes
from titanrun.config.problems import EXIT_CODES, Problem
from titanrun.recipe.reference.exit_code_page import (
    EXIT_CODE_DOCUMENTATION,
    build_exit_code_page,
    format_anchor,
    format_title,
)
from titanrun.recipe.reference.problem_codes import RUN_END_CODES

ROOT = Path(__file__).parents[3]
PAGE = build_exit_code_page()
DEFINED = {
    int(value) for name, value in vars(exit_codes).items() if re.fullmatch("EXIT_[A-Z_]+", name)
}
# a number that is an exit code: `EXIT_HANG = 6`, `return 75`, `sys.exit(2)`
LITERAL = re.compile(
    r"^EXIT_\w+ = \d+$|\b(?:return|exit\()\s*(?:7[05]|13[078]|143)\b", re.MULTILINE
)


def test_every_exit_code_is_documented() -> None:
    assert set(EXIT_CODE_DOCUMENTATION) == DEFINED
    assert {0, 1, 2, 3, 4, 5, 6, 7, 8, 70, 75, 130, 137, 143} <= DEFINED
    for code, about in EXIT_CODE_DOCUMENTATION.items():
        assert f"\n## {format_title(code, about)}\n" in PAGE
        assert f"| [{code}](#{format_anchor(code, about)}) |" in PAGE


def test_no_module_defines_exit_codes_of_its_own() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "titanrun").rglob("*.py")
        if LITERAL.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"titanrun/config/exit_codes.py"}


@pytest.mark.parametrize("code", EXIT_CODES)
def test_the_section_of_a_problem_code_names_its_message(code: str) -> None:
    number = Problem(code, "any").exit_code  # type: ignore[arg-type]
    section = PAGE.partition(f"\n## Exit code {number}:")[2].partition("\n## ")[0]
    assert f"`error[{code}]`" in section


def test_codes_of_runs_that_end_are_those_that_explain_knows() -> None:
    named = {name for about in EXIT_CODE_DOCUMENTATION.values() for name in about.message_codes}
    assert named == {"non-finite", "hang", "memory", "disk", "corruption", "killed"}
    assert named <= set(RUN_END_CODES)
