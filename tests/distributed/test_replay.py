"""A step computed twice on several ranks: where nothing is wrong nothing differs, and no number
moves."""

import pytest

from tests.distributed.ranks import EXPERTS, train

TWICE = ("debug.deterministic=true", "guard.replay_interval=2")
SHORT = (
    "training.steps=4",
    "lr_scheduler.total_steps=4",
    "validation.enable=false",
    "model.n_layers=2",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nproc", "layout"),
    [
        (
            4,
            (
                "parallelism.data_parallel_replicate_degree=2",
                "parallelism.data_parallel_shard_degree=2",
            ),
        ),
        (2, ("parallelism.tensor_parallel_degree=2",)),
        (2, ("parallelism.pipeline_parallel_degree=2",)),
        (2, (*EXPERTS, "parallelism.expert_parallel_degree=2")),
    ],
    ids=["hsdp", "tp", "pp", "ep"],
)
def test_copies_are_equal_on_every_layout_and_no_number_moves(
    nproc: int, layout: tuple[str, ...]
) -> None:
    plain, twice = (train(nproc, (*layout, *SHORT, *more)) for more in ((TWICE[0],), TWICE))
    assert plain.numbers == twice.numbers
