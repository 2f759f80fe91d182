"""The recipes that ship: what each resolves to is committed, and none repeats what its fragments
say."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from titanrun.config.compose import compose
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.read_source import read_source
from titanrun.config.tree import Node, find_node, to_plain_data
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.reference.shipped_recipes import format_portable_recipe
from titanrun.recipe.resolving.multi_stage import get_stages
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPES = shipped_recipes.list_shipped_recipes()
RESOLVED = Path(__file__).parent / "resolved"
# TITANRUN_WRITE_GOLDEN=1 writes the resolved forms again; review the difference: it is what changes
# for users
WRITE = os.environ.get("TITANRUN_WRITE_GOLDEN") == "1"


# what is resolved by the name of its file: a recipe, or each stage of one
FORMS = {
    f"{entry.name}{stage and '-' + stage}.resolved.yaml": f"{entry.path}{stage and '#' + stage}"
    for entry in RECIPES
    for stage in (get_stages(read_source(str(entry.path))) or [""])
}


@pytest.mark.parametrize(("form", "recipe"), FORMS.items(), ids=list(FORMS))
def test_a_shipped_recipe_resolves_to_the_committed_form(form: str, recipe: str) -> None:
    text = resolve_recipe(recipe, environment={}).text
    committed = RESOLVED / form
    if WRITE:
        committed.parent.mkdir(exist_ok=True)
        committed.write_text(text, encoding="utf-8")
    assert committed.read_text(encoding="utf-8") == text


DEVICES = re.compile(r"^# devices: (?!.*CPU).*GPU", re.MULTILINE)
FOR_GPUS = {
    form: recipe
    for form, recipe in FORMS.items()
    if DEVICES.search(Path(recipe.partition("#")[0]).read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("recipe", FOR_GPUS.values(), ids=list(FOR_GPUS))
def test_a_recipe_for_gpus_alone_compiles_its_layers(recipe: str) -> None:
    run = resolve_recipe(recipe, environment={}).run
    # a rule: quantized matrices are not compiled
    is_quantized = any(converter.name == "qlora" for converter in run.converters)
    assert run.compile.enable is not is_quantized or run.device == "cpu"


def test_no_resolved_form_outlives_its_recipe() -> None:
    assert {path.relative_to(RESOLVED).as_posix() for path in RESOLVED.rglob("*.yaml")} == set(
        FORMS
    )


@pytest.mark.parametrize("entry", RECIPES, ids=lambda entry: entry.name)
def test_a_shipped_recipe_repeats_nothing_that_its_fragments_say(
    entry: shipped_recipes.ShippedRecipe, tmp_path: Path
) -> None:
    own = read_source(str(entry.path))
    extends = find_node(own, ("extends",))
    assert extends is not None, "fragments say what several recipes share"
    bases = tmp_path / "bases.yaml"
    bases.write_text(
        f"extends: {[str(entry.path.parent / part) for part in to_plain_data(extends)]}"
    )
    below = compose(str(bases))
    for path, value in leaves(own):
        found = find_node(below, path)
        assert found is None or found.value != value, (
            f"{'.'.join(map(str, path))}: {value} is what a fragment says already"
        )


def test_every_fragment_says_what_it_is_for_and_is_needed() -> None:
    parts = sorted((shipped_recipes.get_shipped_folder() / "parts").iterdir())
    texts = [
        path.read_text(encoding="utf-8") for path in (*(entry.path for entry in RECIPES), *parts)
    ]
    for part in parts:
        first = part.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith(("# hardware: ", "# data: ", "# precision: ", "# schedule: ")), (
            part.name
        )
        assert part.name == "cpu.yaml" or any(part.name in text for text in texts), (
            f"no recipe extends {part.name}"
        )


def test_a_fragment_that_ships_is_named_from_anywhere(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("version: 1\nextends: [shipped:llama3_debug.yaml, shipped:parts/cpu.yaml]\n")
    run = resolve_recipe(str(recipe), environment={}).run
    assert (run.device, run.training.steps, run.training.seq_len, run.optimizer.lr) == (
        "cpu",
        5,
        128,
        2e-3,
    )


@pytest.mark.parametrize("suffix", [".yaml", ".toml"])
def test_a_copy_resolves_to_the_same_run_in_any_folder(suffix: str, tmp_path: Path) -> None:
    entry = shipped_recipes.get_shipped_recipe("llama3_debug", suffix=suffix)
    copy = tmp_path / entry.name
    copy.write_text(format_portable_recipe(entry, schema="/somewhere/recipe.schema.json"))
    assert (
        resolve_recipe(str(copy), environment={}).text
        == resolve_recipe(str(entry.path), environment={}).text
    )
    lines, kept = copy.read_text().splitlines(), entry.path.read_text().splitlines()
    assert lines[0].endswith("/somewhere/recipe.schema.json")
    changed = [new for new, old in zip(lines, kept, strict=True) if new != old]
    assert len(changed) == 2


def test_a_shelf_cannot_be_left(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    for path in ("shipped:../pyproject.toml", "shipped:/etc/passwd", "elsewhere:parts/fp32.yaml"):
        recipe.write_text(f'version: 1\nextends: "{path}"\n')
        with pytest.raises(ProblemsFound, match="file not found") as found:
            resolve_recipe(str(recipe), environment={})
        assert path in str(found.value)


def leaves(node: Node, path: DataPath = ()) -> Iterator[tuple[DataPath, object]]:
    """Every scalar of a recipe as written, with its path."""
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from leaves(child, (*path, key))
    elif not isinstance(node.value, list) and path[-1] != "name" and path[0] != "version":
        yield path, node.value
