"""ajv, the validator of SchemaStore and many editors, with both forms of the recipe schema."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.test_write_schemastore import read
from titanrun.recipe.schemas.all_schemas import SCHEMAS
from tools.write_schemastore import NAME, build_draft_7_schema, write_submission

pytestmark = pytest.mark.editors
SCRIPT = """
const [library, keywords, schema, samples] = process.argv.slice(2);
const {default: Ajv} = require(library);
const validate = new Ajv({strict: true, strictTypes: false, strictRequired: false,
                          validateFormats: false, keywords: JSON.parse(keywords)})
    .compile(require(schema));
const verdicts = Object.entries(require(samples)).map(([name, recipe]) => [name, validate(recipe)]);
console.log(JSON.stringify(Object.fromEntries(verdicts)));
"""


@pytest.mark.parametrize(
    ("library", "schema", "keywords"),
    [("ajv", build_draft_7_schema, []), ("ajv/dist/2020", SCHEMAS["recipe"], ["x-runs"])],
    ids=["draft 7", "draft 2020-12"],
)
def test_ajv_accepts_and_rejects_the_samples(
    library: str,
    schema: Callable[[], dict[str, Any]],
    keywords: list[str],
    tools: Path,
    tmp_path: Path,
) -> None:
    write_submission("https://docs.example/schemas/0.1", tmp_path)
    samples, expected = {}, {}
    for kind, is_valid in (("test", True), ("negative_test", False)):
        for path in (tmp_path / "src" / kind / NAME).iterdir():
            samples[path.name], expected[path.name] = read(path), is_valid
    (tmp_path / "run.js").write_text(SCRIPT)
    for name, content in (("schema.json", schema()), ("samples.json", samples)):
        (tmp_path / name).write_text(json.dumps(content))
    done = subprocess.run(
        [
            *("node", "run.js", tools.parent / library, json.dumps(keywords)),
            *("./schema.json", "./samples.json"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
