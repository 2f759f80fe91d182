"""Training on preferences, against transformers and the paper's formula in float64, and what is
read as a pair."""

import json
import math
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.worker.test_resume import sending, train
from titanrun.components.checkpoints.checkpoint_reader import CheckpointReader
from titanrun.components.data.preference_dataset import build_preference_dataset
from titanrun.components.data.replies_config import PreferenceDatasetConfig
from titanrun.components.data.spec.chat_formats import Conversation
from titanrun.components.data.spec.preference_formats import parse_preference_pair
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import find_parent_checkpoint
from titanrun.worker.rank_main import main

BETA, LR = 0.5, 0.5
QUESTIONS = ("Say: a goat", "Say: the moon", "Who is there?", "Say: hand and fire")
REPLIES = (
    ("a goat", "an owl"),
    ("the moon", "moon"),
    ("The bear.", "Nobody is there."),
    ("hand and fire", "fire and hand"),
)
Run = Callable[..., Path]


def pairs() -> list[dict[str, Any]]:
    return [
        {"prompt": question, "chosen": good, "rejected": bad}
        for question, (good, bad) in zip(QUESTIONS, REPLIES, strict=True)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights with the tiny tokenizer, and pairs beside it."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    path = tmp_path_factory.mktemp("random")
    config = LlamaConfig(
        vocab_size=2048,
        max_position_embeddings=128,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=1,
        **sizes,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    for file in TinyTokenizerConfig().folder.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            copy(file, path)
    (path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs())))
    return path


def preference_run(
    run: Run,
    folder: Path,
    name: str,
    *overrides: str,
    lr: float = LR,
    loss: str = f"{{name: dpo, beta: {BETA}}}",
) -> Path:
    is_started = any(each.startswith("checkpoint.initial_load_path") for each in overrides)
    return run(
        name,
        f"model={{name: llama3, flavor: auto, hf_assets_path: {folder}, "
        f"attention: {{mask: block_causal}}}}",
        "tokenizer=auto",
        f"training.dataset={{name: preference, path: {folder}/pairs.jsonl, shuffle: false}}",
        "training.seq_len=64",
        "training.local_batch_size=2",
        "training.global_batch_size=4",
        "training.max_norm=null",
        "training.steps=4",
        f"optimizer={{name: sgd, lr: {lr}}}",
        "lr_scheduler={name: constant, warmup_steps: 0}",
        f"loss={loss}",
        f"checkpoint.initial_load_in_hf={not is_started}".lower(),
        *overrides,
    )


def test_steps_are_those_of_the_formula_on_transformers(run: Run, folder: Path) -> None:
    resolved = preference_run(run, folder, "dpo")
    assert main([str(resolved)]) == 0
    found = read_metrics(resolved.parent / "metrics.jsonl")

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def logprob(question: str, reply: str) -> torch.Tensor:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        text = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, counted = torch.tensor(text["input_ids"]), torch.tensor(text["assistant_masks"]).bool()
        said = model(ids[None, :-1]).logits[0].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        return said[counted[1:]].sum()

    def preferences() -> torch.Tensor:
        both = [
            (logprob(question, good), logprob(question, bad))
            for question, (good, bad) in zip(QUESTIONS, REPLIES, strict=True)
        ]
        return torch.stack([good - bad for good, bad in both])

    before = preferences().detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for line in found:
        margins = BETA * (preferences() - before)
        loss = -torch.nn.functional.logsigmoid(margins).mean()
        assert line["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
        assert line["dpo/margin"] == pytest.approx(
            float(margins.detach().mean()), rel=1e-4, abs=1e-5
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found[0]["loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert found[-1]["loss"] < found[0]["loss"]
    # each line says which of the two models it is about
    size = f"{sum(parameter.numel() for parameter in model.parameters()):,}"
    log = (resolved.parent / "logs" / "rank-0.log").read_text()
    assert log.count("trainable: ") == log.count(f"INFO trainable: all {size} parameters") == 1
    assert log.count(f"INFO reference: {size} parameters, frozen\n") == 1
    assert log.count(f"INFO loaded initial weights from {folder}\n") == 1
    assert log.count(f"INFO reference: loaded initial weights from {folder}\n") == 1


LORA = "converters=[{name: lora, rank: 4}]"


@pytest.mark.parametrize(
    "lora", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["adapters", "whole"]
)
def test_a_run_that_goes_on_compares_with_what_the_first_start_did(
    run: Run, folder: Path, lora: bool
) -> None:
    overrides, lr = ((LORA,), 0.3) if lora else ((), LR)
    uncut, stopped = (
        preference_run(run, folder, name, *overrides, lr=lr) for name in ("uncut", "stopped")
    )
    train(uncut)
    assert train(stopped, sending(signal.SIGTERM, at=2))[0].step == 2
    assert train(stopped)[0].step == 4
    losses = [
        [line["loss"] for line in read_metrics(path.parent / "metrics.jsonl")]
        for path in (uncut, stopped)
    ]
    assert losses[0] == losses[1]
    assert losses[0][0] == pytest.approx(math.log(2), rel=1e-6)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_run_that_goes_on_keeps_its_reference_if_the_run_before_has_trained_on(
    run: Run, folder: Path, is_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = preference_run(run, folder, "before", lr=1e-3, loss="orpo").parent
    assert main([str(before / "resolved.yaml")]) == 0
    after = preference_run(run, folder, "after", f"checkpoint.initial_load_path={before}")
    record = {"parent": find_parent_checkpoint(load_resolved(after))}
    (after.parent / "run.json").write_text(json.dumps(record))
    train(after, sending(signal.SIGTERM, at=2))
    first, newer = (before / "checkpoint" / f"step-{step}" for step in (4, 5))
    shutil.copytree(first, newer)
    if is_kept:
        assert main([str(after)]) == 0
        log = (after.parent / "logs" / "rank-0.log").read_text()
        assert log.count(f"INFO reference: loaded initial weights from {first}\n") == 1
    else:
        shutil.rmtree(first)
        assert main([str(after)]) == 4
        assert f"this run started from '{first}', which is no longer there" in caplog.text


def test_a_reference_in_bf16_changes_neither_losses_nor_checkpoints(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes read the reference's weights in bf16 however they are stored."""
    resolved = []
    for name in ("narrow", "wide"):
        resolved.append(
            preference_run(run, folder, name, "training.mixed_precision_param=bfloat16")
        )
        assert main([str(resolved[-1])]) == 0
        monkeypatch.setattr(
            "titanrun.worker.build.build_engine.cast_untrained_model", lambda *given: None
        )
    lines = [read_metrics(path.parent / "metrics.jsonl") for path in resolved]
    for name in ("loss", "grad_norm", "dpo/margin"):
        assert [line[name] for line in lines[0]] == [line[name] for line in lines[1]]
    assert lines[0][-1]["loss"] < lines[0][0]["loss"]
    saved = [
        CheckpointReader(path.parent / "checkpoint/step-4").load_tensor_metadata()
        for path in resolved
    ]
    assert saved[0] == saved[1]
    assert {held.dtype for held in saved[0].values()} == {torch.float32}


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_compiled_loss_records_what_all_passes_of_a_step_compute(run: Run, folder: Path) -> None:
    """Compiled, the values of the second pass were lost."""
    compiling = "compile={enable: true, backend: aot_eager, components: [loss]}"
    plain, compiled = (
        preference_run(run, folder, name, *more)
        for name, more in (("plain", ()), ("compiled", (compiling,)))
    )
    assert main([str(plain)]) == main([str(compiled)]) == 0
    lines = [read_metrics(path.parent / "metrics.jsonl") for path in (plain, compiled)]
    for name in ("loss", "dpo/margin", "dpo/accuracy", "dpo/chosen_reward"):
        expected = [line[name] for line in lines[0]]
        assert [line[name] for line in lines[1]] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert lines[0][-1]["dpo/margin"] > 0


def test_a_pair_is_two_replies_or_two_conversations() -> None:
    config = PreferenceDatasetConfig(
        path="x", prompt_column="asked", chosen_column="better", rejected_column="worse"
    )
    asked, good, bad = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
    )
    expected = (Conversation([asked, good]), Conversation([asked, bad]))
    assert (
        parse_preference_pair(config, {"asked": "a", "better": "b", "worse": "c"}, "line 1")
        == expected
    )
    assert (
        parse_preference_pair(
            config, {"asked": [asked], "better": [good], "worse": [bad]}, "line 1"
        )
        == expected
    )
    assert (
        parse_preference_pair(config, {"better": [asked, good], "worse": [asked, bad]}, "line 1")
        == expected
    )
    # the prompt beside whole conversations, as in HuggingFaceH4/ultrafeedback_binarized, is not
    # said twice
    assert (
        parse_preference_pair(
            config, {"asked": "a", "better": [asked, good], "worse": [asked, bad]}, "line 1"
        )
        == expected
    )


REPLY = {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "a", "chosen": "b"}, "has no 'rejected'; it has: prompt, chosen"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "has equal chosen and rejected replies"),
        (
            {"chosen": "b", "rejected": "c"},
            "has replies, but no 'prompt'; it has: chosen, rejected",
        ),
        (
            {"promt": "a", "chosen": [REPLY], "rejected": [{**REPLY, "content": "c"}]},
            "no 'prompt'; it has: promt",
        ),
        (
            {"prompt": "a", "chosen": [{"content": "b"}], "rejected": "c"},
            "message 1, has no 'role'; it has: content",
        ),
        (
            {"prompt": "a", "chosen": [{"role": "user", "content": "b"}], "rejected": "c"},
            "does not end with an assistant message",
        ),
        (
            {"prompt": "a", "chosen": [{"role": "bot", "content": "b"}], "rejected": "c"},
            "is from 'bot', which is not a role",
        ),
    ],
)
def test_a_record_that_is_no_pair_is_named(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemsFound, match=message):
        parse_preference_pair(PreferenceDatasetConfig(path="x"), record, "'x.jsonl' line 1")


def test_a_pair_without_its_columns_says_which_field_names_them() -> None:
    config = PreferenceDatasetConfig(path="x", prompt_column="promt", rejected_column="worse")
    with pytest.raises(ProblemsFound) as found:
        parse_preference_pair(config, {"prompt": "a", "chosen": "b", "rejected": "c"}, "line 1")
    assert (found.value.problems[0].path, found.value.problems[0].hint) == (
        ("rejected_column",),
        "set rejected_column to match the files",
    )
    with pytest.raises(ProblemsFound) as found:
        parse_preference_pair(config, {"prompt": "a", "chosen": "b", "worse": "c"}, "line 1")
    assert (found.value.problems[0].path, found.value.problems[0].hint) == (
        ("prompt_column",),
        "did you mean 'prompt'?",
    )


def test_pairs_longer_than_a_row_are_left_out_or_refused(folder: Path, tmp_path: Path) -> None:
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    long = {"prompt": "a", "chosen": "goat " * 40, "rejected": "b"}
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, [*pairs(), long])))
    config = PreferenceDatasetConfig(path=str(tmp_path / "pairs.jsonl"))
    rows = build_preference_dataset(
        config, tokenizer=tokenizer, sample_length=65, cache_folder=tmp_path / "cache"
    )
    assert len(rows) == 4
    refusing = PreferenceDatasetConfig(path=str(tmp_path / "pairs.jsonl"), too_long="refuse")
    with pytest.raises(ProblemsFound, match="1 pair of 5 longer than a sequence of 65 tokens"):
        build_preference_dataset(
            refusing, tokenizer=tokenizer, sample_length=65, cache_folder=tmp_path / "cache"
        )


def test_a_template_of_ones_own_puts_pairs_into_words(folder: Path, tmp_path: Path) -> None:
    words = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}!{{ m.content }}{% "
        "endgeneration %}{% endif %}{% endfor %}"
    )
    (tmp_path / "own.jinja").write_text(words)
    config = PreferenceDatasetConfig(path=str(folder / "pairs.jsonl"))
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig(chat_template=str(tmp_path / "own.jinja")))
    rows = build_preference_dataset(
        config, tokenizer=tokenizer, sample_length=65, cache_folder=tmp_path / "cache"
    )
    ids, counted, positions = rows[0]
    good, bad = (tokenizer.encode(f"!{text}", add_bos=False, add_eos=False) for text in REPLIES[0])
    assert ids[: len(good) + len(bad)].tolist() == good + bad
    # the first token of each follows nothing
    assert counted[: len(good) + len(bad)].tolist() == [0] + [1] * (len(good) - 1) + [0] + [1] * (
        len(bad) - 1
    )
    assert positions[len(good)] == 0


def test_adapters_at_an_address_are_no_reference_without_them(
    run: Run, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"local://{tmp_path / 'store'}"
    first = preference_run(
        run, folder, "first", "converters=[lora]", f"checkpoint.folder={store}", loss="orpo"
    )
    assert main([str(first)]) == 0
    started = ("converters=[lora]", f"checkpoint.initial_load_path={store}")
    second = preference_run(run, folder, "second", *started)
    assert main([str(second)]) == 2
    assert "error[conflict/adapters-are-merged-first]: the reference would be" in caplog.text
    # it does not compare with a reference
    other = preference_run(run, folder, "other", *started, loss="orpo")
    assert main([str(other)]) == 0
