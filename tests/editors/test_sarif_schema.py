"""SARIF logs of all kinds of mistakes, against the schema of the SARIF standard."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.package_metadata import build_environment

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "tests" / "problems").glob("*/recipe.yaml"))

pytestmark = pytest.mark.editors


@pytest.fixture(scope="session")
def schema(tools: Path) -> dict[str, Any]:
    """The schema, as Microsoft's matcher of jest brings it along."""
    package = tools.parent / "@microsoft" / "jest-sarif"
    [file] = package.glob("lib/schemas/sarif-2.1.0*.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8-sig"))
    return found


@pytest.mark.parametrize("urls", [{}, {"Documentation": "https://docs.test/latest"}])
def test_every_log_is_valid(schema: dict[str, Any], urls: dict[str, str], tmp_path: Path) -> None:
    assert len(RECIPES) > 100
    environment = build_environment(tmp_path, urls)
    validator = jsonschema.Draft7Validator(schema)
    validator.check_schema(schema)
    seen = set()
    for start in range(0, len(RECIPES), 40):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "titanrun",
                "validate",
                "--format",
                "sarif",
                *RECIPES[start : start + 40],
            ],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        log = json.loads(done.stdout)
        assert [error.message for error in validator.iter_errors(log)] == []
        [run] = log["runs"]
        driver = run["tool"]["driver"]
        declared = {rule["id"] for rule in driver["rules"]}
        assert ("informationUri" in driver) == bool(urls)
        assert all(("helpUri" in rule) == bool(urls) for rule in driver["rules"])
        assert {result["ruleId"] for result in run["results"]} == declared
        seen |= declared
    assert len(seen) > 100


def test_the_schema_rejects_what_is_wrong(schema: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"version": "2.1.0", "runs": [{"results": []}]}, schema)
