"""verl itself, where it is installed, against the engine: its base class, its batches, its loss."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.integrations.test_verl import batch, sft_loss
from tests.rl.parts import TEXT
from titanrun.integrations.verl.build_verl_engine import open_verl_engine
from titanrun.integrations.verl.verl_engine import VerlEngine

# not built: exports of shards and of changed elements
ABSENT = {
    "get_per_tensor_param_shard",
    "get_per_tensor_param_delta_shard",
    "prime_delta_snapshots",
    "delta_pin_snapshots",
}


def tensor_dict() -> Any:
    tensordict = pytest.importorskip("tensordict")
    settings = {"max_token_len_per_gpu": 16, "temperature": 1.0}
    made = tensordict.TensorDict(
        {name: value for name, value in batch().items() if isinstance(value, Tensor)},
        batch_size=[6],
    )
    for name, value in settings.items():
        made.set_non_tensor(name, value)
    return made


@pytest.mark.verl
@pytest.mark.filterwarnings("ignore")
def test_verls_base_class_trains_the_engine_with_verls_own_loss(tmp_path: Path) -> None:
    base = pytest.importorskip(
        "verl.workers.engine.base", reason="verl is not installed"
    ).BaseEngine
    losses = pytest.importorskip("verl.workers.utils.losses")
    assert {
        name for name in dir(base) if not name.startswith("_") and not hasattr(VerlEngine, name)
    } == ABSENT
    (tmp_path / "recipe.yaml").write_text(TEXT)
    found: list[list[float]] = []
    for step in (
        lambda engine: base.train_batch(engine, tensor_dict(), partial(losses.sft_loss, None)),
        lambda engine: engine.train_batch(batch(), sft_loss),
    ):
        engine = open_verl_engine(str(tmp_path / "recipe.yaml"))
        engine.initialize()
        outputs = [step(engine) for _ in range(3)]
        found.append(
            [
                value
                for output in outputs
                for value in (*output["loss"], output["metrics"]["grad_norm"])
            ]
        )
        assert base.infer_batch(engine, tensor_dict())["model_output"]["log_probs"].size(0) == 6
        engine.close()
    assert found[0] == found[1]
