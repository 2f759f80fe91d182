"""The contract of verl's engines (verl 0.9.1): every method, its rules on data, losses, modes and
checkpoints."""

import inspect
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.integrations.parts import PRETRAIN, on_ranks
from tests.rl.parts import TEXT
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.dtensor import full_tensor
from titanrun.integrations.verl.build_verl_engine import (
    build_verl_engine,
    open_verl_engine,
    resolve_verl_recipe,
)
from titanrun.integrations.verl.verl_batches import VerlBatchLayout
from titanrun.integrations.verl.verl_engine import VerlEngine
from titanrun.models.llama3.config import Llama3Config
from titanrun.worker.open_engine import open_engine

LENGTHS = (7, 4, 11, 5, 9, 6)
LAYERS = "model.n_layers=2"
# transcribed from workers/engine/base.py: what the parameters of each method are called
SIGNATURES = {
    "initialize": [],
    "train_mode": ["kwargs"],
    "eval_mode": ["kwargs"],
    "optimizer_zero_grad": [],
    "optimizer_step": [],
    "lr_scheduler_step": [],
    "forward_backward_batch": ["data", "loss_function", "forward_only"],
    "train_batch": ["data", "loss_function"],
    "infer_batch": ["data", "loss_function"],
    "get_per_tensor_param": [],
    "get_data_parallel_size": [],
    "get_data_parallel_rank": [],
    "get_data_parallel_group": [],
    "to": ["device", "model", "optimizer", "grad"],
    "save_checkpoint": ["local_path", "hdfs_path", "global_step", "max_ckpt_to_keep", "kwargs"],
    "load_checkpoint": ["local_path", "hdfs_path", "del_local_after_load", "kwargs"],
    "is_mp_src_rank_with_outputs": [],
    "disable_adapter": [],
}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    return str(tmp_path / "recipe.yaml")


@pytest.fixture
def engine(recipe: str) -> Iterator[VerlEngine]:
    made = open_verl_engine(recipe)
    made.initialize()
    yield made
    made.close()


def jagged(parts: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(parts), layout=torch.jagged)


def batch(lengths: Sequence[int] = LENGTHS, **settings: Any) -> dict[str, Any]:
    """Answers after prompts of two tokens, as verl hands them to an engine."""
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(56, (length,), generator=generator) for length in lengths]
    return {
        "input_ids": jagged(tokens),
        "position_ids": jagged([torch.arange(length) for length in lengths]),
        "loss_mask": jagged([(torch.arange(length) > 1).long() for length in lengths]),
        "max_token_len_per_gpu": 16,
        **settings,
    }


def sft_loss(
    model_output: dict[str, Tensor], data: dict[str, Any], dp_group: Any = None
) -> tuple[Tensor, dict[str, Any]]:
    """Transcribed from verl's workers/utils/losses.py (sft_loss, without padding)."""
    mask = torch.roll(data["loss_mask"].values(), shifts=-1, dims=0)
    loss = (
        -(model_output["log_probs"].values() * mask).sum()
        / data["batch_num_tokens"]
        * data["dp_size"]
    )
    return loss, {"tokens": int(mask.sum())}


def gradients(engine: VerlEngine) -> dict[str, Tensor]:
    model = engine.handle.engine.model
    return {
        name: full_tensor(weight.grad).clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


def alone(
    recipe: str, data: dict[str, Any], *overrides: str
) -> tuple[float, dict[str, Tensor], list[Tensor]]:
    """Loss, gradients and log-probabilities of the engine itself, each sequence in a pass of its
    own."""
    opened = open_engine(recipe, overrides)
    total, logprobs = sum(int(mask.sum()) for mask in data["loss_mask"].unbind()), []
    loss = 0.0
    for tokens, mask in zip(data["input_ids"].unbind(), data["loss_mask"].unbind(), strict=True):
        row = TokenBatch.from_padded(
            tokens.unsqueeze(0), torch.tensor([len(tokens)]), loss_mask_NT=mask.unsqueeze(0)
        )
        loss += (
            float(opened.engine.forward_backward(row, normalizer=torch.tensor(total)).loss_sum)
            / total
        )
        whole = TokenBatch.from_padded(tokens.unsqueeze(0), torch.tensor([len(tokens)]))
        logprobs.append(opened.engine.forward(whole)["logprobs"][0])
    found = {
        name: weight.grad.clone()
        for name, weight in opened.engine.model.named_parameters()
        if weight.grad is not None
    }
    opened.close()
    return loss, found, logprobs


def test_every_method_is_there_with_the_parameters_of_verl() -> None:
    for name, expected in SIGNATURES.items():
        parameters = list(inspect.signature(getattr(VerlEngine, name)).parameters.values())[1:]
        named = [
            parameter.name
            for parameter in parameters
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        assert named == [one for one in expected if one != "kwargs"], name
        takes_more = any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters
        )
        assert takes_more or "kwargs" not in expected, name
    assert isinstance(VerlEngine.is_param_offload_enabled, property) and isinstance(
        VerlEngine.is_optimizer_offload_enabled, property
    )
    with pytest.raises(ValueError, match=r"call initialize\(\) first"):
        open_verl_engine("recipe.yaml").optimizer_zero_grad()


@pytest.mark.parametrize(
    "cut",
    [{}, {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 2}, {"max_token_len_per_gpu": 11}],
)
def test_losses_gradients_and_log_probs_are_those_of_each_sequence_by_itself(
    recipe: str, engine: VerlEngine, cut: dict[str, Any]
) -> None:
    data = batch(**cut)
    expected_loss, expected, logprobs = alone(recipe, data)
    found = engine.forward_backward_batch(data, sft_loss)
    assert len(found["loss"]) > 1 and sum(found["loss"]) == pytest.approx(expected_loss, rel=1e-5)
    assert (
        sum(found["metrics"]["tokens"])
        == sum(length - 2 for length in LENGTHS)
        == data["batch_num_tokens"]
        and data["dp_size"] == 1
    )
    scale = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in gradients(engine).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5 * scale)
    for one, other in zip(found["model_output"]["log_probs"].unbind(), logprobs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_filled_up_sequences_give_what_jagged_ones_do(engine: VerlEngine) -> None:
    data = batch()
    expected = engine.infer_batch(data)["model_output"]["log_probs"]
    wide = {
        name: torch.nn.functional.pad(data[name].to_padded_tensor(0), (3, 2))
        for name in ("input_ids", "position_ids", "loss_mask")
    }
    own = torch.arange(16) - 3
    mask = (own >= 0) & (own < torch.tensor(LENGTHS).unsqueeze(1))
    found = engine.infer_batch(
        {**wide, "attention_mask": mask.long(), "max_token_len_per_gpu": 16}
    )["model_output"]["log_probs"]
    assert found.shape == mask.shape and (found[~mask] == 0).all()
    torch.testing.assert_close(found[mask], expected.values(), rtol=1e-5, atol=1e-5)


def test_rows_that_attention_does_not_tell_apart_are_not_packed(
    tmp_path: Path, recipe: str, engine: VerlEngine
) -> None:
    (tmp_path / "pretrain.yaml").write_text(PRETRAIN)
    rows = open_verl_engine(str(tmp_path / "pretrain.yaml"))
    rows.initialize()
    expected = engine.infer_batch(batch(calculate_entropy=True, temperature=0.5))["model_output"]
    found = rows.infer_batch(batch(calculate_entropy=True, temperature=0.5))["model_output"]
    for name in ("log_probs", "entropy"):
        torch.testing.assert_close(
            found[name].values(), expected[name].values(), rtol=1e-5, atol=1e-5
        )
    each = engine.infer_batch(batch(temperature=torch.full((len(LENGTHS),), 0.5)))["model_output"][
        "log_probs"
    ]
    torch.testing.assert_close(each.values(), expected["log_probs"].values())
    rows.close()


def test_inference_changes_nothing_and_has_losses_of_one_without_a_loss(engine: VerlEngine) -> None:
    model, state = engine.handle.engine.model, torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with engine.eval_mode():
        assert engine.mode == "eval" and not model.training
        found = engine.infer_batch(batch())
        assert set(found["loss"]) == {1.0} and not found["metrics"]
        assert sum(engine.infer_batch(batch(), sft_loss)["loss"]) > 1
    assert (
        engine.mode is None
        and model.training
        and not gradients(engine)
        and torch.equal(state, torch.get_rng_state())
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match="gradients need a loss_function"):
        engine.forward_backward_batch(batch(), None)


def test_training_drops_gradients_at_its_end_unless_it_is_told_not_to(engine: VerlEngine) -> None:
    with engine.train_mode():
        engine.forward_backward_batch(batch(), sft_loss)
        once = gradients(engine)
        engine.forward_backward_batch(batch(), sft_loss)
        for name, gradient in gradients(engine).items():
            torch.testing.assert_close(gradient, 2 * once[name])
    assert not gradients(engine)
    with engine.train_mode(zero_grad_on_exit=False):
        engine.forward_backward_batch(batch(), sft_loss)
    assert gradients(engine)
    with pytest.raises(RuntimeError, match="by hand"), engine.train_mode(zero_grad_on_exit=False):
        raise RuntimeError("by hand")
    assert not gradients(engine)


def test_an_update_that_is_no_number_is_warned_of_and_left_out(
    engine: VerlEngine, caplog: pytest.LogCaptureFixture
) -> None:
    before = [weight.detach().clone() for weight in engine.handle.engine.model.parameters()]
    engine.forward_backward_batch(batch(), sft_loss)
    next(iter(engine.handle.engine.model.parameters())).grad.fill_(float("nan"))  # type: ignore[union-attr]
    with caplog.at_level(logging.WARNING):
        assert engine.optimizer_step() != engine.optimizer_step() or "nan" in caplog.text
    assert "optimizer step skipped" in caplog.text and not gradients(engine)
    assert all(
        torch.equal(one, other)
        for one, other in zip(before, engine.handle.engine.model.parameters(), strict=True)
    )


def test_verls_own_loop_learns_and_goes_on_from_its_checkpoint(recipe: str, tmp_path: Path) -> None:
    # transcribed from workers/engine_workers.py (TrainingWorker.train_batch): no package of verl is
    # run here
    def step(engine: VerlEngine) -> tuple[float, float]:
        with engine.train_mode(disable_auto_offload=False):
            output = engine.train_batch(batch(), loss_function=sft_loss)
            rate = engine.lr_scheduler_step()
        assert output["metrics"]["grad_norm"] > 0 and engine.is_mp_src_rank_with_outputs()
        return sum(output["loss"]), rate

    engine = open_verl_engine(
        recipe, ["training.steps=6"], param_offload=True, optimizer_offload=True
    )
    engine.initialize()
    assert engine.is_param_offload_enabled and engine.is_optimizer_offload_enabled
    losses = []
    for number in range(6):
        losses.append(step(engine))
        if number == 2:
            engine.save_checkpoint(
                str(tmp_path / "kept" / "global_step_3"), global_step=3, max_ckpt_to_keep=2
            )
    assert losses[-1][0] < 0.9 * losses[0][0]
    later = open_verl_engine(recipe, ["training.steps=6", "debug.seed=7"])
    later.initialize()
    later.load_checkpoint(str(tmp_path / "kept" / "global_step_3"))
    assert [step(later) for _ in range(3)] == losses[3:]
    later.load_checkpoint(str(tmp_path / "kept" / "latest"))
    assert step(later) == losses[3]
    with pytest.raises(ProblemsFound, match="no checkpoint of step 9"):
        later.load_checkpoint(str(tmp_path / "kept" / "global_step_9"))
    with pytest.raises(ValueError, match="hdfs_path"):
        later.save_checkpoint(str(tmp_path / "x"), hdfs_path="hdfs://there")
    for one in (engine, later):
        one.close()


def test_weights_go_out_in_bfloat16_with_a_tied_head_named_twice(
    recipe: str, engine: VerlEngine
) -> None:
    stream, adapters = engine.get_per_tensor_param(layered_summon=False, base_sync_done=True)
    state = dict(stream)
    assert adapters is None and {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
    assert {
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "lm_head.weight",
    } <= state.keys()
    tied = open_verl_engine(recipe, ["model.tie_word_embeddings=true"])
    tied.initialize()
    found = dict(tied.get_per_tensor_param()[0])
    assert (
        found.keys() == state.keys()
        and found["lm_head.weight"] is found["model.embed_tokens.weight"]
    )
    tied.close()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("difference", [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
        ("reset", [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_documents_begin_by_either_rule_on_positions(
    recipe: str, rule: Any, expected: list[int]
) -> None:
    positions = torch.tensor([4, 5, 6, 0, 1, 2, 3, 7, 8, 9, 10])
    data = {"input_ids": jagged([torch.arange(11)]), "position_ids": jagged([positions])}
    opened = open_engine(recipe)
    marked = opened.engine.document_id_fn(
        VerlBatchLayout(is_packed=True, document_rule=rule).build_batch(
            data, 0, width=0, min_batch_size=0
        )
    )
    assert marked.document_ids is not None and marked.document_ids[0].tolist() == expected
    opened.close()


def test_adapters_add_nothing_while_they_are_disabled(recipe: str, engine: VerlEngine) -> None:
    adapted = open_verl_engine(recipe, ["converters=[{name: lora, rank: 4}]", "optimizer.lr=0.1"])
    adapted.initialize()
    plain = engine.infer_batch(batch())["model_output"]["log_probs"].values()
    adapted.train_batch(batch(), sft_loss)
    trained = adapted.infer_batch(batch())["model_output"]["log_probs"].values()
    with adapted.disable_adapter():
        torch.testing.assert_close(
            adapted.infer_batch(batch())["model_output"]["log_probs"].values(), plain
        )
    assert not torch.allclose(trained, plain) and torch.equal(
        adapted.infer_batch(batch())["model_output"]["log_probs"].values(), trained
    )
    adapted.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_token_len_per_gpu": 10}, "a sequence of 11 tokens exceeds max_token_len_per_gpu"),
        ({"max_token_len_per_gpu": None}, "needs max_token_len_per_gpu"),
        (
            {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 4},
            "6 sequences are not divisible",
        ),
    ],
)
def test_a_batch_that_cannot_be_cut_as_it_says_is_a_problem(
    engine: VerlEngine, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProblemsFound, match=message):
        engine.infer_batch(batch(**settings))


def test_a_batch_that_lacks_something_is_a_problem(engine: VerlEngine) -> None:
    with pytest.raises(ProblemsFound, match="the batch has no loss_mask"):
        engine.infer_batch({"input_ids": batch()["input_ids"], "max_token_len_per_gpu": 16})
    with pytest.raises(ProblemsFound, match="the batch has no attention_mask"):
        engine.infer_batch(
            {
                "input_ids": torch.ones(2, 4, dtype=torch.long),
                "loss_mask": torch.ones(2, 4),
                "max_token_len_per_gpu": 16,
            }
        )


def test_moves_and_updates_that_cannot_be_are_refused(recipe: str, engine: VerlEngine) -> None:
    with pytest.raises(ValueError, match="gradients move with their weights"):
        engine.to("cpu", model=False, optimizer=True, grad=True)
    engine.to("cpu", model=True, optimizer=True, grad=True)
    only = open_verl_engine(recipe, forward_only=True)
    only.initialize()
    with pytest.raises(ValueError, match="no optimizer"):
        only.train_batch(batch(), sft_loss)
    only.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder of a tiny model with weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("zero_indexed", "expected"),
    [
        (False, [0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        (True, [0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
    ],
)
def test_verls_configs_build_the_model_of_their_folder(
    folder: Path, zero_indexed: bool, expected: list[float]
) -> None:
    engine = build_verl_engine(
        SimpleNamespace(path=str(folder)),
        {
            "use_torch_compile": False,
            "activation_checkpoint": "none",
            "max_seq_len": 32,
            "dtype": "float32",
            "attn_type": "sdpa",
        },
        SimpleNamespace(
            lr=1.0,
            lr_warmup_steps_ratio=0.2,
            total_training_steps=10,
            zero_indexed_step=zero_indexed,
            betas=(0.9, 0.99),
        ),
        overrides=["device=cpu"],
    )
    engine.initialize()
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    data = batch()
    found = engine.infer_batch(data)["model_output"]["log_probs"].unbind()
    for tokens, own in zip(data["input_ids"].unbind(), found, strict=True):
        logprobs = theirs(tokens.unsqueeze(0)).logits[0].log_softmax(-1)
        torch.testing.assert_close(
            own[:-1],
            logprobs[:-1].gather(-1, tokens[1:, None])[:, 0].detach(),
            rtol=1e-4,
            atol=1e-5,
        )
    rates = [
        engine.handle.engine.optim_step(should_update=lambda norm: False, step_scheduler=False).lr
    ]
    rates += [engine.lr_scheduler_step() for _ in expected[1:]]
    assert rates == pytest.approx(expected)
    assert engine.handle.recipe.optimizer.beta2 == 0.99  # type: ignore[attr-defined]
    engine.close()


def test_a_recipe_says_what_verls_configs_do_not(folder: Path, tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(
        "version: 1\n"
        "model: {name: qwen3}\n"
        "converters: [{name: lora, rank: 2}]\n"
        "optimizer: {lr: 5.0, no_decay: [norms]}\n"
        "training: {dataset: tiny, steps: 3, gc_freq: 7}\n"
    )
    config = {"recipe": str(base), "use_torch_compile": False, "max_seq_len": 32}
    optimizer = {"lr": 0.5, "total_training_steps": 10}
    resolved = resolve_verl_recipe(folder, config.get, optimizer.get, ["training.gc_freq=9"]).run
    assert isinstance(resolved.model, Llama3Config) and resolved.training.steps == 10
    (lora,) = resolved.converters
    assert lora.rank == 2  # type: ignore[attr-defined]
    assert resolved.optimizer.lr == 0.5 and resolved.optimizer.no_decay == ("norms",)  # type: ignore[attr-defined]
    assert resolved.training.gc_freq == 9
    with pytest.raises(ProblemsFound, match=r"missing\.yaml"):
        resolve_verl_recipe(folder, {"recipe": "missing.yaml"}.get, optimizer.get, ())


def test_the_longest_sequence_is_limited_and_not_what_is_packed_together(
    folder: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    config = {"use_torch_compile": False, "activation_checkpoint": "none", "dtype": "float32"}
    config_file = folder / "config.json"
    settings = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**settings, "max_position_embeddings": 12}))
    # unless the config says so, the limit is that of the model
    for limits in ({"max_seq_len": 8}, {}):
        engine = build_verl_engine(
            {"path": str(folder)}, {**config, **limits}, overrides=["device=cpu"]
        )
        engine.initialize()
        limit = engine.handle.recipe.training.seq_len
        assert limit == limits.get("max_seq_len", 12)
        data = batch([limit, 5, limit - 1], max_token_len_per_gpu=64)
        found = engine.infer_batch(data)["model_output"]["log_probs"].unbind()
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for tokens, own in zip(data["input_ids"].unbind(), found, strict=True):
            logprobs = theirs(tokens.unsqueeze(0)).logits[0].log_softmax(-1)
            expected = logprobs[:-1].gather(-1, tokens[1:, None])[:, 0].detach()
            torch.testing.assert_close(own[:-1], expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(
            ProblemsFound, match=rf"a sequence of {limit + 1} tokens exceeds max_seq_len \({limit}"
        ):
            engine.infer_batch(batch([limit + 1], max_token_len_per_gpu=64))
        engine.close()


def test_padding_of_a_packed_microbatch_is_no_longer_than_its_sequences() -> None:
    layout = VerlBatchLayout(is_packed=True)
    for data in (batch([5, 3]), {"input_ids": batch([5, 3])["input_ids"]}):
        made = layout.build_batch(data, 0, width=21, min_batch_size=0)
        assert made.tokens.shape == (1, 21) and made.positions is not None
        assert made.positions.max() == 4 and not made.loss_mask[:, 8:].any()


def test_configs_that_name_no_model_are_problems(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound, match="has no path"):
        build_verl_engine({}, {})
    with pytest.raises(ProblemsFound, match=r"is no folder: 'Qwen/Qwen3-0\.6B'") as found:
        build_verl_engine({"path": "Qwen/Qwen3-0.6B"}, {})
    assert "download the model" in str(found.value.problems[0].hint)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    with pytest.raises(ProblemsFound, match="no model family reads models of type 'abacus'"):
        build_verl_engine({"path": str(tmp_path)}, {})
    # verl copies a path such as hdfs://... to a folder
    with pytest.raises(ProblemsFound, match="'abacus'"):
        build_verl_engine({"path": "hdfs://there/model", "local_path": str(tmp_path)}, {})


def ranks_work(recipe: str, overrides: Sequence[str], *, split: bool) -> dict[str, Any]:
    engine = open_verl_engine(recipe, overrides)
    engine.initialize()
    rank, size = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
    assert (
        size == (2 if split else 1) and engine.get_data_parallel_group() is not None
    ) or not split
    data = batch()
    own = slice(rank, None, size)
    mine = {
        name: jagged(value.unbind()[own]) if isinstance(value, Tensor) else value
        for name, value in data.items()
    }
    with engine.train_mode(zero_grad_on_exit=False):
        found = engine.forward_backward_batch(mine, sft_loss)
    seen = {
        "gradients": gradients(engine),
        "loss": sum(found["loss"]),
        "tokens": mine["batch_num_tokens"],
    }
    seen["logprobs"] = found["model_output"].get("log_probs", jagged([torch.zeros(1)])).values()
    seen["source"] = engine.is_mp_src_rank_with_outputs()
    seen["names"] = [name for name, _ in engine.get_per_tensor_param()[0]]
    engine.close()
    return seen


def split_work(recipe: str) -> dict[str, Any]:
    return ranks_work(recipe, [LAYERS, "parallelism.data_parallel_shard_degree=2"], split=True)


def tensor_work(recipe: str) -> dict[str, Any]:
    return ranks_work(
        recipe, [LAYERS, "model.n_kv_heads=2", "parallelism.tensor_parallel_degree=2"], split=False
    )


def pipeline_work(recipe: str) -> dict[str, Any]:
    overrides = [LAYERS, "parallelism.pipeline_parallel_degree=2", "training.local_batch_size=2"]
    return ranks_work(recipe, overrides, split=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "work", [split_work, tensor_work, pipeline_work], ids=["fsdp2", "tp2", "pp2"]
)
def test_ranks_have_the_gradients_and_log_probs_of_one_process(
    recipe: str, tmp_path: Path, work: Any
) -> None:
    overrides = [LAYERS, *(["model.n_kv_heads=2"] if work is tensor_work else [])]
    (tmp_path / "pretrain.yaml").write_text(PRETRAIN)
    expected_loss, expected, logprobs = alone(recipe, batch(), *overrides)
    ranks = on_ranks(
        2,
        work,
        tmp_path / "ranks",
        str(tmp_path / "pretrain.yaml") if work is pipeline_work else recipe,
    )
    assert {one["tokens"] for one in ranks} == {sum(length - 2 for length in LENGTHS)}
    assert ranks[0]["names"] == ranks[1]["names"]
    held: dict[str, Tensor] = {}
    for one in ranks:
        held |= one["gradients"]
    scale = max(gradient.abs().max().item() for gradient in expected.values())
    assert held.keys() == expected.keys()
    for name, gradient in held.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5 * scale)
    if work is split_work:
        assert sum(one["loss"] for one in ranks) / 2 == pytest.approx(expected_loss, rel=1e-5)
        assert [one["source"] for one in ranks] == [True, True]
        for rank, one in enumerate(ranks):
            torch.testing.assert_close(
                one["logprobs"], torch.cat(logprobs[rank::2]), rtol=1e-5, atol=1e-5
            )
    else:
        source = next(one for one in ranks if one["source"])
        assert sum(one["source"] for one in ranks) == 1 and source["loss"] == pytest.approx(
            expected_loss, rel=1e-5
        )
        torch.testing.assert_close(source["logprobs"], torch.cat(logprobs), rtol=1e-5, atol=1e-6)
