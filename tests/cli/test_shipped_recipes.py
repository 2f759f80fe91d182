"""Recipes to begin with: ls, cat and init, as their users run them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.shipped import RUN_RECIPES
from titanrun.config.problems import ProblemsFound
from titanrun.recipe import builtins
from titanrun.recipe.recipe import find_lora_converter
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.reference.recipe_template import build_recipe_template
from titanrun.recipe.resolving.recipe_file import find_recipe_file
from titanrun.recipe.resolving.resolve import resolve_recipe

ROOT = Path(__file__).parents[2]
SWITCHED_OFF = re.compile(r"^( *)#(?=[a-z_\[])", re.MULTILINE)
MODELS = [None, *builtins.MODEL_FAMILIES, "llama3:8B"]


def titanrun(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "titanrun", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


def test_cat_prints_a_shipped_recipe_as_it_is(tmp_path: Path) -> None:
    assert titanrun("cat", "llama3_debug", cwd=tmp_path).stdout == (
        ROOT / "recipes" / "llama3_debug.yaml"
    ).read_text(encoding="utf-8")
    assert titanrun("cat", "llama3_debug.toml", cwd=tmp_path).stdout == (
        ROOT / "recipes" / "llama3_debug.toml"
    ).read_text(encoding="utf-8")
    wrong = titanrun("cat", "lama3_debug", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean 'llama3_debug'?" in wrong.stderr


def test_init_writes_a_recipe_that_validates_and_never_overwrites(tmp_path: Path) -> None:
    done = titanrun("init", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "recipe.yaml\n",
        "next: titanrun train recipe.yaml\n",
    )
    text = (tmp_path / "recipe.yaml").read_text(encoding="utf-8")
    schema = re.match(r"# yaml-language-server: \$schema=(.*)\n", text)
    assert schema is not None
    assert (tmp_path / schema[1]).is_file()
    assert titanrun("validate", "recipe.yaml", "--strict", cwd=tmp_path).returncode == 0
    again = titanrun("init", cwd=tmp_path)
    assert again.returncode == 2
    assert "'recipe.yaml' already exists" in again.stderr
    assert (tmp_path / "recipe.yaml").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("words", [("cp", "llama3_debug"), ("init", "-o")], ids=["cp", "init"])
def test_a_new_recipe_names_a_schema_that_moves_with_it(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Row C20 of the defect list."""
    (tmp_path / "runs").mkdir()
    for file, schema in (
        ("first.yaml", ".titanrun/recipe.schema.json"),
        ("runs/second.yaml", "../.titanrun/recipe.schema.json"),
    ):
        assert titanrun(*words, file, cwd=tmp_path).returncode == 0
        line = (tmp_path / file).read_text(encoding="utf-8").splitlines()[0]
        assert line == f"# yaml-language-server: $schema={schema}"
    copy = tmp_path / ".titanrun" / "recipe.schema.json"
    assert copy.read_bytes() == (ROOT / "schemas" / "recipe.schema.json").read_bytes()
    copy.write_text("{}", encoding="utf-8")
    assert titanrun(*words, "first.yaml", cwd=tmp_path).returncode == 2
    assert copy.read_text(encoding="utf-8") == "{}"
    assert titanrun(*words, "third.yaml", cwd=tmp_path).returncode == 0
    assert copy.stat().st_size > 2


def test_init_writes_the_same_recipe_as_toml(tmp_path: Path) -> None:
    for file in ("mine.yaml", "mine.toml"):
        assert titanrun("init", "-o", file, cwd=tmp_path).returncode == 0
    schema = re.match(r"#:schema (.*)\n", (tmp_path / "mine.toml").read_text(encoding="utf-8"))
    assert schema is not None
    assert (tmp_path / schema[1]).is_file()
    assert titanrun("diff-config", "mine.yaml", "mine.toml", "--written", cwd=tmp_path).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "lama3"], "did you mean 'llama3'?"),
        (["--model", "llama3:8b"], "did you mean '8B'?"),
        (["-o", "mine.json"], "does not end in .yaml or .toml"),
        (["-o", "nowhere/mine.yaml"], "cannot write 'nowhere/mine.yaml'"),
    ],
    ids=str,
)
def test_init_says_what_is_wrong_and_writes_nothing(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = titanrun("init", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", MODELS)
def test_init_writes_what_a_first_run_needs_in_60_lines(model: str | None, tmp_path: Path) -> None:
    """Row C15: it wrote 490 lines. The short recipe and the full one are the same run."""
    runs = []
    for is_full in (False, True):
        text = build_recipe_template(model, file="r.yaml", schema="s.json", is_full=is_full)
        assert is_full or len(text.splitlines()) <= 60
        assert max(map(len, text.splitlines())) <= 80
        (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
        runs.append(resolve_recipe(str(tmp_path / "r.yaml"), environment={}).text)
    assert runs[0] == runs[1]


def test_init_writes_every_setting_on_request(tmp_path: Path) -> None:
    assert titanrun("init", "--full", cwd=tmp_path).returncode == 0
    assert len((tmp_path / "recipe.yaml").read_text(encoding="utf-8").splitlines()) > 300


@pytest.mark.parametrize("is_full", [False, True], ids=["short", "full"])
@pytest.mark.parametrize("file_format", ["yaml", "toml"])
@pytest.mark.parametrize("model", MODELS)
def test_switching_every_setting_on_changes_nothing(
    model: str | None, file_format: Literal["yaml", "toml"], is_full: bool, tmp_path: Path
) -> None:
    text = build_recipe_template(
        model,
        file="recipe.yaml",
        schema="recipe.schema.json",
        file_format=file_format,
        is_full=is_full,
    )
    recipe = tmp_path / f"recipe.{file_format}"
    recipe.write_text(text, encoding="utf-8")
    as_written = resolve_recipe(str(recipe), environment={})
    assert as_written.warnings == ()
    everything_on = SWITCHED_OFF.sub(r"\1", text)
    assert everything_on.count("\n#") < text.count("\n#")
    recipe.write_text(everything_on, encoding="utf-8")
    assert resolve_recipe(str(recipe), environment={}).text == as_written.text


@pytest.mark.parametrize(
    "entry", shipped_recipes.list_shipped_recipes(), ids=lambda entry: entry.name
)
def test_every_shipped_recipe_has_the_whole_header(entry: shipped_recipes.ShippedRecipe) -> None:
    assert [key for key in shipped_recipes.HEADER_KEYS if not entry.header.get(key)] == []


def test_ls_filters_recipes_by_their_header(tmp_path: Path) -> None:
    def named(*filters: str) -> list[str]:
        lines = titanrun("ls", "recipes", "--json", *filters, cwd=tmp_path).stdout.splitlines()
        return [json.loads(line)["name"] for line in lines]

    assert "llama3_debug.yaml" in named(
        "--method", "pretraining", "--model", "llama3", "--devices", "cpu"
    )
    assert named("--model", "no_such_model") == []
    first = json.loads(titanrun("ls", "recipes", "--json", cwd=tmp_path).stdout.splitlines()[0])
    assert set(shipped_recipes.HEADER_KEYS) <= set(first)
    about = named("lora", "chat")
    assert {"llama3_8b_sft_lora.yaml", "llama3_qlora_sft_debug.yaml"} < set(about)
    assert not {"llama3_lora_debug.yaml", "chat_qwen3_0.6b.yaml"} & set(about)
    short, long = (
        titanrun("ls", "recipes", "pre", *more, cwd=tmp_path).stdout for more in ((), ("--long",))
    )
    assert len(short.splitlines()) < len(long.splitlines()) / 3
    assert "memory:  1 GiB" in long and "memory:" not in short


def test_a_recipe_has_the_names_of_its_tasks() -> None:
    names = [name for entry in shipped_recipes.list_shipped_recipes() for name in set(entry.names)]
    files = [entry.name for entry in shipped_recipes.list_shipped_recipes()]
    # llama3_debug is shipped as YAML and as TOML
    assert {name for name in names if names.count(name) > 1} == {"llama3_debug"}
    for name, file in (
        ("first_chat", "llama3_sft_debug.yaml"),
        ("first_lora", "llama3_qlora_sft_debug.yaml"),
        ("first_kto", "llama3_kto_debug.yaml"),
        ("first_reward_model", "llama3_reward_debug.yaml"),
        ("chat_qwen3_8b_lora", "qwen3_8b_sft_lora.yaml"),
        ("chat_llama3_8b_qlora", "llama3_8b_qlora_sft.yaml"),
    ):
        assert file in files
        assert shipped_recipes.get_shipped_recipe(name).name == file
        assert Path(find_recipe_file(name)).name == file


def test_recipes_with_adapters_are_found_by_their_method() -> None:
    for entry in shipped_recipes.list_shipped_recipes():
        if entry.path not in RUN_RECIPES:
            continue
        run = resolve_recipe(str(entry.path), environment={}).run
        has_adapters = find_lora_converter(run) is not None
        assert entry.matches({"method": "lora"}) == has_adapters, entry.name


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("chat_qwen3_0.6b.yaml", "fine-tuning"),
        ("continue_pretraining_lora.yaml", "fine-tuning"),
        ("distill_qwen3_8b_to_0.6b.yaml", "fine-tuning"),
        ("first_preferences.yaml", "preferences and rewards"),
        ("llama3_reward_debug.yaml", "preferences and rewards"),
        ("rl/reverse3.yaml", "reinforcement learning"),
        ("llama3_8b.yaml", "pretraining"),
        ("flux_debug.yaml", "images"),
    ],
)
def test_ls_groups_recipes_by_task(name: str, task: str, tmp_path: Path) -> None:
    lines = titanrun("ls", "recipes", cwd=tmp_path).stdout.splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith(f"  {name} "))
    heads = [line for line in lines[:place] if line.startswith(" ") and line.endswith(":")]
    assert [head for head in heads if not head.startswith("  ")][-1] == f" {task}:"
    assert shipped_recipes.get_shipped_recipe(name).task == task


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recipes", "--metod=x"], "did you mean '--method'?"),
        (["models", "--method", "x"], "--method filters recipes only"),
        (["models", "qwen"], "'qwen' filters recipes only"),
    ],
    ids=str,
)
def test_a_filter_nobody_knows_is_a_problem(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = titanrun("ls", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_number_in_a_filter_is_that_number() -> None:
    assert shipped_recipes.has_all_words("8 GPUs", "8 GPUs or more")
    assert not shipped_recipes.has_all_words("8", "80 GiB")
    assert shipped_recipes.has_all_words("llama", "Llama3 8B")
    assert shipped_recipes.has_all_words("lora", "SFT with QLoRA")
    assert not shipped_recipes.has_all_words("rl", "a URL")


def test_a_file_that_is_no_shipped_recipe_is_told_briefly(tmp_path: Path) -> None:
    for name in ("nosuch", str(tmp_path / "mine.yaml")):
        with pytest.raises(ProblemsFound) as found:
            shipped_recipes.get_shipped_recipe(name)
        (problem,) = found.value.problems
        assert problem.hint == "titanrun ls recipes lists them"
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(ProblemsFound) as found:
        shipped_recipes.get_shipped_recipe(name)
    assert str(found.value.problems[0].hint).endswith("is a file: the cp of your shell copies it")
