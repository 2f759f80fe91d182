"""What describes the package in several files is the same in all of them."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from titanrun.config.version import VERSION

ROOT = Path(__file__).parents[2]
CORE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FULL_FILE = ROOT / "packages" / "titanrun" / "pyproject.toml"
FULL = tomllib.loads(FULL_FILE.read_text(encoding="utf-8"))["project"]
DEVELOPMENT = {"test", "dev", "oracles"}


def test_the_citation_names_the_version_and_license_of_the_package() -> None:
    citation = YAML(typ="safe").load(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == FULL["version"] == VERSION
    assert citation["license"] == FULL["license"]
    assert citation["title"] == FULL["name"]
    assert citation["authors"] == FULL["authors"]


@pytest.mark.parametrize("project", [CORE, FULL], ids=["titanrun-core", "titanrun"])
def test_no_license_classifier_contradicts_the_license_expression(project: dict[str, Any]) -> None:
    assert [line for line in project["classifiers"] if line.startswith("License ::")] == []


def test_both_distributions_describe_themselves_alike() -> None:
    for key in ("requires-python", "license", "authors", "keywords", "classifiers"):
        assert CORE[key] == FULL[key], key


def test_the_full_distribution_needs_this_core_and_passes_its_extras_on() -> None:
    assert FULL["dependencies"][0] == f"titanrun-core=={VERSION}"
    assert FULL["optional-dependencies"] == {
        extra: [f"titanrun-core[{extra}]=={VERSION}"]
        for extra in CORE["optional-dependencies"]
        if extra not in DEVELOPMENT
    }


def test_no_requirement_is_in_both() -> None:
    core, full = (
        {Requirement(line).name for line in lines}
        for lines in (CORE["dependencies"], FULL["dependencies"])
    )
    assert core & full == set()
