"""A setting of adapters beside their converter keeps the other settings of the converter."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

LORA = "{name: lora, rank: 16, alpha: 32}"


def write_recipe(folder: Path, text: str) -> str:
    file = folder / "recipe.yaml"
    file.write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\n"
        f"training: {{dataset: tiny, seq_len: 64}}\n{text}"
    )
    return str(file)


def list_hints(recipe: str, *overrides: str) -> list[str | None]:
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(recipe, overrides, environment={})
    return [problem.hint for problem in found.value.problems]


@pytest.mark.parametrize(
    ("override", "written"),
    [
        ("rank=8", ["converters[1].rank=8"]),
        ("lora_alpha=8", ["converters[1].alpha=8"]),
        ("lora.rank=8", ["converters[1].rank=8"]),
        ("peft={r: 8, lora_dropout: 0.1}", ["converters[1].rank=8", "converters[1].dropout=0.1"]),
    ],
)
def test_the_command_line_sets_what_the_converter_has(
    override: str, written: list[str], tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, f"converters: [{{name: fp32_lm_head}}, {LORA}]\n")
    quoted = " ".join(f"'{one}'" for one in written)
    assert list_hints(recipe, override) == [f"write {quoted}"]
    kept = resolve_recipe(recipe, written, environment={}).run.converters[1]
    assert kept.name == "lora" and 8 in (kept.rank, kept.alpha)
    assert kept.alpha == (8 if "alpha" in override else 32)


@pytest.mark.parametrize(
    ("converters", "told"),
    [
        (f"[{LORA}]", "write converters: [{name: lora, rank: 8, alpha: 32, dropout: 0.1}]"),
        ("[lora]", "write converters: [{name: lora, rank: 8, dropout: 0.1}]"),
        (
            f"[fp32_lm_head, {LORA}]",
            "write {name: lora, rank: 8, alpha: 32, dropout: 0.1} in place of converters[1]",
        ),
    ],
)
def test_a_file_keeps_the_other_settings(converters: str, told: str, tmp_path: Path) -> None:
    text = f"converters: {converters}\nrank: 8\nlora_dropout: 0.1\n"
    assert list_hints(write_recipe(tmp_path, text)) == [told, told]


def test_without_adapters_the_whole_converter_is_told(tmp_path: Path) -> None:
    (hint,) = list_hints(write_recipe(tmp_path, "rank: 8\n"))
    assert hint is not None and hint.endswith("write converters: [{name: lora, rank: 8}]")
