"""Training on the predictions of a teacher, against transformers and torch's divergences in
float64, and teachers that do not fit."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, kl_divergence
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.worker.test_resume import sending, train
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.resolving.teacher import require_teacher
from titanrun.worker.rank_main import main

LR, BETA, TEMPERATURE, HARD_WEIGHT = 0.5, 0.3, 1.5, 0.25
CHATS = (
    ("Say: a goat", "a goat"),
    ("Say: the moon", "the moon"),
    ("Who is there?", "The bear."),
    ("Say: hand and fire", "hand and fire"),
)
STUDENT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEACHER = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6}
Run = Callable[..., Path]


def save_model(folder: Path, seed: int, *, vocab_size: int = 2048, **sizes: int) -> Path:
    """A llama of random weights with the tiny tokenizer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        max_position_embeddings=128,
        initializer_range=0.1,
        intermediate_size=64,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=1,
        **sizes,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in TinyTokenizerConfig().folder.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, a larger teacher, and conversations."""
    path = tmp_path_factory.mktemp("models")
    save_model(path / "student", 0, **STUDENT)
    save_model(path / "teacher", 1, **TEACHER)
    records = [
        {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": other}]}
        for one, other in CHATS
    ]
    (path / "chats.jsonl").write_text("\n".join(map(json.dumps, records)))
    return path


def distil(
    run: Run,
    folder: Path,
    name: str,
    *overrides: str,
    steps: int = 4,
    start: str = "initial_load_in_hf: true",
    **fields: Any,
) -> Path:
    values = {
        "teacher": str(folder / "teacher"),
        "beta": BETA,
        "temperature": TEMPERATURE,
        "hard_weight": HARD_WEIGHT,
        **fields,
    }
    return run(
        name,
        f"model={{name: llama3, flavor: auto, hf_assets_path: {folder}/student, "
        "attention: {mask: block_causal}}",
        "tokenizer=auto",
        f"training.dataset={{name: chat, path: {folder}/chats.jsonl, shuffle: false, "
        "packing: best_fit}",
        "training.seq_len=64",
        "training.local_batch_size=1",
        "training.global_batch_size=2",
        "training.max_norm=null",
        f"training.steps={steps}",
        f"optimizer={{name: sgd, lr: {LR}}}",
        "lr_scheduler={name: constant, warmup_steps: 0}",
        f"loss={json.dumps({'name': 'distillation', **values})}",
        f"checkpoint={{enable: true, {start}}}",
        *overrides,
    )


@pytest.mark.parametrize("beta", [BETA, 0.0, 1.0])
def test_steps_are_those_of_the_formula_on_transformers(
    run: Run, folder: Path, beta: float
) -> None:
    """All conversations are in each step, packed, in two passes."""
    resolved = distil(run, folder, f"beta{beta}", beta=beta)
    assert main([str(resolved)]) == 0
    log = (resolved.parent / "logs" / "rank-0.log").read_text()
    assert log.count("INFO trainable: all ") == 1
    assert re.search(r"INFO teacher: [\d,]+ parameters, frozen\n", log)
    found = read_metrics(resolved.parent / "metrics.jsonl")

    student, teacher = (
        AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float64)
        for name in ("student", "teacher")
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "student")

    def compute(question: str, reply: str) -> tuple[torch.Tensor, torch.Tensor]:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        text = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        ids = torch.tensor(text["input_ids"])
        counted = torch.tensor(text["assistant_masks"]).bool()[1:]
        logits = student(ids[None, :-1]).logits[0][counted]
        with torch.no_grad():
            wanted = teacher(ids[None, :-1]).logits[0][counted]
        ours, theirs = (Categorical(logits=row / TEMPERATURE) for row in (logits, wanted))
        if beta == 0:
            divergence = kl_divergence(theirs, ours)
        elif beta == 1:
            divergence = kl_divergence(ours, theirs)
        else:
            mixture = Categorical(probs=(1 - beta) * ours.probs + beta * theirs.probs)
            divergence = beta * kl_divergence(theirs, mixture) + (1 - beta) * kl_divergence(
                ours, mixture
            )
        nll = torch.nn.functional.cross_entropy(logits, ids[1:][counted], reduction="none")
        return divergence, nll

    optimizer = torch.optim.SGD(student.parameters(), lr=LR)
    for line in found:
        parts = [compute(*chat) for chat in CHATS]
        divergence, nll = (torch.cat(values).mean() for values in zip(*parts, strict=True))
        loss = divergence + HARD_WEIGHT * nll
        assert line["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert line["distillation/divergence"] == pytest.approx(divergence.item(), rel=1e-5)
        assert line["distillation/nll"] == pytest.approx(nll.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found[-1]["loss"] < found[0]["loss"]


def test_a_run_that_goes_on_has_the_same_teacher(run: Run, folder: Path) -> None:
    uncut, stopped = (distil(run, folder, name) for name in ("uncut", "stopped"))
    train(uncut)
    assert train(stopped, sending(signal.SIGTERM, at=2))[0].step == 2
    assert train(stopped)[0].step == 4
    losses = [
        [line["loss"] for line in read_metrics(path.parent / "metrics.jsonl")]
        for path in (uncut, stopped)
    ]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("lora", [False, True], ids=["weights", "adapters"])
def test_a_run_is_the_teacher_of_another(run: Run, folder: Path, lora: bool) -> None:
    """A student that has the teacher's weights has nothing to learn from it; adapters count."""
    adapters = ["converters=[{name: lora, rank: 2}]"] if lora else []
    teacher = distil(run, folder, "teacher", *adapters, hard_weight=0.3 if lora else 5.0).parent
    assert main([str(teacher / "resolved.yaml")]) == 0
    fields = {"teacher": str(teacher), "hard_weight": 0.0}
    away = distil(run, folder, "away", steps=1, **fields)
    equal = distil(
        run,
        folder,
        "equal",
        *adapters,
        start=f"initial_load_path: {teacher}",
        steps=1,
        **fields,
    )
    losses = []
    for resolved in (away, equal):
        assert main([str(resolved)]) == 0
        losses.append(read_metrics(resolved.parent / "metrics.jsonl")[0]["loss"])
    # merged adapters round differently
    assert losses[0] > 1e-5 and abs(losses[1]) < 1e-4 * losses[0]


def test_held_out_data_have_a_divergence(run: Run, folder: Path) -> None:
    held_out = (
        f"validation={{enable: true, freq: 2, dataset: {{name: chat, path: {folder}/chats.jsonl, "
        "packing: best_fit}}"
    )
    resolved = distil(run, folder, "held-out", held_out, "optimizer.lr=1.0e-12")
    assert main([str(resolved)]) == 0
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    last = next(line for line in reversed(lines) if "validation/loss" in line)
    assert last["validation/loss"] == pytest.approx(lines[0]["loss"], rel=1e-5)


@pytest.fixture(scope="module")
def misfits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("misfits")
    save_model(path / "larger", 1, vocab_size=2050, **TEACHER)
    other = save_model(path / "other", 1, **TEACHER)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    short = save_model(path / "short", 1, **TEACHER)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
    (path / "empty").mkdir()
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "folder not found: '.*missing'"),
        ("empty", "teacher: '.*empty' is neither a checkpoint nor a run directory with one"),
        ("larger", "the teacher predicts 2,050 tokens, but the model 2,048"),
        ("other", "the teacher has another tokenizer: its token [0-9]+ is '.*', the run's '.*'"),
        ("short", "teacher: seq_len 64 exceeds model.max_seq_len 32"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(
    run: Run, folder: Path, misfits: Path, name: str, message: str
) -> None:
    resolved = distil(run, folder, "run", teacher=str(misfits / name))
    with pytest.raises(ProblemsFound, match=message) as found:
        require_teacher(load_resolved(resolved))
    assert [problem.path for problem in found.value.problems] == [("loss", "teacher")]
    assert all(problem.hint for problem in found.value.problems)
