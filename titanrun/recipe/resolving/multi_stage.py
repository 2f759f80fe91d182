"""Multi-stage recipes: each item of `stages` is merged over the recipe to form a run.

`FILE#ID` names one stage, in all places that accept a recipe.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from titanrun.config.compose import get_mapping_entries, is_absent, merge_entries
from titanrun.config.override_parser import Override
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.tree import Node, find_node, remove_paths, to_plain_data
from titanrun.recipe.resolving.run_length import LENGTH_FIELDS

STAGES = "stages"
STAGES_FILE = "stages.yaml"
"""File in the folder of all stages: the recipe as it ran, every stage resolved."""
ID = "id"
# each id is also a folder name
STAGE_ID_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
# an override such as stages.0.training.steps=10
COUNTED_STAGE = re.compile(r"(?:--)?stages\.([0-9]{1,9})(?=[.=+!-])")
TOP_LEVEL_KEYS = ("version", "dump_folder", "plugins", "extends", STAGES)
"""Keys that a stage takes from the recipe."""
INITIAL_LOAD_KEYS = ("initial_load_path", "initial_load_in_hf")
"""Keys of `checkpoint` with which a stage chooses its own initial weights."""

PRETRAIN_KIND, LOADED_WEIGHTS = "kind: pretrain", "checkpoint.initial_load_in_hf: true"
"""Settings of hints for a run that should not be of kind sft."""
KIND_IN_HINT = re.compile(rf"{PRETRAIN_KIND}(?: and {re.escape(LOADED_WEIGHTS)})?")


class StageRequiredError(ProblemsFound):
    """Error for a multi-stage recipe if a single run is required.

    `stage_ids` are the ids of its stages in order, `tree` is the recipe.
    """

    def __init__(self, problem: Problem, ids: Sequence[str], tree: Node) -> None:
        self.stage_ids, self.tree = tuple(ids), tree
        super().__init__([problem])


def split_stage(file: str) -> tuple[str, str | None]:
    """Return the file and the stage of `FILE#ID`.

    The stage is None if no stage is named, or if a file with the whole name exists.
    """
    path, mark, stage = file.rpartition("#")
    return (path, stage) if mark and path and is_absent(file) else (file, None)


def select_stage(tree: Node, file: str) -> Node:
    """Return the recipe of the stage that `FILE#ID` names, or `tree` if it has no stages.

    Raises:
        StageRequiredError: the recipe has stages and none is named.
        ProblemsFound: there is no such stage.
    """
    path, wanted = split_stage(file)
    stages = get_stages(tree)
    if not stages:
        if wanted is not None:
            raise problem_error("usage", f"{path} has no stages", hint=f"omit #{wanted}")
        return tree
    if wanted is None:
        node = get_mapping_entries(tree)[STAGES]
        message = f"{path} has stages: {format_word_list(stages, conjunction='and')}"
        hint = f"name one, for example {path}#{next(iter(stages))}; titanrun train trains all"
        raise StageRequiredError(
            Problem("usage", message, (STAGES,), node.key or node.origin, hint=hint),
            list(stages),
            tree,
        )
    if wanted not in stages:
        meant = find_closest(wanted, stages)
        hint = (
            f"did you mean '{meant}'?"
            if meant
            else f"its stages are {format_word_list(stages, conjunction='and')}"
        )
        raise problem_error("usage", f"{path} has no stage '{wanted}'", hint=hint)
    merged = merge_stage(tree, stages[wanted], fallback_name=PurePath(path).stem)
    return merged if starts_anew(tree, wanted) else without_automatic_start(merged)


def merge_stage(tree: Node, stage: Node, *, fallback_name: str) -> Node:
    """Merge a stage over the recipe without its stages.

    The name is that of the recipe (or `fallback_name`) followed by the id of the stage.
    """
    gone: set[tuple[str, ...]] = {(STAGES,)}
    if any(find_node(stage, ("training", length)) for length in LENGTH_FIELDS):
        # a stage with its own length inherits no other length
        gone |= {("training", length) for length in LENGTH_FIELDS}
    base = remove_entries(tree, gone)
    own = {key: node for key, node in get_mapping_entries(stage).items() if key != ID}
    identity = get_mapping_entries(stage)[ID]
    if "name" not in own:
        name = get_mapping_entries(base).get("name")
        whole = name.value if name is not None and isinstance(name.value, str) else fallback_name
        own["name"] = replace(identity, value=f"{whole}-{identity.value}")
    merged = merge_entries(
        {key: node for key, node in get_mapping_entries(base).items() if key != "name"},
        replace(stage, value=own),
    )
    return replace(tree, value=merged.value)


def remove_entries(tree: Node, gone: set[tuple[str, ...]]) -> Node:
    """Return the tree without some entries of mappings."""
    return remove_paths(tree, {path for path in gone if find_node(tree, path) is not None})


def get_stages(tree: Node) -> dict[str, Node]:
    """Return the stages by id, in order; empty if the recipe has no stages.

    Raises:
        ProblemsFound: stages are malformed.
    """
    node = get_mapping_entries(tree).get(STAGES)
    if node is None or node.value is None:
        return {}
    if not isinstance(node.value, list) or not node.value:
        message = "stages must be a list with one mapping per stage"
        raise ProblemsFound(
            [
                Problem(
                    "wrong-type",
                    message,
                    (STAGES,),
                    node.origin,
                    hint="write - {id: pretrain, ...}",
                    got=to_plain_data(node),
                )
            ]
        )
    found: dict[str, Node] = {}
    problems: list[Problem] = []
    for index, stage in enumerate(node.value):
        problem = find_stage_form_problem(stage, index, found)
        if problem is not None:
            problems.append(problem)
            continue
        problems += find_misplaced_key_problems(stage, index)
        found[str(get_mapping_entries(stage)[ID].value)] = stage
    if problems:
        raise ProblemsFound(problems)
    return found


def find_stage_form_problem(stage: Node, index: int, others: Mapping[str, Node]) -> Problem | None:
    """Return the problem of an item that is not a valid stage, or None if it is valid."""
    if not isinstance(stage.value, dict):
        hint = "write - {id: pretrain, ...}"
        return Problem(
            "wrong-type",
            "a stage must be a mapping",
            (STAGES, index),
            stage.origin,
            hint=hint,
            got=to_plain_data(stage),
        )
    name = stage.value.get(ID)
    if name is None:
        return Problem(
            "missing-key",
            f"missing required key '{ID}' in a stage",
            (STAGES, index, ID),
            stage.origin,
            hint="add an id, for example id: pretrain",
        )
    if not isinstance(name.value, str) or not STAGE_ID_PATTERN.fullmatch(name.value):
        message = "a stage id must consist of letters, digits, _ and -: it names the stage's folder"
        return Problem(
            "wrong-type",
            message,
            (STAGES, index, ID),
            name.origin,
            hint="write, for example, id: pretrain",
            got=to_plain_data(name),
        )
    if name.value in others:
        return Problem(
            "conflict",
            f"two stages have the id '{name.value}'",
            (STAGES, index, ID),
            name.origin,
            hint="give each stage a unique id",
        )
    return None


def find_misplaced_key_problems(stage: Node, index: int) -> list[Problem]:
    """Return a problem for each key of a stage that is only allowed at the top level."""
    found = [
        (key, node) for key, node in get_mapping_entries(stage).items() if key in TOP_LEVEL_KEYS
    ]
    return [
        Problem(
            "unknown-key",
            f"'{key}' is not allowed in a stage",
            (STAGES, index, key),
            node.key or node.origin,
            hint="write it at the top level",
        )
        for key, node in found
    ]


def select_stage_overrides(overrides: Sequence[Override], tree: Node, file: str) -> list[Override]:
    """Return the overrides that apply to one stage.

    `stages.ID.path=value` applies to that stage alone, all others to every stage.

    Raises:
        ProblemsFound: no stage has the ID.
    """
    wanted = split_stage(file)[1]
    ids = list(get_stages(tree))
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
            kept.append(
                replace(override, path=override.path[2:], step_origins=override.step_origins[2:])
            )
        elif named not in ids:
            message = f"the recipe has no stage '{step}'"
            problems.append(
                Problem(
                    "usage",
                    message,
                    override.path,
                    override.origin,
                    hint=f"its stages are {format_word_list(ids, conjunction='and')}",
                )
            )
    if problems:
        raise ProblemsFound(problems)
    return kept


def add_stage_id_hints(problems: Sequence[Problem], tree: Node) -> list[Problem]:
    """Return the problems; an override that counts stages after a dot gets the stage's id."""
    ids = list(get_stages(tree))
    found = []
    for problem in problems:
        text = "" if problem.origin is None else problem.origin.source.text
        counted = COUNTED_STAGE.match(text) if problem.code == "usage" else None
        if counted is not None and ids:
            named = ids[int(counted[1])] if int(counted[1]) < len(ids) else None
            rest = text[counted.end() :]
            problem = replace(
                problem,
                message=f"a stage is named by its id, not by a number: {STAGES}.{counted[1]}",
                hint=f"write {STAGES}.{named}{rest}"
                if named
                else f"its stages are {format_word_list(ids, conjunction='and')}",
            )
        found.append(problem)
    return found


def add_kind_stage(problem: Problem, file: str) -> Problem:
    """Return a problem of FILE#ID; a hint with a kind is for this stage, not for all."""
    stage = split_stage(file)[1]
    if stage is None or problem.hint is None:
        return problem
    hint = KIND_IN_HINT.sub(lambda found: f"{found[0]} in stage '{stage}'", problem.hint)
    return replace(problem, hint=hint)


def has_own_initial_load(tree: Node, stage: str) -> bool:
    """Return whether a stage of the recipe chooses its own initial weights."""
    node = get_stages(tree)[stage]
    found = [find_node(node, ("checkpoint", key)) for key in INITIAL_LOAD_KEYS]
    return any(value is not None and value.value not in (None, False) for value in found)


def starts_anew(tree: Node, stage: str) -> bool:
    """Return whether no trained stage comes before, or the stage chooses its initial weights."""
    stages = get_stages(tree)
    before = list(stages)[: list(stages).index(stage)]
    whole = find_node(tree, ("kind",))
    kinds = [find_node(stages[name], ("kind",)) or whole for name in before]
    is_first = all(kind is not None and kind.value == "eval" for kind in kinds)
    return is_first or has_own_initial_load(tree, stage)


def without_automatic_start(tree: Node) -> Node:
    """Return a stage without weights of its model's folder: it starts from another stage."""
    section = find_node(tree, ("checkpoint",))
    if section is not None and not isinstance(section.value, dict):
        return tree
    entries = {} if section is None else get_mapping_entries(section)
    if INITIAL_LOAD_KEYS[0] in entries:
        return tree
    start = Node(None, tree.origin if section is None else section.origin)
    whole = replace(section or tree, value={**entries, INITIAL_LOAD_KEYS[0]: start})
    return replace(tree, value={**get_mapping_entries(tree), "checkpoint": whole})


def is_multi_stage_folder(folder: Path) -> bool:
    """Return whether a folder holds the runs of a multi-stage recipe."""
    return (folder / STAGES_FILE).is_file()
