"""What a resume makes of a change: one answer, whoever is asked."""

from typing import Any

from titanrun.config.data_diff import DataChange
from titanrun.config.path_syntax import parse_path
from titanrun.config.problems import DataPath, Origin, SourceText
from titanrun.config.tree import Node, format_path
from titanrun.recipe.comparing.recipe_diff import DiffSide, build_field_diff
from titanrun.recipe.comparing.resume_policy import classify_change, suggest_allowed_changes
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.reference.explain import iter_field_lines
from titanrun.recipe.reference.reference_page import COLUMNS, iter_field_cells
from titanrun.recipe.reference.schema_topics import (
    FieldLocation,
    find_field_locations,
    get_topics,
    list_explainable_paths,
)
from titanrun.recipe.resolving.resolve import Resolved

NOWHERE = Node({}, Origin(SourceText("recipe.yaml", ""), 1, 1, 1))
MINIMAL: dict[str, Any] = {
    "version": 1,
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "training": {"dataset": "tiny"},
}


def list_fields() -> list[FieldLocation]:
    """Return every field that declares its change class, in every component that has it."""
    words = dict.fromkeys(list_explainable_paths())
    found = [
        spot
        for word in words
        for spot in find_field_locations(tuple(str(step) for step in parse_path(word)))
    ]
    return [spot for spot in found if spot.description.metadata is not None]


def merge(below: Any, own: Any) -> Any:
    """Merge `own` over `below`; a component with a name replaces the one below."""
    if not isinstance(own, dict) or not isinstance(below, dict) or "name" in own:
        return own
    return below | {key: merge(below.get(key), value) for key, value in own.items()}


def recipe_with(spot: FieldLocation) -> Recipe:
    """Return a recipe that holds the component of a field."""
    own = dict(spot.recipe_example or {})
    data = MINIMAL | {key: merge(MINIMAL.get(key), value) for key, value in own.items()}
    if "role_weights" in spot.path:
        data["training"]["dataset"]["train_on"] = "roles"
    if "teacher_logprobs" in spot.path:
        data["loss"]["teacher_logprobs"].setdefault("path", "data/taught")
    return get_recipe_class().model_validate(data)


def test_diff_config_explain_and_reference_say_what_a_resume_does_with_each_field() -> None:
    # Row C1 of the defect list: 20 of 43 changes that a resume allows were said to be refused
    fields = list_fields()
    assert len(fields) > 1000
    topics = {(topic.keys, topic.config): topic for topic in get_topics()}
    wrong, pages = [], 0
    for spot in fields:
        run = recipe_with(spot)
        change = DataChange(spot.path, "changed", 1, 2)
        allowed = classify_change(change, run, run) != "refused"
        side = DiffSide("recipe.yaml", Resolved(run, run, NOWHERE))
        told = [line for line in iter_field_lines(spot) if line.startswith("resume")]
        answers: tuple[bool, ...] = (
            build_field_diff(change, side, side).allows_resume,
            told[0].removeprefix("resume").strip().startswith("a resume allows"),
        )
        keys = tuple(step for step in spot.path[:-1] if isinstance(step, str))
        if topic := topics.get((keys, spot.holder)):
            pages += 1
            cell = [*iter_field_cells(topic, spot.description)][COLUMNS.index("resume")]
            answers = (*answers, cell == "yes")
        if set(answers) != {allowed}:
            wrong.append(f"{format_path(spot.path)}: {allowed}, but {answers}")
    assert wrong == []
    assert pages > 500


def test_a_resume_allows_every_change_of_how_batches_are_loaded() -> None:
    """Batches are the same for every number of processes, and each start has its own machine."""
    seen = set()
    for spot in list_fields():
        if spot.path[:2] == ("training", "dataloader") and len(spot.path) == 3:
            run = recipe_with(spot)
            assert classify_change(DataChange(spot.path, "changed", 1, 2), run, run) != "refused"
            seen.add(spot.path[2])
    assert {"num_workers", "prefetch_factor", "pin_memory", "retry_timeout"} <= seen


def test_a_resume_refuses_another_split_of_the_training_data() -> None:
    """`validation.holdout` takes documents out of training; the rest of its section observes."""
    run = get_recipe_class().model_validate(MINIMAL | {"validation": {"holdout": 0.05}})
    verdicts = {
        path: classify_change(DataChange(path, "changed", 1, 2), run, run)
        for path in (
            ("validation", "holdout"),
            ("validation", "holdout_by"),
            ("validation", "dataset", "path"),
            ("validation", "freq"),
            ("metrics", "log_freq"),
            ("launch", "nproc_per_node"),
            ("profiling", "freq"),
        )
    }
    assert list(verdicts.values()) == ["refused", "refused", *["silent"] * 5]
    named = MINIMAL | {"checkpoint": {"allow_change": ["validation.holdout"]}}
    allowing = get_recipe_class().model_validate(named)
    change = DataChange(("validation", "holdout"), "changed", 0.05, 0.2)
    assert classify_change(change, run, allowing) == "reported"


def test_the_advice_to_allow_changes_names_what_the_setting_takes() -> None:
    advice = "list the intended ones in checkpoint.allow_change"
    rank, lr = ("converters", 0, "rank"), ("optimizer", "lr")
    assert (
        suggest_allowed_changes([rank, ("converters", 0, "alpha"), lr])
        == f"{advice}, as in 'checkpoint.allow_change=[converters,optimizer.lr]'"
    )
    many: list[DataPath] = [("training", name) for name in ("a", "b", "c", "d")]
    assert suggest_allowed_changes(many) == suggest_allowed_changes([]) == advice
