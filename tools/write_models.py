"""Write docs/models.md from tests/models/results.json.

The tests update that file when TITANRUN_WRITE_FAMILIES is set.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.proofs import COLUMNS, PROOFS, REFUSED, RESULTS  # noqa: E402

TARGET = ROOT / "docs" / "models.md"
PAGES = ("llama3", "qwen3", "deepseek_v3", "gpt_oss", "llama4", "flux", "decoder", "transformers")
HEAD = """# Supported models and tested features

A cell says `yes` if the test below passed, on a CPU in fp32 with a tiny model: HF parity and \
`export opens` against the class of
transformers (for flux: of diffusers) on random weights; layouts on gloo ranks against one process \
(losses within 1e-5, gradients 5e-6),
compiled with aot_eager; float8 emulated, two steps within 2% of the losses without it. `no` is \
rejected by design. Nothing was tested
on a GPU.

This page is written by `tools/write_models.py`; `TITANRUN_WRITE_FAMILIES=1 pytest -m "slow or not \
slow" ...` updates the results.

"""


def page() -> str:
    """Build the whole page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    lines = [f"| family | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [
        f"| {titled(family)} | {' | '.join(cell(family, column, results) for column in COLUMNS)} |"
        for family in PROOFS
    ]
    lines += [
        "",
        "| rejected | reason |",
        "|---|---|",
        *(f"| {family}: {column} | {why} |" for (family, column), why in REFUSED.items()),
    ]
    lines += ["", "| family | cell | test | commit, date |", "|---|---|---|---|"]
    for family, proofs in PROOFS.items():
        for column in (column for column in COLUMNS if column in proofs):
            found = results.get(proofs[column])
            stamp = "unproven" if found is None else f"{found['commit']}, {found['date']}"
            lines.append(
                f"| {family} | {column} | `{proofs[column].removeprefix('tests/')}` | {stamp} |"
            )
    return HEAD + "\n".join(lines) + "\n"


def titled(family: str) -> str:
    """Return the family, with a link to its page where it has one."""
    return f"[{family}](models/{family}.md)" if family in PAGES else family


def cell(family: str, column: str, results: dict[str, dict[str, str]]) -> str:
    """`yes`, `no`, or `unproven`."""
    if (family, column) in REFUSED:
        return "no"
    return "yes" if PROOFS[family][column] in results else "unproven"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
