"""Write what a pull request to SchemaStore needs: the entry of its catalog, the schema, samples.

The schema is written in draft 7, which all of SchemaStore's readers know. A person sends the pull
request once the documentation has an address.

Usage: python tools/write_schemastore.py BASE_URL FOLDER
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from titanrun.config.version import VERSION
from titanrun.recipe.schemas.all_schemas import SCHEMAS, get_schema_file_name

ROOT = Path(__file__).parents[1]
NAME = "titanrun-recipe"
# recipes are named so where an editor is to know them. Other files called *.yaml are not ours
PATTERNS = [
    "*.titanrun.yaml",
    "*.titanrun.yml",
    "*.titanrun.toml",
    "**/.titanrun/recipes/*.yaml",
]
POSITIVE = (
    "recipes/llama3_debug.yaml",
    "recipes/llama3_debug.toml",
    "recipes/llama3_8b_sft_lora.yaml",
)
# mistakes of single values, which a schema can find
NEGATIVE = ("unknown-key", "wrong-type", "unknown-name", "missing-name", "missing-key")
# what draft 7 ignores beside a $ref
CONDITIONS = ("if", "then", "else")


def convert_to_draft_7(schema: Any) -> Any:
    """Return a schema of draft 2020-12 in the words of draft 7, without our own keywords.

    SchemaStore compiles in strict mode, which refuses keywords that it does not know.
    """
    if isinstance(schema, list):
        return [convert_to_draft_7(item) for item in schema]
    if isinstance(schema, str):
        return schema.replace("#/$defs/", "#/definitions/")
    if not isinstance(schema, dict):
        return schema
    converted = {
        "definitions" if key == "$defs" else key: convert_to_draft_7(value)
        for key, value in schema.items()
        if not key.startswith("x-")
    }
    if "$ref" in converted and any(word in converted for word in CONDITIONS):
        # an own schema, since all that stands beside a $ref is ignored
        return {"allOf": [{"$ref": converted.pop("$ref")}], **converted}
    return converted


def build_draft_7_schema(base_url: str | None = None) -> dict[str, Any]:
    """Build the schema of recipes in draft 7, with an $id where it is published."""
    schema: dict[str, Any] = convert_to_draft_7(SCHEMAS["recipe"]())
    del schema["$schema"]
    head = {"$schema": "http://json-schema.org/draft-07/schema#"}
    if base_url is not None:
        head["$id"] = f"{base_url.rstrip('/')}/{get_schema_file_name('recipe')}"
    return head | schema


def build_catalog_entry(base_url: str) -> dict[str, Any]:
    """Build the entry of SchemaStore's catalog."""
    address = f"{base_url.rstrip('/')}/{get_schema_file_name('recipe')}"
    return {
        "name": "titanrun recipe",
        "description": "Training recipe of titanrun",
        "fileMatch": PATTERNS,
        "url": address,
        "versions": {VERSION.rpartition(".")[0]: address},
    }


def write_submission(base_url: str, folder: Path) -> None:
    """Write all files below the paths that they have in SchemaStore's repository."""
    schema = folder / "src" / "schemas" / "json" / f"{NAME}.json"
    entry = folder / "catalog_entry.json"
    for path, content in (
        (schema, build_draft_7_schema(base_url)),
        (entry, build_catalog_entry(base_url)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    good, bad = (folder / "src" / name / NAME for name in ("test", "negative_test"))
    for samples in (good, bad):
        samples.mkdir(parents=True, exist_ok=True)
    for file in POSITIVE:
        shutil.copy(ROOT / file, good)
    for case in NEGATIVE:
        shutil.copy(ROOT / "tests" / "problems" / case / "recipe.yaml", bad / f"{case}.yaml")


def main() -> int:
    """Write the files, and return 2 for a wrong command line."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    write_submission(sys.argv[1], Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
