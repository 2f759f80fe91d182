"""Addresses of problems: those of the site's pages, if the package's metadata names the site."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.package_metadata import build_environment
from titanrun.config.problems import Problem, ProblemCode
from titanrun.recipe import builtins
from titanrun.recipe.reference.documentation_site import (
    CODE_PAGE,
    find_documentation_url,
    get_problem_location,
)
from titanrun.recipe.reference.problem_codes import RUN_END_CODES
from titanrun.recipe.rules.registry import RULES
from tools.copy_pages import split_long_page

ADDRESS = "https://docs.test/titanrun/latest/"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Documentation, https://docs.test/latest"], "https://docs.test/latest/"),
        (["Source, https://code.test", "documentation, http://docs.test/"], "http://docs.test/"),
        (["Documentation, https://docs.test/index.html"], "https://docs.test/index.html"),
        (["Source, https://code.test"], None),
        (["Documentation, docs/README.md"], None),
        ([], None),
    ],
)
def test_the_address_is_that_of_the_documentation(lines: list[str], expected: str | None) -> None:
    assert find_documentation_url(lines) == expected


def list_problems() -> Iterator[Problem]:
    """Yield a problem of each code and of each rule."""
    builtins.load_rules()
    yield from (Problem(code, "any") for code in get_args(ProblemCode))
    for name in [*RULES, *RUN_END_CODES]:
        yield Problem("conflict", "any", rule=name)


def test_every_problem_leads_to_a_heading_of_the_site() -> None:
    pages = split_long_page()
    locations = [get_problem_location(problem) for problem in list_problems()]
    assert len(set(locations)) > 240
    for location in locations:
        page, _, heading = location.partition(".html#")
        text = pages[f"{page}.md"]
        assert f"\n## `{heading}`\n" in text or f"`{heading}`{{: #{heading} }}:" in text, location


def test_a_rule_of_a_plug_in_leads_to_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    builtins.load_rules()
    foreign = replace(RULES["batch-sizes-divide"], id="of-a-plug-in", module="pebble.configs")
    monkeypatch.setitem(RULES, foreign.id, foreign)
    problem = Problem("no-effect", "any", rule="of-a-plug-in")
    assert get_problem_location(problem) == f"{CODE_PAGE}#no-effect"


@pytest.mark.parametrize("has_site", [True, False])
def test_a_sarif_log_links_to_the_site_of_the_metadata(has_site: bool, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "version: 1\nextends: [shipped:llama3_debug.yaml]\n"
        "parallelism: {tensor_parallel_degree: 3}\ntraining: {stepz: 3}\n"
    )
    urls = {"Source": "https://code.test"} | ({"Documentation": ADDRESS} if has_site else {})
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "validate", "--format", "sarif", str(recipe)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=build_environment(tmp_path / "packages", urls),
    )
    assert done.returncode == 2, done.stderr
    driver: dict[str, Any] = json.loads(done.stdout)["runs"][0]["tool"]["driver"]
    found = {rule["id"]: rule.get("helpUri") for rule in driver["rules"]}
    assert "conflict/heads-divide-over-tp" in found
    if not has_site:
        assert "informationUri" not in driver
        assert set(found.values()) == {None}
        return
    assert driver["informationUri"] == ADDRESS
    assert found["unknown-key"] == f"{ADDRESS}reference/problem_codes.html#unknown-key"
    rule = "heads-divide-over-tp"
    assert found[f"conflict/{rule}"] == f"{ADDRESS}reference/rules.html#{rule}"
