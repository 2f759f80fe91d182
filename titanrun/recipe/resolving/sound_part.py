"""The sound part of a recipe that has errors, and which problems only follow from them."""

from collections.abc import Collection
from dataclasses import replace

from titanrun.config import registry
from titanrun.config.problems import DataPath, Problem
from titanrun.config.tree import Node, find_node, remove_paths, to_plain_data
from titanrun.config.type_introspection import find_annotation, is_slot
from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.huggingface_config import ASSETS_PATH_FIELD
from titanrun.models.shared.spec.flavors import NON_SIZE_FIELDS, load_flavor_names
from titanrun.recipe.plugins import get_recipe_class

REQUIRED_PATHS: tuple[DataPath, ...] = (
    ("model",),
    ("model", "name"),
    ("training",),
    ("training", "dataset"),
    ("training", "dataset", "name"),
)
DATASET: DataPath = ("training", "dataset")
PLACES = frozenset({"path", "repo"})
"""Keys of which a dataset needs one."""
SOURCES: DataPath = (*DATASET, "sources")
MIXTURE = "mixture"
HOLDOUT: DataPath = ("validation", "holdout")
SOME_HOLDOUT = 0.05
MODEL: DataPath = ("model",)
FLAVOR: DataPath = (*MODEL, "flavor")
CONFIG_FOLDER: DataPath = (*MODEL, "path")


def replace_broken_parts(tree: Node, touched: Collection[DataPath]) -> Node:
    """Return the sound part of a tree.

    Broken data, holdout or model sizes are replaced by sound ones, so that the rest can be checked.
    """
    sound, written, families = (
        replace_broken_values(remove_paths(tree, touched), touched),
        find_node(tree, MODEL),
        registry.load_choices(ModelConfig),
    )
    if (
        MODEL not in touched
        or written is None
        or not isinstance(written.value, dict)
        or not isinstance(sound.value, dict)
    ):
        return sound
    name = written.value.get("name")
    if name is None or not isinstance(name.value, str) or name.value not in families:
        return sound
    family = families[name.value]
    assert issubclass(family, ModelConfig)
    kept = {
        key: node
        for key, node in written.value.items()
        if key in NON_SIZE_FIELDS and (*MODEL, key) not in touched
    }
    flavor = replace(name, value=load_flavor_names(family)[0])
    return replace(
        sound,
        value={
            **sound.value,
            "model": replace(written, value={**kept, "name": name, "flavor": flavor}),
        },
    )


def replace_broken_values(sound: Node, touched: Collection[DataPath]) -> Node:
    """Return the tree with the tiny corpus in place of a broken dataset, and a sound holdout.

    Without a value there would be no data, and validation would be off or without documents.
    """
    sound_values: dict[DataPath, str | float] = {DATASET: "tiny", HOLDOUT: SOME_HOLDOUT}
    for path, plain in sound_values.items():
        section = find_node(sound, path[:-1])
        if (
            path in touched
            and section is not None
            and isinstance(section.value, dict)
            and isinstance(sound.value, dict)
        ):
            node = Node(plain, section.origin)
            section = replace(section, value={**section.value, str(path[-1]): node})
            sound = replace(sound, value={**sound.value, str(path[0]): section})
    return sound


def is_fatal_problem(problem: Problem) -> bool:
    """Return whether a required section is missing or unreadable, so nothing sound remains."""
    if is_misspelt_argument(problem):
        return False
    if problem.path[:2] == DATASET and problem.code != "missing-key":
        return False
    return (
        len(problem.path) == 0
        or problem.path[0] in ("version", "plugins")
        or problem.path in REQUIRED_PATHS
    )


def is_misspelt_argument(problem: Problem) -> bool:
    """Return whether an argument names no path: the recipe is sound without it."""
    return problem.code == "usage" and not problem.path


def get_affected_paths(problem: Problem) -> list[DataPath]:
    """Return the path to remove, and the one that was possibly meant.

    A component without a name or a required key, and a dataset without its place, is removed as a
    whole.
    """
    path = problem.path
    if not path:
        return []
    if FLAVOR in (path, (*path[:-1], problem.suggestion)):  # all sizes are derived from it
        return [MODEL]
    if path[: len(SOURCES)] == SOURCES:  # the others are not the data of the run
        return [DATASET]
    is_place = not PLACES.isdisjoint((path[-1], problem.suggestion))
    if problem.code == "missing-key" or path[-1] == "name" or (is_place and "dataset" in path[-2:]):
        return [path[:-1]]
    if path == CONFIG_FOLDER:  # hf_assets_path, which often has the tokenizer only, is next
        return [path, ASSETS_PATH_FIELD]
    return (
        [path, (*path[:-1], problem.suggestion)]
        if problem.code == "unknown-key" and problem.suggestion
        else [path]
    )


def find_emptied_mixture(tree: Node, touched: Collection[DataPath]) -> set[DataPath]:
    """Return the path of a mixture whose sources stand under a wrong key, else nothing.

    Without that key it would have no data, and rules would tell what it lacks.
    """
    dataset = find_node(tree, DATASET)
    entries = dataset.value if dataset is not None and isinstance(dataset.value, dict) else {}
    name = entries.get("name")
    is_emptied = name is not None and name.value == MIXTURE and SOURCES[-1] not in entries
    return {DATASET for path in touched if is_emptied and path[: len(DATASET)] == DATASET}


def is_follow_up_problem(problem: Problem, touched: set[DataPath]) -> bool:
    """Return whether a problem is about something that was removed."""
    paths = [problem.path, *(related.path for related in problem.related)]
    return any(path[: len(gone)] == gone for path in paths for gone in touched)


def may_follow_from_base(problem: Problem, tree: Node) -> bool:
    """Return whether an unreadable base may hold what a problem misses.

    That is a required key, the name of the component that decides which keys are known, the other
    setting of a conflict, or the value of a reference.
    """
    node = find_node(tree, problem.path)
    if node is not None and node.via == "interpolation":
        return True
    holder = find_node(tree, problem.path[:-1])
    is_unnamed = (
        len(problem.path) > 1
        and holder is not None
        and isinstance(holder.value, dict)
        and "name" not in holder.value
        and is_slot(find_annotation(get_recipe_class(), to_plain_data(tree), problem.path[:-1]))
    )
    return problem.code in ("missing-key", "conflict") or is_unnamed
