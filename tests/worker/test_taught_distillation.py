"""Training on predictions of a teacher that `titanrun data teach` wrote, against transformers and
torch's divergences in float64."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, kl_divergence
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.worker.test_distillation import CHATS, HARD_WEIGHT, LR, TEMPERATURE, distil, folder
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
TOP_K = 16
assert folder  # a fixture


def prepare(run: Run, folder: Path, name: str, *overrides: str, **fields: Any) -> Path:
    """Return resolved.yaml of a run that reads predictions below `taught`."""
    taught = {"path": str(folder / "taught"), "top_k": TOP_K}
    cache = f"training.data_cache={folder / 'cache'}"
    return distil(run, folder, name, cache, *overrides, teacher_logprobs=taught, **fields)


def teach(resolved: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "titanrun", "data", "teach", str(resolved)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def taught(run: Run, folder: Path) -> Path:
    """The folder of the models, with predictions of the teacher."""
    shutil.rmtree(folder / "taught", ignore_errors=True)
    done = teach(prepare(run, folder, "teaching"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"training: predictions written to {folder}/taught/training\n"
    return folder


@pytest.mark.parametrize("beta", [0.3, 0.0, 1.0])
def test_steps_are_those_of_the_formula_on_transformers(
    run: Run, taught: Path, beta: float
) -> None:
    """The run names no teacher: its predictions are in files, the likeliest 16 of each token."""
    resolved = prepare(run, taught, f"beta{beta}", beta=beta, teacher=None)
    assert main([str(resolved)]) == 0
    found = read_metrics(resolved.parent / "metrics.jsonl")
    student, teacher = (
        AutoModelForCausalLM.from_pretrained(taught / name, dtype=torch.float64)
        for name in ("student", "teacher")
    )
    tokenizer = AutoTokenizer.from_pretrained(taught / "student")

    def merge_rest(chosen: torch.Tensor) -> Categorical:
        return Categorical(probs=torch.cat((chosen, 1 - chosen.sum(-1, keepdim=True)), -1))

    def compute(question: str, reply: str) -> tuple[torch.Tensor, torch.Tensor]:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        text = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        ids = torch.tensor(text["input_ids"])
        counted = torch.tensor(text["assistant_masks"]).bool()[1:]
        logits = student(ids[None, :-1]).logits[0][counted]
        with torch.no_grad():
            wanted = teacher(ids[None, :-1]).logits[0][counted] / TEMPERATURE
        logprobs, likeliest = wanted.log_softmax(-1).topk(TOP_K)
        theirs = merge_rest(logprobs.half().double().exp())
        ours = merge_rest((logits / TEMPERATURE).softmax(-1).gather(-1, likeliest))
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
        # a log-probability whose rounding to fp16 is decided by the last bit of fp32
        assert line["loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert line["distillation/divergence"] == pytest.approx(divergence.item(), rel=1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found[-1]["loss"] < found[0]["loss"]


def test_all_tokens_are_what_a_teacher_in_memory_predicts(run: Run, folder: Path) -> None:
    everything = {"path": str(folder / "everything"), "top_k": 4096}
    cache = f"training.data_cache={folder / 'cache'}"
    held_out = (
        f"validation={{enable: true, freq: 4, dataset: {{name: chat, path: {folder}/chats.jsonl}}}}"
    )
    losses = []
    for name, fields in (("memory", {}), ("files", {"teacher_logprobs": everything})):
        resolved = distil(run, folder, name, cache, held_out, **fields)
        if fields:
            done = teach(resolved)
            assert done.returncode == 0, done.stderr
            assert "validation: predictions written to" in done.stdout
            assert "already in" in teach(resolved).stdout
        assert main([str(resolved)]) == 0
        metrics = read_metrics(resolved.parent / "metrics.jsonl")
        losses.append([[line["loss"] for line in metrics], metrics[-1]["validation/loss"]])
    # fp16 rounds a log-probability of -8 by 0.4%, that is a probability by as much
    assert losses[1][0] == pytest.approx(losses[0][0], rel=2e-3)
    assert losses[1][1] == pytest.approx(losses[0][1], rel=2e-3)


@pytest.mark.parametrize(
    ("fields", "overrides", "message"),
    [
        ({"temperature": 2.0}, [], "are of temperature 1.5"),
        ({}, ["training.dataset.packing=null"], "are of other sequences than the recipe's"),
        (
            {},
            ["loss.teacher_logprobs.top_k=17"],
            "are the likeliest 16 only, not 17",
        ),
        ({}, ["loss.teacher_logprobs.path=elsewhere"], "no predictions of a teacher in"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(
    run: Run,
    taught: Path,
    fields: dict[str, Any],
    overrides: list[str],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    resolved = prepare(run, taught, "refused", *overrides, **fields)
    assert main([str(resolved)]) != 0
    status = (resolved.parent / "status.json").read_text()
    assert message in status + caplog.text
    (resolved.parent / "status.json").unlink()


def flip(name: str) -> Callable[[Path], object]:
    """Return the change of one bit in the middle of a file."""

    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) * 2 // 3] ^= 1
        (folder / name).write_bytes(data)

    return change


def test_predictions_that_are_damaged_are_refused_by_name(
    run: Run, taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row B2 of the defect list, as a class: a file is not the one that was written by its size."""
    good, given = taught / "good", taught / "taught" / "training"
    shutil.copytree(given, good)
    changes: list[tuple[str, Callable[[Path], object]]] = [
        *((name, flip(name)) for name in ("ids.npy", "logprobs.npy", "ends.npy")),
        ("ids.npy", lambda folder: (folder / "ids.npy").write_bytes(b"")),
        ("logprobs.npy", lambda folder: (folder / "logprobs.npy").unlink()),
        ("ends.npy", lambda folder: (folder / "ends.npy").write_bytes(b"\x93NUMPY nonsense")),
        ("ids.npy", lambda folder: (folder / "ids.npy.digests").unlink()),
        *(
            ("teacher.json", lambda folder, text=text: (folder / "teacher.json").write_text(text))
            for text in ("[]", "{}", "nothing", "[" * 10_000)
        ),
    ]
    for number, (name, change) in enumerate(changes):
        shutil.rmtree(given)
        shutil.copytree(good, given)
        change(given)
        assert main([str(prepare(run, taught, f"damaged{number}"))]) == 3, (number, name)
        told = capsys.readouterr().err
        assert str(given / name) in told and "loss.teacher_logprobs.path" in told, told


def test_the_teacher_writes_into_a_folder_of_its_own(run: Run, taught: Path) -> None:
    done = teach(prepare(run, taught, "again", temperature=2.0))
    assert done.returncode == 3 and "another teacher or of other data" in done.stderr
    done = teach(prepare(run, taught, "nobody", teacher=None))
    assert done.returncode == 2 and "the recipe names no teacher" in done.stderr
    done = teach(distil(run, taught, "memory", f"training.data_cache={taught / 'cache'}"))
    assert done.returncode == 2 and "reads no predictions from files" in done.stderr
