"""`titanrun eval` of a Hugging Face folder, against transformers on the same weights."""

import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from titanrun.cli import eval as command
from titanrun.components.data.chat_config import TINY_CHAT
from titanrun.components.evaluation.config import LossTaskConfig
from titanrun.components.evaluation.spec.choice_questions import load_choice_questions
from titanrun.components.tokenizers.chat_template import apply_chat_template
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.config.problems import ProblemsFound
from titanrun.launch import worker_command
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands import evaluate as worker

TOKENIZER = build_tiny_tokenizer(TinyTokenizerConfig())
TINY_TOKENIZER = TinyTokenizerConfig().folder
Measure = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, large enough that its answers differ, with the tiny tokenizer."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = LlamaConfig(
        vocab_size=2048,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
        **sizes,
    )
    path = tmp_path_factory.mktemp("random")
    LlamaForCausalLM(config).save_pretrained(path)
    for file in TinyTokenizerConfig().folder.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            copy(file, path)
    return path


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        .eval()
        .requires_grad_(False)
    )


@pytest.fixture
def measure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Measure:
    """Runs the command, its worker in this process, and gives what it prints as JSON."""

    def run(*words: str, code: int = 0) -> list[dict[str, Any]]:
        def in_process(_: Any, **options: Any) -> Any:
            monkeypatch.setattr(sys, "stdin", io.StringIO(options["input"]))
            return type("Done", (), {"returncode": worker.main()})

        monkeypatch.setattr(worker_command.subprocess, "run", in_process)
        capsys.readouterr()
        assert command.run([str(folder), *words, "--json"]) == code
        return (
            [json.loads(line) for line in capsys.readouterr().out.splitlines()] if code == 0 else []
        )

    return run


def test_loss_is_that_of_transformers_whatever_the_batch(
    measure: Measure, theirs: Any, tmp_path: Path
) -> None:
    lines = (TINY_CHAT / "held_out.jsonl").read_text().splitlines()[:5]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    losses = []
    for line in lines:
        ids = TOKENIZER.encode(
            apply_chat_template(
                TINY_TOKENIZER, json.loads(line)["messages"], add_generation_prompt=False
            ),
            add_bos=False,
            add_eos=False,
        )
        logits = theirs(torch.tensor([ids[:-1]])).logits.log_softmax(-1)
        losses += (-logits[0, range(len(ids) - 1), ids[1:]]).tolist()
    for batch_size in (2, 16):
        task = (
            f"{{name: loss, dataset: {{name: chat, path: {tmp_path}/chats.jsonl, train_on: all}}, "
            f"seq_len: 80}}"
        )
        (found,) = measure(f"evaluation.tasks=[{task}]", f"evaluation.batch_size={batch_size}")
        assert (found["task"], found["tokens"], found["rows"]) == ("loss", len(losses), 5)
        assert found["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
        assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))


def test_replies_with_any_label_count(measure: Measure, tmp_path: Path) -> None:
    records = [
        {"prompt": f"what is {number}?", "completion": f"it is {number}", "label": number % 3 == 0}
        for number in range(7)
    ]
    (tmp_path / "replies.jsonl").write_text("\n".join(map(json.dumps, records)))
    kinds = ("chat, layout: prompt_completion", "labelled")
    tasks = [
        f"{{name: loss, dataset: {{name: {kind}, path: {tmp_path}/replies.jsonl}}, seq_len: 80}}"
        for kind in kinds
    ]
    plain, labelled = measure(f"evaluation.tasks=[{', '.join(tasks)}]")
    assert labelled["rows"] == 7
    assert {**labelled, "data": ""} == {**plain, "data": ""}


def test_a_limit_takes_the_first_rows_conversations_and_questions(
    measure: Measure, tmp_path: Path
) -> None:
    (tmp_path / "asked.jsonl").write_text(
        '{"question": "a", "choices": [" b", " c"], "answer": 0}\n' * 3
    )
    tiny = "dataset: {name: tiny_chat, split: held_out}"
    tasks = (
        f"[{{name: loss, {tiny}, seq_len: 64, limit: 3}}, "
        f"{{name: exact_match, {tiny}, limit: 3, max_new_tokens: 2}}"
    )
    found = measure(
        f"evaluation.tasks={tasks}, "
        f"{{name: multiple_choice, path: {tmp_path}/asked.jsonl, limit: 2}}]"
    )
    assert (found[0]["rows"], found[1]["replies"], found[2]["questions"]) == (3, 4, 2)


def test_replies_count_that_are_what_transformers_says(
    measure: Measure, theirs: Any, tmp_path: Path
) -> None:
    conversations = []
    for question in ("Say: a goat", "Who are you?", "Say: the moon and stars"):
        messages = [{"role": "user", "content": question}]
        for _ in range(2):
            ids = TOKENIZER.encode(
                apply_chat_template(TINY_TOKENIZER, messages, add_generation_prompt=True),
                add_bos=False,
                add_eos=False,
            )
            given = theirs.generate(
                torch.tensor([ids]),
                max_new_tokens=6,
                do_sample=False,
                eos_token_id=TOKENIZER.eos_id,
                pad_token_id=0,
            )
            messages.append(
                {
                    "role": "assistant",
                    "content": TOKENIZER.decode(given[0, len(ids) :].tolist()).strip(),
                }
            )
            messages.append({"role": "user", "content": "and?"})
        conversations.append({"messages": messages[:-1]})
    conversations[0]["messages"][3]["content"] += " indeed"
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, conversations)))
    task = (
        f"{{name: exact_match, dataset: {{name: chat, path: {tmp_path}/chats.jsonl}}, "
        f"max_new_tokens: 6}}"
    )
    (found,) = measure(f"evaluation.tasks=[{task}]", "evaluation.batch_size=4")
    assert (found["exact_match"], found["replies"]) == (5 / 6, 6)
    (last,) = measure(f"evaluation.tasks=[{task.replace('path:', 'train_on: last_reply, path:')}]")
    assert (last["exact_match"], last["replies"]) == (2 / 3, 3)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_replies_end_with_the_context_of_the_model(
    batch_size: int,
    measure: Measure,
    theirs: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    conversations, lengths = [], []
    for question in ("Say: a goat", "Say: the moon and stars", "Who?", "Say: all of it " * 3):
        ids = TOKENIZER.encode(
            apply_chat_template(
                TINY_TOKENIZER, [{"role": "user", "content": question}], add_generation_prompt=True
            ),
            add_bos=False,
            add_eos=False,
        )
        lengths.append(len(ids))
        conversations.append((question, ids))
    context = sorted(lengths)[2] + 3
    assert max(lengths) > context
    with (tmp_path / "chats.jsonl").open("w") as file:
        for question, ids in conversations:
            given = theirs.generate(
                torch.tensor([ids]),
                max_new_tokens=max(1, context - len(ids)),
                do_sample=False,
                eos_token_id=TOKENIZER.eos_id,
                pad_token_id=0,
            )
            reply = TOKENIZER.decode(given[0, len(ids) :].tolist()).strip()
            asked = {"role": "user", "content": question}
            chat = {"messages": [asked, {"role": "assistant", "content": reply}]}
            file.write(json.dumps(chat) + "\n")
    task = f"{{name: exact_match, dataset: {{name: chat, path: {tmp_path}/chats.jsonl}}}}"
    words = (f"evaluation.tasks=[{task}]", f"evaluation.batch_size={batch_size}")
    (found,) = measure(*words, f"model.max_seq_len={context}", f"training.seq_len={context}")
    assert (found["exact_match"], found["replies"], found["left_out"]) == (1.0, 3, 1)
    measure(*words, "model.max_seq_len=4", "training.seq_len=4", code=3)
    told = capsys.readouterr().err
    assert "no prompt leaves room for a reply: the model supports 4 tokens" in told


def test_the_likeliest_answer_is_the_one_that_transformers_finds(
    measure: Measure, theirs: Any, tmp_path: Path
) -> None:
    questions = []
    for number, stem in enumerate(("The goat", "A moon", "Bread and")):
        choices = [" knows", " is not in the house", " water"]
        likely = []
        for choice in choices:
            context, whole = (
                TOKENIZER.encode(text, add_bos=True, add_eos=False)
                for text in (stem, stem + choice)
            )
            logprobs = theirs(torch.tensor([whole])).logits.log_softmax(-1)[0]
            likely.append(
                sum(float(logprobs[at - 1, whole[at]]) for at in range(len(context), len(whole)))
            )
        best = likely.index(max(likely))
        questions.append(
            {"question": stem, "choices": choices, "answer": best if number else (best + 1) % 3}
        )
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (found,) = measure(
        f"evaluation.tasks=[{{name: multiple_choice, path: {tmp_path}/asked.jsonl}}]",
        "evaluation.batch_size=2",
    )
    assert (found["accuracy"], found["questions"]) == (pytest.approx(2 / 3), 3)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"question": 3}', "'question' is not a text"),
        ('{"question": " "}', "'question' is empty"),
        (
            '{"question": "a", "choices": ["b"], "answer": 0}',
            "'choices' is not a list of two texts or more",
        ),
        (
            '{"question": "a", "choices": ["b", "c"], "answer": 2}',
            "'answer' is not an index of its 2 choices",
        ),
        ("{", "is not JSON"),
        ("", "has no questions"),
    ],
)
def test_a_question_of_another_form_is_named_by_its_line(
    tmp_path: Path, line: str, what: str
) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text(line)
    with pytest.raises(ProblemsFound) as caught:
        load_choice_questions(file)
    (problem,) = caught.value.problems
    assert what in problem.message
    assert str(file) in problem.message
    assert problem.exit_code == 3


def test_what_cannot_be_measured_is_a_problem(measure: Measure) -> None:
    measure(code=2)  # a folder has no held-out data of its own
    with pytest.raises(ProblemsFound, match="dataset 'tiny' has no conversations"):
        measure("evaluation.tasks=[{name: exact_match, dataset: tiny}]")


def test_a_reward_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "version: 1\ntokenizer: tiny\nmodel: {name: llama3, flavor: debugmodel, head: scalar, "
        "attention: {mask: block_causal}}\n"
        "loss: reward\nvalidation: {enable: false}\n"
        "training: {dataset: {name: preference, path: pairs.jsonl}, seq_len: 64}\n"
    )
    run = resolve_recipe(str(tmp_path / "recipe.yaml"), [], environment={}).run
    with pytest.raises(ProblemsFound, match="a reward model gives scores"):
        worker.check_task(run, LossTaskConfig(), 0, 64)


def test_the_sets_of_further_are_measured_too() -> None:
    sets = {"tiny": "tiny_chat", "code": "{name: text, path: code.jsonl}"}
    further = ", ".join(f"{{id: {name}, dataset: {dataset}}}" for name, dataset in sets.items())
    given = [f"validation.further=[{further}]", "validation.enable=true"]
    run = resolve_recipe("llama3_debug", given, environment={}).run
    first, *others = worker.get_evaluation_tasks(run)
    assert (first.name, first.model_dump()["dataset"]["name"]) == ("loss", "tiny")
    assert [(one.name, one.model_dump()["dataset"]["name"]) for one in others] == [
        ("loss", "tiny_chat"),
        ("loss", "text"),
    ]
