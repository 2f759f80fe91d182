"""Several runs in one recipe: each of its `stages` is the recipe with what the stage says laid over it.

`FILE#ID` names one of them wherever a recipe is named.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from titanrun.config.arguments import Override
from titanrun.config.compose import entries, is_absent, merge_entries
from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.config.suggest import closest, listing
from titanrun.config.tree import Node, find, plain, without
from titanrun.recipe.length import LENGTHS

STAGES = "stages"
STAGES_FILE = "stages.yaml"
"""In the folder of all stages: the recipe as it ran, every stage resolved."""
ID = "id"
# each is a folder
GOOD_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
OF_THE_WHOLE = ("version", "dump_folder", "plugins", "extends", STAGES)
"""Keys that a stage takes from the recipe."""
START = ("initial_load_path", "initial_load_in_hf")
"""Keys of `checkpoint` by which a stage says itself what it starts from."""


class HasStages(ProblemsFound):
    """A recipe with stages, `tree`, stands where one run is meant; `ids` names them in order."""

    def __init__(self, problem: Problem, ids: Sequence[str], tree: Node) -> None:
        self.ids, self.tree = tuple(ids), tree
        super().__init__([problem])


def split_stage(file: str) -> tuple[str, str | None]:
    """The file and the stage that `FILE#ID` names; None where it names no stage, as a file with such a name does not."""
    path, mark, stage = file.rpartition("#")
    return (path, stage) if mark and path and is_absent(file) else (file, None)


def chosen_stage(tree: Node, file: str) -> Node:
    """The recipe of the stage that `FILE#ID` names; `tree` itself where it has no stages.

    Raises HasStages where the recipe has stages and none is named, ProblemsFound where there is no such stage.
    """
    path, wanted = split_stage(file)
    stages = stages_of(tree)
    if not stages:
        if wanted is not None:
            raise fail("usage", f"{path} has no stages", help=f"leave out #{wanted}")
        return tree
    if wanted is None:
        node = entries(tree)[STAGES]
        message = f"{path} has stages: {listing(stages, last='and')}"
        help = f"name one, as {path}#{next(iter(stages))}; titanrun train trains them all"
        raise HasStages(
            Problem("usage", message, (STAGES,), node.key or node.origin, help=help),
            list(stages),
            tree,
        )
    if wanted not in stages:
        meant = closest(wanted, stages)
        help = (
            f"did you mean '{meant}'?" if meant else f"its stages are {listing(stages, last='and')}"
        )
        raise fail("usage", f"{path} has no stage '{wanted}'", help=help)
    return laid_over(tree, stages[wanted], fallback=PurePath(path).stem)


def laid_over(tree: Node, stage: Node, *, fallback: str) -> Node:
    """The recipe without its stages, what one of them says over it. Its name is that of the recipe (or `fallback`), and the stage's."""
    gone: set[tuple[str, ...]] = {(STAGES,)}
    if any(find(stage, ("training", length)) for length in LENGTHS):
        # a stage that says how long it is takes no other length
        gone |= {("training", length) for length in LENGTHS}
    base = without_entries(tree, gone)
    own = {key: node for key, node in entries(stage).items() if key != ID}
    identity = entries(stage)[ID]
    if "name" not in own:
        name = entries(base).get("name")
        whole = name.value if name is not None and isinstance(name.value, str) else fallback
        own["name"] = replace(identity, value=f"{whole}-{identity.value}")
    merged = merge_entries(
        {key: node for key, node in entries(base).items() if key != "name"},
        replace(stage, value=own),
    )
    return replace(tree, value=merged.value)


def without_entries(tree: Node, gone: set[tuple[str, ...]]) -> Node:
    """The tree less some entries of mappings."""
    return without(tree, {path for path in gone if find(tree, path) is not None})


def stages_of(tree: Node) -> dict[str, Node]:
    """The stages by their id, in order; none where the recipe has no stages. Raises ProblemsFound with what is wrong with their form."""
    node = entries(tree).get(STAGES)
    if node is None or node.value is None:
        return {}
    if not isinstance(node.value, list) or not node.value:
        message = "stages are a list, one mapping a stage"
        raise ProblemsFound(
            [
                Problem(
                    "wrong-type",
                    message,
                    (STAGES,),
                    node.origin,
                    help="write - {id: pretrain, ...}",
                    got=plain(node),
                )
            ]
        )
    found: dict[str, Node] = {}
    problems: list[Problem] = []
    for index, stage in enumerate(node.value):
        problem = mistake_in(stage, index, found)
        if problem is not None:
            problems.append(problem)
            continue
        problems += misplaced(stage, index)
        found[str(entries(stage)[ID].value)] = stage
    if problems:
        raise ProblemsFound(problems)
    return found


def mistake_in(stage: Node, index: int, others: Mapping[str, Node]) -> Problem | None:
    """What keeps an item from being a stage of its own."""
    if not isinstance(stage.value, dict):
        help = "write - {id: pretrain, ...}"
        return Problem(
            "wrong-type",
            "a stage is a mapping",
            (STAGES, index),
            stage.origin,
            help=help,
            got=plain(stage),
        )
    name = stage.value.get(ID)
    if name is None:
        return Problem(
            "missing-key",
            f"a stage needs '{ID}'",
            (STAGES, index, ID),
            stage.origin,
            help="add id: pretrain, say",
        )
    if not isinstance(name.value, str) or not GOOD_ID.fullmatch(name.value):
        message = "the id of a stage is a name of letters, digits, _ and -: its folder is called so"
        return Problem(
            "wrong-type",
            message,
            (STAGES, index, ID),
            name.origin,
            help="write id: pretrain, say",
            got=plain(name),
        )
    if name.value in others:
        return Problem(
            "conflict",
            f"two stages are called '{name.value}'",
            (STAGES, index, ID),
            name.origin,
            help="give each an id of its own",
        )
    return None


def misplaced(stage: Node, index: int) -> list[Problem]:
    """The keys of a stage that only the recipe has."""
    found = [(key, node) for key, node in entries(stage).items() if key in OF_THE_WHOLE]
    return [
        Problem(
            "unknown-key",
            f"'{key}' is not a stage's",
            (STAGES, index, key),
            node.key or node.origin,
            help="write it at the top level",
        )
        for key, node in found
    ]


def overrides_of_stage(overrides: Sequence[Override], tree: Node, file: str) -> list[Override]:
    """What the overrides say to one stage: `stages.ID.path=value` to that stage alone, all others to every stage.

    Raises ProblemsFound for an ID that no stage has.
    """
    wanted = split_stage(file)[1]
    ids = list(stages_of(tree))
    if wanted is None or not ids:
        return list(overrides)
    kept, problems = [], []
    for override in overrides:
        if override.path[0] != STAGES or len(override.path) < 3:
            kept.append(override)
            continue
        step = override.path[1]
        named = ids[step] if isinstance(step, int) and -len(ids) <= step < len(ids) else step
        if named == wanted:
            kept.append(replace(override, path=override.path[2:], marks=override.marks[2:]))
        elif named not in ids:
            message = f"the recipe has no stage '{step}'"
            problems.append(
                Problem(
                    "usage",
                    message,
                    override.path,
                    override.origin,
                    help=f"its stages are {listing(ids, last='and')}",
                )
            )
    if problems:
        raise ProblemsFound(problems)
    return kept


def says_its_start(tree: Node, stage: str) -> bool:
    """Whether a stage of the recipe says itself which weights it starts from."""
    node = stages_of(tree)[stage]
    found = [find(node, ("checkpoint", key)) for key in START]
    return any(value is not None and value.value not in (None, False) for value in found)


def is_folder_of_stages(folder: Path) -> bool:
    """Whether a folder holds the runs of a recipe with stages."""
    return (folder / STAGES_FILE).is_file()
