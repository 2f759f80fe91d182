"""The path of docs/model_family.md: a model family in two files validates, trains and is saved."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tools.run_pages import check_page, find_blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "model_family.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES: dict[str, str] = dict(
    re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
)


def test_a_family_takes_two_files_of_which_one_needs_torch() -> None:
    assert len(re.findall(r"^```(?:python|yaml)$", TEXT, re.MULTILINE)) == len(FILES)
    assert set(FILES) == {"mixer_config.py", "mixer_model.py", "mixer.yaml"}
    assert [name for name, text in FILES.items() if "import torch" in text] == ["mixer_model.py"]


def write_files(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_the_page_trains_what_it_describes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write_files(tmp_path)
    assert check_page(PAGE, tmp_path) == len(list(find_blocks(TEXT))) == 3
    run = tmp_path / "runs" / "mixer"
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0] - 0.5
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
