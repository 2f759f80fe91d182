"""TorchForge's trainer actor, against the engine that it stands on and against transformers."""

import gc
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.distributed.ranks import PRELOADED
from tests.integrations.torchforge.parts import batch, fields, next_token_loss
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.tokenizers.config import CharactersTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_characters_tokenizer
from titanrun.config.problems import ProblemsFound
from titanrun.integrations.torchforge import weight_store
from titanrun.integrations.torchforge.titan_trainer import TitanTrainer, return_logits
from titanrun.integrations.torchforge.weight_store import DcpHandle, drop_version
from titanrun.worker.open_engine import open_engine

ROOT = Path(__file__).parents[3]
Make = Callable[..., TitanTrainer]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Trainers that are set up, and cleaned up at the end."""
    made: list[TitanTrainer] = []

    def trainer(loss: Callable[..., Tensor] = next_token_loss, **sections: Any) -> TitanTrainer:
        made.append(
            TitanTrainer(
                **fields(tmp_path, dcp_path=str(tmp_path / "pushed"), **sections), loss=loss
            )
        )
        made[-1].setup()
        return made[-1]

    yield trainer
    for each in made:
        each.cleanup()
        each.cleanup()


def losses(trainer: TitanTrainer, steps: int = 3, **options: int) -> list[float]:
    found = []
    for step in range(steps):
        inputs, targets = batch(step, **options)
        found.append(trainer.train_step([inputs], [targets]))
    return found


def weights(trainer: TitanTrainer) -> dict[str, Tensor]:
    return {
        name: weight.detach().clone()
        for name, weight in trainer.training_state.handle.engine.model.state_dict().items()
    }


def test_steps_are_those_of_the_engine_and_gradients_are_clipped(
    make: Make, tmp_path: Path
) -> None:
    trainer = make(training={"max_norm": 0.01}, optimizer={"lr": 1e-2})
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\noptimizer: {lr: "
        "1.0e-2}\nlr_scheduler: {warmup_steps: 2}\n"
        "training: {dataset: tiny, local_batch_size: 2, seq_len: 16, steps: 8, "
        "mixed_precision_param: float32, max_norm: 0.01}\n"
        "debug: {seed: 0}\n"
    )
    opened = open_engine(str(recipe))
    for step in range(3):
        inputs, targets = batch(step)
        found = trainer.train_step([inputs], [targets])
        rows = TokenBatch.from_sequences(
            torch.cat([inputs["tokens"], targets["labels"][:, -1:]], 1)
        )
        output = opened.engine.forward_backward(rows)
        update = opened.engine.optim_step()
        assert float(update.grad_norm) > 0.01
        # one is a mean, the other a sum over tokens that is divided
        assert found == pytest.approx(float(output.loss), rel=1e-5)
        assert trainer.training_state.lr == update.lr
        if step == 0:
            assert trainer.training_state.grad_norm == pytest.approx(
                float(update.grad_norm), rel=1e-4
            )
    assert trainer.step == 4
    opened.close()


def test_a_step_of_several_passes_is_one_of_a_large_pass(make: Make) -> None:
    large = make(training={"local_batch_size": 4})
    cut = make(training={"local_batch_size": 2, "global_batch_size": 4})
    assert losses(cut, rows=4) == pytest.approx(losses(large, rows=4), rel=1e-4)


def test_the_loss_is_told_of_its_rows_and_of_what_is_the_same_for_all(make: Make) -> None:
    seen = []

    def loss(logits: Tensor, advantages: Tensor, beta: Tensor, name: str) -> Tensor:
        seen.append((logits.shape, advantages.tolist(), beta, name))
        return (logits.float().logsumexp(-1).mean(1) * advantages.squeeze(-1)).mean() * beta

    trainer = make(loss, training={"local_batch_size": 1, "global_batch_size": 2})
    inputs, _ = batch(0)
    given = {"advantages": torch.tensor([[1.0], [3.0]]), "beta": torch.tensor(2.0), "name": "x"}
    trainer.train_step([inputs], [given])
    assert [(shape, advantages) for shape, advantages, _, _ in seen] == [
        ((1, 16, 2048), [[1.0]]),
        ((1, 16, 2048), [[3.0]]),
    ]
    assert all(beta == 2.0 and name == "x" for _, _, beta, name in seen)


def test_a_tokenizer_that_was_named_must_be_there(make: Make) -> None:
    with pytest.raises(ProblemsFound, match="folder not found: 'nowhere'"):
        make(model={"hf_assets_path": "nowhere"}, checkpoint={"enable": True})


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint(make: Make) -> None:
    saves = {
        "enable": True,
        "interval": 2,
        "enable_first_step_checkpoint": True,
        "create_seed_checkpoint": True,
    }
    first = make(checkpoint=saves)
    assert first.step == 1
    whole = losses(first, 4)
    state = weights(first)
    first.cleanup()
    with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
        losses(first)
    folder = Path(first.job.dump_folder) / "checkpoint"
    assert sorted(path.name for path in folder.glob("step-*")) == [
        "step-0",
        "step-1",
        "step-2",
        "step-4",
    ]
    again = make(checkpoint=saves)
    assert again.step == 5 and all(
        torch.equal(weight, state[name]) for name, weight in weights(again).items()
    )
    # the documented default is a folder that only TorchForge's checkout has
    assert not list((folder / "step-4").rglob("tokenizer*"))
    back = make(checkpoint={**saves, "load_step": 2})
    assert back.step == 3
    inputs, targets = batch(2)
    assert back.train_step([inputs], [targets]) == whole[2]


@pytest.mark.slow
def test_the_last_step_leaves_weights_that_transformers_opens(make: Make, tmp_path: Path) -> None:
    assets = build_characters_tokenizer(CharactersTokenizerConfig()).folder
    missing = TitanTrainer(
        **fields(tmp_path, checkpoint={"enable": True, "last_save_in_hf": True}),
        loss=next_token_loss,
    )
    with pytest.raises(ProblemsFound):
        missing.setup()
    trainer = make(
        checkpoint={"enable": True, "last_save_in_hf": True},
        model={"hf_assets_path": str(assets)},
        training={"steps": 1},
    )
    losses(trainer, 1)
    theirs = AutoModelForCausalLM.from_pretrained(
        Path(trainer.job.dump_folder) / "hf", dtype=torch.float32
    )
    tokens = batch(0)[0]["tokens"]
    torch.testing.assert_close(
        theirs(tokens).logits,
        trainer.training_state.handle.engine.model(tokens),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("use_dcp", [True, False])
def test_pushed_weights_have_the_names_of_transformers(make: Make, use_dcp: bool) -> None:
    trainer = make(use_dcp=use_dcp, state_dict_key="weights")
    trainer.push_weights(1)
    before = trainer.store.copy()
    losses(trainer, 1)
    trainer.push_weights(2)
    sizes = {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "vocab_size": 2048,
        "intermediate_size": 768,
    }
    with torch.device("meta"):
        theirs = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
    names = {name for name, _ in theirs.named_parameters()}
    if use_dcp:
        assert list(before) == ["policy_ver_0000000001.weights"]
        handles = [trainer.store[f"policy_ver_000000000{version}.weights"] for version in (1, 2)]
        assert set(handles[0].param_names) == names
        first, second = (handle.load() for handle in handles)
        assert sorted(path.name for path in Path(trainer.dcp_path).iterdir()) == [
            "policy_ver_0000000001",
            "policy_ver_0000000002",
        ]
    else:
        assert {key.partition(".")[0] for key in before} == {"policy_ver_0000000001"}
        first, second = (
            {name: trainer.store[f"policy_ver_000000000{version}.{name}"] for name in names}
            for version in (1, 2)
        )
    assert set(first) == names
    embedding = trainer.training_state.handle.engine.model.state_dict()["tok_embeddings.weight"]
    assert torch.equal(second["model.embed_tokens.weight"], embedding)
    assert not torch.equal(first["model.embed_tokens.weight"], embedding)
    drop_version(trainer.store, 1)
    assert all(key.startswith("policy_ver_0000000002.") for key in trainer.store)
    if use_dcp:
        assert [path.name for path in Path(trainer.dcp_path).iterdir()] == ["policy_ver_0000000002"]
        with pytest.raises(FileNotFoundError):
            handles[0].load()


def test_a_version_that_breaks_off_while_it_is_written_is_not_there(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make()
    trainer.push_weights(1)

    def break_off(folder: Path, weights: dict[str, Tensor]) -> None:
        (folder / "half").write_text("of it")
        raise OSError("the disk is full")

    monkeypatch.setattr(weight_store, "write_dcp", break_off)
    with pytest.raises(OSError, match="disk is full"):
        trainer.push_weights(2)
    assert [path.name for path in Path(trainer.dcp_path).iterdir()] == ["policy_ver_0000000001"]
    [handle] = trainer.store.values()
    assert isinstance(handle, DcpHandle) and len(handle.load()) == len(handle.param_names)


def push_for_ever(trainer: TitanTrainer) -> None:
    torch.set_num_threads(1)
    version = 1
    while True:
        with torch.no_grad():
            for weight in trainer.training_state.handle.engine.model.parameters():
                weight.fill_(version)
        trainer.push_weights(version)
        if version > 2:
            drop_version(trainer.store, version - 2)
        version += 1


@pytest.mark.slow
def test_a_reader_never_sees_half_of_what_is_pushed_whenever_the_trainer_is_killed(
    make: Make,
) -> None:
    trainer, moments = make(), random.Random(0)
    folder, context = Path(trainer.dcp_path), multiprocessing.get_context("fork")
    whole = "policy_ver_" + 10 * "[0-9]"
    for attempt in range(8):
        writer = context.Process(target=push_for_ever, args=(trainer,))
        writer.start()
        deadline = time.monotonic() + 60
        while not list(folder.glob(whole)) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.5))
        os.kill(writer.pid, signal.SIGKILL)  # type: ignore[arg-type]
        writer.join()
        versions = sorted(folder.glob(whole))
        assert 1 <= len(versions) <= 3, attempt
        for version in versions:
            found = DcpHandle(str(version), ()).load()
            assert len(found) == 57 and all(
                (weight == int(version.name[-10:])).all() for weight in found.values()
            )
        shutil.rmtree(folder)


def test_gradients_that_are_no_numbers_change_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make(lambda logits, labels: logits.mean() * float("nan"))
    before = weights(trainer)
    losses(trainer, 1)
    assert all(torch.equal(weight, before[name]) for name, weight in weights(trainer).items())
    assert "step 1: gradients are NaN or infinite" in caplog.text


def test_what_a_step_cannot_take_is_said(make: Make) -> None:
    trainer = make()
    inputs, targets = batch(0)
    for given, message in [
        (
            (inputs, [targets]),
            "inputs must be a list with one entry per data-parallel rank",
        ),
        (([inputs] * 2, [targets]), "inputs has 2 entries for 1 data-parallel rank"),
        (([{"ids": inputs["tokens"]}], [targets]), "inputs has ids"),
        (([{"tokens": inputs["tokens"][0]}], [targets]), r"must be an integer tensor \[B, T\]"),
        (
            ([{"tokens": inputs["tokens"] + 2048}], [targets]),
            "outside the model's vocabulary of 2048",
        ),
        (([inputs["tokens"]], [targets]), "inputs of a rank is Tensor, not a mapping"),
        (
            ([batch(0, rows=3)[0]], [targets]),
            "has 3 sequences, but a step takes at most 2 per rank",
        ),
        (([batch(0, length=17)[0]], [targets]), "sequences of 17 tokens, longer than 16"),
    ]:
        with pytest.raises(ProblemsFound, match=message):
            trainer.train_step(*given)
    for loss, message in [
        (return_logits, r"a tensor of shape \[2, 16, 2048\]"),
        (lambda logits, labels: 0.5, "loss returns float"),
    ]:
        with pytest.raises(ProblemsFound, match=message):
            make(loss).train_step([inputs], [targets])


def test_the_loss_is_compiled_where_the_section_says_so(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(torch, "compile", lambda loss, backend: asked.append(backend) or loss)
    trainer = make(compile={"enable": True, "components": ["loss"], "backend": "aot_eager"})
    losses(trainer, 1)
    assert "aot_eager" in asked


def test_budgets_are_drawn_where_the_field_asks_for_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functorch, "visualize_memory_budget_pareto", False)
    make()
    assert not functorch.visualize_memory_budget_pareto
    make(activation_checkpoint={"visualize_memory_budget_pareto": True})
    assert functorch.visualize_memory_budget_pareto


class Cycle:
    """Holds itself, and a tensor."""

    def __init__(self) -> None:
        self.tensor = torch.ones(3)
        self.itself = self


def test_garbage_is_collected_at_the_steps_that_are_due_and_at_no_other_time(make: Make) -> None:
    cycles: list[weakref.ref[Cycle]] = []

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        cycles.append(weakref.ref(Cycle()))
        return next_token_loss(logits, labels)

    trainer = make(loss, training={"gc_freq": 2})
    alive = []
    for step in range(4):
        assert not gc.isenabled()
        losses(trainer, 1)
        alive.append(cycles[step]() is not None)
    assert alive == [True, False, True, False]
    trainer.cleanup()
    assert gc.isenabled()


def test_tensors_in_cycles_are_reported_where_the_field_asks_for_it(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        Cycle()
        return next_token_loss(logits, labels)

    losses(make(loss, training={"gc_debug": True}), 1)
    assert "step 1: reference cycles kept 1 tensor alive" in caplog.text


def test_the_log_begins_with_the_description_and_with_the_recipe_if_wanted(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make()
    # what torchtitan's own field says where nobody wrote another
    assert "default job" in caplog.messages and "gc_freq: 50" not in caplog.text
    caplog.clear()
    trainer = make(job={"description": "an actor of ours", "print_config": True})
    assert "an actor of ours" in caplog.messages
    assert trainer.training_state.handle.job.resolved_text.rstrip() in caplog.messages
    assert "gc_freq: 50" in caplog.text


def test_kernels_are_deterministic_where_the_field_asks_for_it(make: Make) -> None:
    # of the process, which other tests may have set
    torch.use_deterministic_algorithms(False)
    try:
        make()
        assert not torch.are_deterministic_algorithms_enabled()
        make(training={"deterministic": True})
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def measure_patience(rank: int, meeting: socket.socket | None, port: int, folder: Path) -> None:
    """In a process of its own: how long a rank waits for another before and after a step."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if meeting is not None:
        os.environ["TITANRUN_STORE_SOCKET"] = str(meeting.fileno())
    comm = {"init_timeout_seconds": 200, "train_timeout_seconds": 70}
    trainer = TitanTrainer(**fields(folder, comm=comm), loss=next_token_loss)
    trainer.setup()
    found = []
    for step in range(2):
        found.append(
            dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        )
        inputs, targets = batch(step)
        trainer.train_step([inputs] * 2, [targets] * 2)
    trainer.cleanup()
    (folder / f"patience-{rank}").write_text(json.dumps(found))


def test_ranks_wait_for_the_first_step_longer_than_for_others(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with socket.create_server(("127.0.0.1", 0)) as meeting:
        port = meeting.getsockname()[1]
        ranks = [
            context.Process(
                target=measure_patience, args=(rank, None if rank else meeting, port, tmp_path)
            )
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
    for process in ranks:
        process.join(300)
    assert [process.exitcode for process in ranks] == [0, 0]
    for rank in range(2):
        assert json.loads((tmp_path / f"patience-{rank}").read_text()) == [200, 70]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"data_parallel_shard_degree": 2},
        {"data_parallel_replicate_degree": 2},
        {"tensor_parallel_degree": 2},
        {"pipeline_parallel_degree": 2},
        {"context_parallel_degree": 2},
    ],
    ids=lambda layout: next(iter(layout)),
)
def test_two_ranks_learn_what_one_does(layout: dict[str, int], tmp_path: Path) -> None:
    script = f"""
import json, sys
from pathlib import Path
from tests.integrations.torchforge.parts import batch, fields, next_token_loss
from titanrun.integrations.torchforge.titan_trainer import TitanTrainer, return_logits
layout = {layout!r}
count = 2 if any(key.startswith("data") for key in layout) and len(sys.argv) > 1 else 1
rows = 4 // count
parallelism = layout if len(sys.argv) > 1 else {{}}
given = dict(training=dict(local_batch_size=rows), parallelism=parallelism)
given["dcp_path"] = {str(tmp_path / "pushed")!r}
trainer = TitanTrainer(**fields(Path({str(tmp_path)!r}), **given), loss=next_token_loss)
trainer.setup()
found = []
for step in range(3):
    inputs, targets = batch(step, rows=4)
    share = lambda given: [
        {{key: value[rank * rows : (rank + 1) * rows] for key, value in given.items()}}
        for rank in range(count)
    ]
    found.append(trainer.train_step(share(inputs), share(targets)) / count)
    found.append(trainer.training_state.grad_norm)
trainer.push_weights(1)
if trainer.training_state.handle.job.rank_info.is_main_rank:
    names = list(trainer.store.values())[0].param_names
    file = Path({str(tmp_path)!r}, "together" if len(sys.argv) > 1 else "alone")
    file.write_text(json.dumps([found, names]))
trainer.cleanup()
"""
    file = tmp_path / "script.py"
    file.write_text(script)
    alone, together = (
        [sys.executable, str(file)],
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(file), "2"],
    )
    for command in (alone, together):
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    (one, names), (two, their_names) = (
        json.loads((tmp_path / name).read_text()) for name in ("alone", "together")
    )
    # losses are added up over ranks, which the script divides by those with rows of their own
    ranks = 2 if "context_parallel_degree" in layout else 1
    assert [
        value / ranks if place % 2 == 0 else value for place, value in enumerate(two)
    ] == pytest.approx(one, rel=1e-4)
    assert names == their_names
