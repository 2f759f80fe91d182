"""What a recipe says about its pipeline is what the pipeline is."""

from typing import Any

import pytest

from titanrun.distributed.config import ParallelismConfig
from titanrun.distributed.spec.pipeline_stages import PipelinePlan, plan_pipeline

MODULES = ["tok_embeddings", *(f"layers.{index}" for index in range(6)), "norm", "output"]


def plan(**settings: Any) -> PipelinePlan:
    return plan_pipeline(
        ParallelismConfig.model_validate({"pipeline_parallel_degree": 2, **settings}), MODULES
    )


def layers(found: PipelinePlan) -> list[int]:
    return [sum(name.startswith("layers.") for name in stage) for stage in found.stages]


def test_the_ends_of_the_model_are_at_the_ends_of_the_pipeline() -> None:
    found = plan()
    assert found.stages == (
        ("tok_embeddings", "layers.0", "layers.1", "layers.2"),
        ("layers.3", "layers.4", "layers.5", "norm", "output"),
    )
    assert (found.schedule, found.schedule_csv, found.microbatch_size) == ("1F1B", None, 1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pipeline_parallel_schedule": "ZBVZeroBubble"}, [1, 2, 2, 1]),
        ({"pipeline_parallel_layers_per_stage": 2}, [1, 2, 2, 1]),
        ({"pipeline_parallel_layers_per_stage": 4}, [3, 3]),
        ({"pipeline_parallel_first_stage_less_layers": 3}, [2, 4]),
        ({"pipeline_parallel_last_stage_less_layers": 3}, [4, 2]),
        ({"pipeline_parallel_schedule_csv": "mine.csv"}, [1, 2, 2, 1]),
        ({"module_fqns_per_model_part": [["tok_embeddings"], MODULES[1:]]}, [0, 6]),
    ],
    ids=str,
)
def test_settings_decide_how_many_layers_each_stage_has(
    settings: dict[str, Any], expected: list[int]
) -> None:
    found = plan(**settings)
    assert layers(found) == expected
    assert [name for stage in found.stages for name in stage] == MODULES


def test_a_microbatch_has_the_rows_that_the_recipe_says() -> None:
    assert plan(pipeline_parallel_microbatch_size=4).microbatch_size == 4
