"""Each field that verl's own config classes have: it changes something, is warned of or refused."""

import dataclasses
import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.integrations.verl import verl_config_fields
from titanrun.integrations.verl.build_verl_engine import build_verl_engine, build_verl_recipe
from titanrun.integrations.verl.verl_config_fields import (
    CHECKPOINT_FIELDS,
    ENGINE_FIELDS,
    OPTIMIZER_FIELDS,
    FieldTable,
    build_field_reader,
)

pytestmark = [
    pytest.mark.verl,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("verl_on_cpu"),
]
# values off their defaults where negation or one more is none
OTHER_VALUES: dict[str, Any] = {
    "activation_checkpoint": "none",
    "attn_type": "varlen",
    "betas": (0.8, 0.9),
    "decay_type": "cosine",
    "dtype": "float32",
    "grad_clip": 0.25,
    "load_contents": ["model"],
    "lr_warmup_steps": 5,
    "max_seq_len": 77,
    "name": "SGD",
    "overrides": ["training.no_such_key=1"],
    "recipe": "base.yaml",
    "reshard_after_forward": "never",
    "save_contents": ["model"],
    "spmd_backend": "default",
    "total_training_steps": 7,
    "wrap_policy": {"min_num_params": 5},
}
# fields that say nothing without another
TOGETHER = {"entropy_from_logits_chunk_size": {"entropy_from_logits_with_chunking": True}}


def get_classes() -> dict[str, tuple[Any, FieldTable]]:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import TorchtitanOptimizerConfig

    from titanrun.integrations.verl.registered_engine import TitanrunEngineConfig

    return {
        "engine": (TitanrunEngineConfig, ENGINE_FIELDS),
        "optimizer": (TorchtitanOptimizerConfig, OPTIMIZER_FIELDS),
        "checkpoint": (CheckpointConfig, CHECKPOINT_FIELDS),
    }


def iter_fields() -> Iterator[tuple[str, Any, FieldTable, str]]:
    """Yield role, class, table and name of every field."""
    for role, (made, table) in get_classes().items():
        for each in dataclasses.fields(made):
            if not each.name.startswith("_"):
                yield role, made, table, each.name


def find_other_value(made: Any, name: str) -> Any:
    if name == "router_replay":
        from verl.workers.config.engine import EngineRouterReplayConfig

        return EngineRouterReplayConfig(mode="R2")
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    default = getattr(made(), name)
    return not default if isinstance(default, bool) else default + 1


def describe(folder: Path, role: str, options: dict[str, Any]) -> Any:
    """What verl's configs ask for, as the engine holds it."""
    made = {
        each: config_class(**(options if each == role else {}))
        for each, (config_class, _) in get_classes().items()
    }
    engine = build_verl_engine({"path": str(folder)}, *made.values())
    recipe = build_verl_recipe(
        folder, build_field_reader(made["engine"]), build_field_reader(made["optimizer"])
    )
    held = (engine.param_offload, engine.optimizer_offload, engine.forward_only)
    return recipe, held, engine.entropy, engine.contents


def test_each_field_has_one_place() -> None:
    found = list(iter_fields())
    assert len(found) > 40
    for _, _, table, name in found:
        places = (table.used, table.passed_on, table.ignored, table.refused)
        assert sum(name in place for place in places) == 1, name


def test_a_field_that_is_read_changes_the_engine_or_is_refused(folder: Path) -> None:
    for role, made, table, name in iter_fields():
        if name not in table.used:
            continue
        before = TOGETHER.get(name, {})
        after = before | {name: find_other_value(made, name)}
        if name in ("name", "overrides"):
            word = "SGD" if name == "name" else "no_such_key"
            options = {role: made(**after)}
            engine = build_verl_engine(
                {"path": str(folder)}, options.get("engine"), options.get("optimizer")
            )
            with pytest.raises(ProblemsFound, match=word):
                engine.get_data_parallel_rank()
            continue
        assert describe(folder, role, after) != describe(folder, role, before), name


def test_a_field_without_effect_is_warned_of_and_an_impossible_one_refused(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verl_config_fields, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for role in get_classes():
            describe(folder, role, {})
        assert not caplog.text
        for role, made, table, name in iter_fields():
            options = {name: find_other_value(made, name)} if name not in table.passed_on else {}
            if name in table.ignored:
                describe(folder, role, options)
                assert f"{name} has no effect: {table.ignored[name]}" in caplog.text
            elif name in table.refused:
                with pytest.raises(ProblemsFound, match=f"{name} of verl's {table.title}"):
                    describe(folder, role, options)


def test_fields_that_are_passed_on_are_read_by_verls_workers() -> None:
    from verl.workers import engine_workers

    source = inspect.getsource(engine_workers)
    for _, _, table, name in iter_fields():
        if name in table.passed_on:
            assert f".{name}" in source, name
