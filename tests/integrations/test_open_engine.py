"""What a loop that is not ours does with an engine: microbatches, moves, names of Hugging Face,
checkpoints."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.integrations.parts import PRETRAIN, on_ranks
from tests.rl.parts import TEXT
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.dtensor import full_tensor
from titanrun.models.llama3.huggingface import to_huggingface_config
from titanrun.worker.open_engine import EngineHandle, open_engine, open_policy_trainer

LAYERS = "model.n_layers=2"
PIPELINE = (LAYERS, "parallelism.pipeline_parallel_degree=2", "training.local_batch_size=2")
SHARDED = (LAYERS, "parallelism.data_parallel_shard_degree=2")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    return str(tmp_path / "recipe.yaml")


@pytest.fixture
def opened(recipe: str) -> Iterator[EngineHandle]:
    made = open_engine(recipe)
    yield made
    made.close()


def microbatches(count: int = 4, *, rows: int = 1) -> list[TokenBatch]:
    """Rows of sequences of different lengths, each with another mask."""
    made = []
    for number in range(count):
        tokens = torch.randint(56, (rows, 12), generator=torch.Generator().manual_seed(number))
        lengths = torch.tensor([12 - (number + row) % 5 for row in range(rows)])
        made.append(
            TokenBatch.from_padded(
                tokens, lengths, loss_mask_NT=torch.arange(12).expand(rows, 12) > number
            )
        )
    return made


def gradients(opened: EngineHandle) -> dict[str, Tensor]:
    return {
        name: full_tensor(weight.grad).clone()
        for name, weight in opened.engine.model.named_parameters()
        if weight.grad is not None
    }


def weights(opened: EngineHandle) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in opened.state_dict_stream()}


def trained(opened: EngineHandle, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        losses.append(float(opened.engine.forward_backward(microbatches()).loss))
        opened.engine.optim_step()
    return losses


def test_several_batches_are_evaluated_as_one(opened: EngineHandle) -> None:
    parts, engine = microbatches(), opened.engine
    whole = TokenBatch(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.labels for part in parts]),
        torch.cat([part.positions for part in parts if part.positions is not None]),
        torch.cat([part.loss_mask for part in parts]),
    )
    for together in (False, True):
        assert float(engine.evaluate_loss(parts, are_microbatches=together).loss) == pytest.approx(
            float(engine.evaluate_loss(whole).loss)
        )
        found = engine.forward(parts, are_microbatches=together)["logprobs"]
        torch.testing.assert_close(found, engine.forward(whole)["logprobs"])


def pipeline_work(recipe: str, schedule: str, count: int) -> dict[str, Any]:
    opened = open_engine(recipe, [*PIPELINE, f"parallelism.pipeline_parallel_schedule={schedule}"])
    parts = microbatches(count, rows=2)
    found = opened.engine.evaluate_loss(parts, are_microbatches=True)
    logprobs = opened.engine.forward(parts, are_microbatches=True)["logprobs"]
    output = opened.engine.forward_backward(parts, are_microbatches=True)
    with pytest.raises(ValueError, match="must have equal shapes, but these have"):
        opened.engine.evaluate_loss([*parts, *microbatches(1)], are_microbatches=True)
    seen = {
        "evaluated": float(found.loss),
        "loss": float(output.loss),
        "logprobs": logprobs,
        "gradients": gradients(opened),
    }
    whole = weights(opened)
    with torch.no_grad():
        for weight in opened.engine.model.parameters():
            weight.zero_()
    opened.load_weight_stream(whole.items())
    seen["taken_up"] = all(
        torch.equal(tensor, whole[name]) for name, tensor in opened.state_dict_stream()
    )
    opened.close()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_microbatches_that_were_cut_before_go_through_a_pipeline_as_they_are(
    tmp_path: Path, schedule: str
) -> None:
    (tmp_path / "pretrain.yaml").write_text(PRETRAIN)
    recipe = str(tmp_path / "pretrain.yaml")
    alone = open_engine(recipe, [LAYERS])
    parts = microbatches(4, rows=2)
    logprobs = alone.engine.forward(parts)["logprobs"]
    loss, expected = float(alone.engine.forward_backward(parts).loss), gradients(alone)
    alone.close()
    ranks = on_ranks(2, pipeline_work, tmp_path / "ranks", recipe, schedule, 4)
    held: dict[str, Tensor] = {}
    for seen in ranks:
        assert seen["taken_up"]
        assert seen["loss"] == pytest.approx(loss, abs=1e-6) and seen["evaluated"] == pytest.approx(
            loss, abs=1e-6
        )
        torch.testing.assert_close(seen["logprobs"], logprobs, rtol=1e-5, atol=1e-6)
        held |= seen["gradients"]
    assert held.keys() == expected.keys()
    for name, gradient in held.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6)


def test_weights_under_the_names_of_transformers_give_its_logits(opened: EngineHandle) -> None:
    state = dict(opened.state_dict_stream(names="hf"))
    config = LlamaConfig(**to_huggingface_config(opened.recipe.model, "float32"))  # type: ignore[arg-type]
    theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict(state)
    batch = microbatches(1)[0]
    own = opened.engine.forward(batch, outputs=("logits",))["logits"][:, :8]
    torch.testing.assert_close(
        own, theirs(batch.tokens).logits[:, :8].detach(), rtol=1e-4, atol=1e-5
    )
    assert {
        tensor.dtype for _, tensor in opened.state_dict_stream(names="hf", dtype=torch.bfloat16)
    } == {torch.bfloat16}


@pytest.mark.parametrize("names", ["native", "hf"])
def test_a_stream_of_weights_is_taken_up(
    recipe: str, opened: EngineHandle, names: Literal["native", "hf"]
) -> None:
    trained(opened, 2)
    receiver = open_engine(recipe, ["debug.seed=7", "training.mixed_precision_param=bfloat16"])
    receiver.engine.forward_backward(microbatches())
    receiver.load_weight_stream(opened.state_dict_stream(names=names), names=names)
    expected, found = weights(opened), weights(receiver)
    assert found.keys() == expected.keys() and all(
        torch.equal(tensor, expected[name]) for name, tensor in found.items()
    )
    assert not gradients(receiver) and receiver.engine.policy_version == 0
    receiver.close()


def test_a_stream_that_does_not_fit_is_a_problem(opened: EngineHandle) -> None:
    whole = weights(opened)
    name = next(iter(whole))
    missing = {key: tensor for key, tensor in whole.items() if key != name}
    for stream, message in [
        (missing, f"missing weights: {name}"),
        ({**whole, "odd": torch.ones(1)}, "unknown weights: odd"),
        ({**whole, name: torch.ones(1)}, f"'{name}' has shape"),
    ]:
        with pytest.raises(ProblemsFound, match=message):
            opened.load_weight_stream(stream.items())
    changed = {
        **missing,
        "odd": torch.ones(1),
        "norm.weight": torch.full_like(whole["norm.weight"], 3.0),
    }
    opened.load_weight_stream(changed.items(), strict=False)
    expected = {**whole, "norm.weight": changed["norm.weight"]}
    assert all(torch.equal(tensor, expected[key]) for key, tensor in weights(opened).items())
    with pytest.raises(ProblemsFound):
        opened.load_weight_stream(missing.items(), names="hf")


def sharded_work(recipe: str, folder: str) -> dict[str, Any]:
    opened = open_engine(recipe, SHARDED)
    group = opened.dp_group
    seen = {
        "place": (
            opened.dp_rank,
            opened.dp_size,
            group is not None and group.size(),
            opened.is_output_rank,
        )
    }
    opened.engine.forward_backward(microbatches()[opened.dp_rank])
    opened.engine.optim_step()
    for names in ("native", "hf"):
        seen[names] = list(opened.state_dict_stream(names=names))  # type: ignore[arg-type]
    opened.save(folder, step=1)
    before = weights(opened)
    trained(opened, 1)
    moved = any(not torch.equal(tensor, before[name]) for name, tensor in weights(opened).items())
    assert opened.load(folder) == 1 and moved
    seen["same"] = all(
        torch.equal(tensor, before[name]) for name, tensor in weights(opened).items()
    )
    for names in ("native", "hf"):
        given = dict(opened.state_dict_stream(names=names))  # type: ignore[arg-type]
        trained(opened, 1)
        opened.load_weight_stream(given.items(), names=names)  # type: ignore[arg-type]
        seen["same"] &= all(
            torch.equal(tensor, before[name]) for name, tensor in weights(opened).items()
        )
    opened.close()
    return seen


@pytest.mark.slow
def test_ranks_give_the_same_names_in_the_same_order_and_save_together(
    recipe: str, tmp_path: Path
) -> None:
    one, other = on_ranks(2, sharded_work, tmp_path / "ranks", recipe, str(tmp_path / "saved"))
    assert (
        one["place"] == (0, 2, 2, True)
        and other["place"] == (1, 2, 2, True)
        and one["same"]
        and other["same"]
    )
    for names in ("native", "hf"):
        assert [name for name, _ in one[names]] == [name for name, _ in other[names]]
        assert all(
            torch.equal(left, right)
            for (_, left), (_, right) in zip(one[names], other[names], strict=True)
        )
    alone = open_engine(recipe, [LAYERS])
    assert alone.load(tmp_path / "saved", scope="model") == 1
    for (name, tensor), (known, expected) in zip(
        alone.state_dict_stream(), one["native"], strict=True
    ):
        assert name == known and torch.equal(tensor, expected)
    alone.close()


def test_a_loop_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(
    recipe: str, tmp_path: Path
) -> None:
    whole = open_engine(recipe)
    expected = trained(whole, 6)
    half = open_engine(recipe)
    assert trained(half, 3) == expected[:3]
    assert half.save(tmp_path / "saved", step=3) == tmp_path / "saved" / "step-3"
    later = open_engine(recipe, ["debug.seed=5"])
    assert later.load(tmp_path / "saved") == 3 and later.engine.policy_version == 3
    assert trained(later, 3) == expected[3:]
    half.save(tmp_path / "saved", step=4, keep=1)
    assert [folder.name for folder in (tmp_path / "saved").iterdir()] == ["step-4"]
    for one in (whole, half, later):
        one.close()


def test_checkpoints_that_cannot_be_used_are_problems(opened: EngineHandle, tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound, match="no checkpoint in"):
        opened.load(tmp_path / "nowhere")
    opened.save(tmp_path, step=1)
    with pytest.raises(ProblemsFound, match="no checkpoint of step 2"):
        opened.load(tmp_path, step=2)
    file = next(path for path in sorted((tmp_path / "step-1").rglob("*.distcp")))
    file.write_bytes(b"\0" + file.read_bytes()[1:-1])
    with pytest.raises(ProblemsFound, match="cannot be used"):
        opened.load(tmp_path)
    with torch.no_grad():
        next(iter(opened.engine.model.parameters())).fill_(float("nan"))
    with pytest.raises(ProblemsFound, match="not finite"):
        opened.save(tmp_path, step=3)


def test_state_that_was_moved_away_and_back_trains_on(recipe: str) -> None:
    still, moved = open_engine(recipe), open_engine(recipe)
    expected = trained(still, 4)
    assert trained(moved, 2) == expected[:2]
    moved.engine.to("cpu")
    moved.engine.to(moved.engine.device)
    assert trained(moved, 2) == expected[2:]
    with pytest.raises(ValueError, match="gradients move with their weights"):
        moved.engine.to("cpu", model=False)
    with pytest.raises(ValueError, match="only to the CPU and back"):
        moved.engine.to("cuda")
    for one in (still, moved):
        one.close()


@pytest.mark.parametrize(
    ("first_step", "expected"),
    [
        (1, [0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        (0, [0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
    ],
)
def test_learning_rates_of_both_indices_where_the_loop_moves_the_schedule(
    recipe: str, first_step: int, expected: Sequence[float]
) -> None:
    schedule = f"lr_scheduler={{warmup_steps: 2, total_steps: 10, first_step: {first_step}}}"
    opened = open_engine(recipe, ["optimizer.lr=1.0", schedule])
    engine = opened.engine
    rates = []
    for _ in expected:
        engine.forward_backward(microbatches())
        rates.append(engine.optim_step(should_update=lambda norm: False, step_scheduler=False).lr)
        told = engine.lr_scheduler_step()
        if len(rates) < len(expected):
            assert told == pytest.approx(expected[len(rates)])
    assert rates == pytest.approx(list(expected)) and engine.policy_version == 0
    opened.close()


def test_a_policy_trainer_saves_and_takes_up_what_it_saved(recipe: str, tmp_path: Path) -> None:
    trainer = open_policy_trainer(recipe, checkpoints=tmp_path / "saved")
    trainer.engine.forward_backward(microbatches())
    trainer.optim_step()
    assert trainer.save_checkpoint() and (tmp_path / "saved" / "step-1").is_dir()
    trainer.close()
    other = open_policy_trainer(recipe, checkpoints=tmp_path / "saved")
    assert other.load_checkpoint() == 1 and other.get_policy_version() == 1
    for (_, one), (_, two) in zip(
        trainer.engine.state_dict_stream(), other.engine.state_dict_stream(), strict=True
    ):
        assert torch.equal(one, two)
    other.close()
    nowhere = open_policy_trainer(recipe)
    with pytest.raises(ValueError, match="no checkpoint folder"):
        nowhere.load_checkpoint()
    nowhere.close()
