"""`titanrun cp` writes recipes as TOML, and back as YAML."""

from pathlib import Path

import pytest

from titanrun.cli.cp import run as cp
from titanrun.cli.show import run as show
from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

MINE = """# my own
version: 1
extends: [shipped:llama3_sft_debug.yaml]
description: "a \\"text\\"\\nof two lines"
converters+: [{name: lora, rank: 4}]
training: {local_batch_size: 2, steps: 100, tokens: null}
lr_scheduler: {warmup_steps: 2}
dump_folder: runs/${name}
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def resolve(file: str) -> object:
    return dump_config(resolve_recipe(file, environment={}).run)


@pytest.mark.parametrize("name", ["llama3_8b", "rl/char_share", "deepseek_v3_16b"])
def test_a_shipped_recipe_is_the_same_run_as_toml(name: str) -> None:
    cp([name, "mine.toml"])
    cp([name, "mine.yaml"])
    assert resolve("mine.toml") == resolve("mine.yaml")
    assert "# purpose: " in Path("mine.toml").read_text()


def test_a_recipe_of_the_user_is_the_same_run_in_both_formats() -> None:
    Path("mine.yaml").write_text(MINE)
    cp(["mine.yaml", "mine.toml"])
    cp(["mine.toml", "back.yaml"])
    assert resolve("mine.yaml") == resolve("mine.toml") == resolve("back.yaml")
    assert "\n# my own\n" in Path("back.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine.yaml", "other/mine.toml"], "is in another folder than 'mine.yaml'"),
        (["mine.yaml", "other.yaml"], "no shipped recipe 'mine.yaml'"),
        (["llama3_debug", "mine.json"], "does not end in .yaml or .toml"),
    ],
)
def test_what_is_not_copied_is_told(words: list[str], message: str) -> None:
    Path("mine.yaml").write_text(MINE)
    Path("other").mkdir()
    with pytest.raises(ProblemsFound, match=message):
        cp(words)


def test_show_writes_no_recipe_into_a_file() -> None:
    Path("mine.yaml").write_text(MINE)
    with pytest.raises(ProblemsFound, match="--out names the file of --plot"):
        show(["mine.yaml", "-o", "out.toml"])
