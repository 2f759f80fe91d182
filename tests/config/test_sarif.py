"""SARIF logs: what GitHub's code scanning reads of them."""

from pathlib import Path
from typing import Any

import pytest

from titanrun.config.problems import Fix, Origin, Problem, SourceText
from titanrun.config.sarif import build_sarif_log
from titanrun.config.version import VERSION

FOLDER = Path("/work/recipes of mine")


def build_problem(name: str, line: int = 1, **more: Any) -> Problem:
    source = SourceText(name, "a: 1\na: 1\nb: 2\n", kind=more.pop("kind", "file"))
    return Problem("unknown-key", "no key", (), Origin(source, line, 1, 2), **more)


def build_run(*problems: Problem) -> dict[str, Any]:
    log: dict[str, Any] = build_sarif_log(problems, FOLDER)
    [run] = log["runs"]
    return run  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mine.yaml", {"uri": "mine.yaml", "uriBaseId": "SRCROOT"}),
        ("/work/recipes of mine/a b.yaml", {"uri": "a%20b.yaml", "uriBaseId": "SRCROOT"}),
        ("sub/../mine.yaml", {"uri": "mine.yaml", "uriBaseId": "SRCROOT"}),
        ("../other.yaml", {"uri": "file:///work/other.yaml"}),
        ("/etc/mine.yaml", {"uri": "file:///etc/mine.yaml"}),
    ],
)
def test_files_of_the_folder_have_relative_addresses(name: str, expected: dict[str, str]) -> None:
    run = build_run(build_problem(name))
    assert run["originalUriBaseIds"] == {"SRCROOT": {"uri": "file:///work/recipes%20of%20mine/"}}
    [result] = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == expected


def test_the_driver_describes_each_rule_once() -> None:
    driver = build_run(
        build_problem("a.yaml"),
        build_problem("a.yaml", 2, severity="warning"),
        Problem("conflict", "not together", rule="heads-divide-over-tp"),
    )["tool"]["driver"]
    assert driver["version"] == VERSION
    assert [(rule["id"], rule["defaultConfiguration"]["level"]) for rule in driver["rules"]] == [
        ("conflict/heads-divide-over-tp", "error"),
        ("unknown-key", "error"),
    ]
    assert driver["rules"][0]["help"]["text"] == "titanrun explain conflict/heads-divide-over-tp"


def test_fingerprints_stay_when_a_line_moves_and_differ_for_equal_lines() -> None:
    def fingerprints(*lines: int) -> list[str]:
        results = build_run(*(build_problem("a.yaml", line) for line in lines))["results"]
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]

    first, second, third = fingerprints(1, 2, 3)
    assert len({first, second, third}) == 3
    assert fingerprints(2) == [first]


def test_an_override_has_no_file() -> None:
    [result] = build_run(build_problem("<override 1>", kind="override"))["results"]
    assert result["locations"] == [{"logicalLocations": [{"fullyQualifiedName": "<override 1>"}]}]


def test_a_correction_names_its_file_and_region() -> None:
    problem = build_problem("a.yaml")
    assert problem.origin is not None
    fixed = build_problem("a.yaml", fix=Fix(problem.origin, "b"))
    [result] = build_run(fixed)["results"]
    [change] = result["fixes"][0]["artifactChanges"]
    assert change["artifactLocation"] == {"uri": "a.yaml", "uriBaseId": "SRCROOT"}
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": 1, "startColumn": 1, "endColumn": 2},
            "insertedContent": {"text": "b"},
        }
    ]
