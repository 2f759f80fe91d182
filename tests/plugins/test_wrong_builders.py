"""A plug-in that builds something else, or takes other arguments, is told its own line."""

from pathlib import Path
from typing import Any

import pytest

from titanrun.components.lr_schedulers.config import LRSchedulerConfig
from titanrun.components.optimizers.config import OptimizerConfig
from titanrun.config.base import ComponentConfig
from titanrun.config.problems import Problem, ProblemsFound

HERE = Path(__file__)


def build_none(config: Any, *, parameters: Any) -> Any:
    """Forgets to return."""


def build_number(config: Any, *, parameters: Any) -> Any:
    return 3


def build_without_parameters(config: Any) -> Any:
    return None


class Timeless:
    def __init__(self, config: Any) -> None:
        pass

    def factor(self, step: int) -> Any:
        """Forgets to return."""


class Forgetful:
    """A schedule that forgets to return after its warmup, or returns other things."""

    AFTER: Any = None

    def __init__(self, config: Any) -> None:
        pass

    def factor(self, step: int) -> Any:
        if step < 2:
            return step / 2
        return self.AFTER


def get_problem(slot: type[ComponentConfig], builds: str, **keywords: Any) -> Problem:
    """Build what a config of a plug-in names, and return the problem."""
    base = type("PluginConfig", (slot,), {"builds": builds, "__module__": __name__})
    try:
        config = base()
        with pytest.raises(ProblemsFound) as found:
            config.load_builder()(config, **keywords)
    finally:
        # no choice of other tests
        base.__module__ = "titanrun.gone"
    (problem,) = found.value.problems
    return problem


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("build_none", "it returned None"),
        ("build_number", "it returned 3, which has no param_groups"),
        (
            "build_without_parameters",
            "it is called as build_without_parameters(config, parameters=...): "
            "got an unexpected keyword argument 'parameters'",
        ),
    ],
)
def test_what_an_optimizer_must_be_is_said_at_its_function(name: str, message: str) -> None:
    problem = get_problem(OptimizerConfig, f"{__name__}:{name}", parameters=[])
    assert problem.code == "usage" and message in problem.message
    assert problem.origin is not None and problem.origin.source.name == HERE.name
    line = HERE.read_text().splitlines()[problem.origin.line - 1]
    assert line[problem.origin.column - 1 : problem.origin.end_column - 1] == name
    if "returned" in message:
        assert problem.hint == "return a torch.optim.Optimizer"


def test_a_schedule_whose_factor_is_no_number_is_told_before_the_first_step() -> None:
    problem = get_problem(LRSchedulerConfig, f"{__name__}:Timeless")
    assert "its factor(0) returned None" in problem.message
    assert problem.origin is not None
    assert HERE.read_text().splitlines()[problem.origin.line - 1] == "class Timeless:"


@pytest.mark.parametrize("after", [None, "0.5", float("nan")])
def test_a_later_factor_that_is_no_number_is_told_at_its_step(
    after: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forgetful, "AFTER", after)
    base = type(
        "PluginConfig",
        (LRSchedulerConfig,),
        {"builds": f"{__name__}:Forgetful", "__module__": __name__},
    )
    try:
        schedule = base().load_builder()(base())
        assert [schedule.factor(step) for step in (0, 1)] == [0.0, 0.5]
        with pytest.raises(ProblemsFound) as found:
            schedule.factor(2)
    finally:
        base.__module__ = "titanrun.gone"
    (problem,) = found.value.problems
    assert "its factor(2) returned " in problem.message
    assert problem.origin is not None
    assert HERE.read_text().splitlines()[problem.origin.line - 1] == "class Forgetful:"


@pytest.mark.parametrize("builds", [f"{__name__}:build_nothing", "no_such_module:build", "build"])
def test_a_builder_that_is_not_there_is_told_at_the_config(builds: str) -> None:
    problem = get_problem(OptimizerConfig, builds)
    assert f"builds is '{builds}', but there is no such class or function" in problem.message
