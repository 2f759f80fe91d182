"""Numbers in words, the same in the report and in the pages of titanrun ui."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from titanrun.report import figures

ROOT = Path(__file__).parents[2]
CASES: dict[str, list[tuple[Any, str]]] = json.loads(
    (ROOT / "tests" / "ui" / "figures.json").read_text(encoding="utf-8")
)
IN_NODE = """
import { readFileSync } from "node:fs";
import { build } from "esbuild";
const options = { bundle: true, format: "esm", write: false };
const made = await build({ entryPoints: ["src/format.ts"], ...options });
const text = Buffer.from(made.outputFiles[0].text).toString("base64");
const format = await import("data:text/javascript;base64," + text);
const cases = JSON.parse(readFileSync(process.argv[2], "utf8"));
const found = {};
for (const [name, rows] of Object.entries(cases)) {
  found[name] = rows.map(([value]) => [value, format[name](value)]);
}
console.log(JSON.stringify(found));
"""


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_written_as_the_table_says(name: str) -> None:
    write = getattr(figures, snake(name))
    for value, text in CASES[name]:
        number = float(value) if value in ("nan", "inf", "-inf") else value
        assert write(number) == text, value


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("loss", 3.5343997478485107, "3.5344"),
        ("validation/loss", 3.5, "3.5000"),
        ("lr", 4.1667e-05, "4.2e-5"),
        ("tps", 1966.7, "1,967"),
        ("grad_norm", 0.557423, "0.5574"),
        ("loss", float("nan"), "NaN"),
    ],
)
def test_a_metric_is_written_by_its_name(name: str, value: float, text: str) -> None:
    assert figures.format_metric(name, value) == text


@pytest.mark.browser
def test_the_pages_of_the_browser_write_the_same(tmp_path: Path) -> None:
    """`make test-browser` has installed esbuild, which turns TypeScript into JavaScript."""
    script = ROOT / "ui" / "node_modules" / ".figures.mjs"
    script.write_text(IN_NODE)
    done = subprocess.run(
        ["node", str(script), str(ROOT / "tests" / "ui" / "figures.json")],
        cwd=ROOT / "ui",
        capture_output=True,
        text=True,
        check=False,
    )
    script.unlink()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == CASES
