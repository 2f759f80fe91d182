"""Tasks of the LM Evaluation Harness, on files of this machine: the same model, the same
likelihoods as our own task has."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from tests.worker.commands.test_evaluate import TOKENIZER, Measure, folder, measure, theirs
from titanrun.worker.commands.evaluate import LoadedEvalModel

__all__ = ["folder", "measure", "theirs"]
pytestmark = pytest.mark.slow
CHOICES = """
task: ours
dataset_path: json
dataset_kwargs: {data_files: {validation: %s}}
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_bytes, aggregation: mean, higher_is_better: true}
"""
TEXTS = """
task: texts
dataset_path: json
dataset_kwargs: {data_files: {validation: %s}}
validation_split: validation
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: byte_perplexity, aggregation: weighted_perplexity, higher_is_better: false}]
"""
SAID = """
task: said
dataset_path: json
dataset_kwargs: {data_files: {validation: %s}}
validation_split: validation
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{said}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 4, do_sample: %s}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Questions of which a model of random weights gets some right, and a folder beside them."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lines = []
    for number, stem in enumerate(
        ("The goat", "A moon", "Bread and", "Who", "Fire in the", "Say: a")
    ):
        choices = [" knows", " is not in the house", " water", " hand"]
        lines.append(
            {
                "question": stem,
                "choices": choices,
                "answer": (3, 0, 3, 1, 3, 2)[number],
                "said": "nothing",
            }
        )
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    for name, text in (
        ("ours", CHOICES % file),
        ("texts", TEXTS % file),
        ("said", SAID % (file, "false")),
        ("drawn", SAID % (file, "true")),
    ):
        (tmp_path / "tasks" / f"{name}.yaml").write_text(
            text.replace("task: said", f"task: {name}"), encoding="utf-8"
        )
    return file


def harness(measure: Measure, questions: Path, task: str, *more: str) -> dict[str, Any]:
    fields = ", ".join((f"name: lm_eval, task: {task}, folder: {questions.parent}/tasks", *more))
    (found,) = measure(f"evaluation.tasks=[{{{fields}}}]", "evaluation.batch_size=3")
    return found


def test_choices_are_taken_as_by_our_own_task(
    measure: Measure, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    scored = LoadedEvalModel.score_continuations

    def kept(self: LoadedEvalModel, pairs: Any) -> Any:
        found = scored(self, pairs)
        seen.update(
            {
                (tuple(before), tuple(rest)): score.logprob
                for (before, rest), score in zip(pairs, found, strict=True)
            }
        )
        return found

    monkeypatch.setattr(LoadedEvalModel, "score_continuations", kept)
    found, theirs = harness(measure, questions, "ours"), dict(seen)
    seen.clear()
    (own,) = measure(
        f"evaluation.tasks=[{{name: multiple_choice, path: {questions}}}]",
        "evaluation.batch_size=3",
    )
    assert (found["task"], found["data"], found["questions"]) == ("lm_eval", "ours", 6)
    assert found["acc"] == pytest.approx(own["accuracy"])
    assert found["acc_bytes"] == pytest.approx(own["accuracy_per_byte"])
    assert 0 < found["acc_stderr"] < 1
    assert len(seen) == 24
    assert theirs == pytest.approx(seen, rel=1e-6)


def test_likelihoods_are_those_of_transformers(
    measure: Measure, questions: Path, theirs: Any
) -> None:
    total, size = 0.0, 0
    for line in questions.read_text(encoding="utf-8").splitlines():
        text = json.loads(line)["question"]
        ids = TOKENIZER.encode(text, add_bos=True, add_eos=False)
        logprobs = theirs(torch.tensor([ids])).logits.log_softmax(-1)[0]
        total += sum(float(logprobs[at - 1, ids[at]]) for at in range(1, len(ids)))
        size += len(text.encode())
    assert harness(measure, questions, "texts")["byte_perplexity"] == pytest.approx(
        math.exp(-total / size), rel=1e-4
    )


def test_answers_are_the_likeliest_and_drawn_ones_are_refused(
    measure: Measure, questions: Path, theirs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    for line in lines[:4]:
        ids = TOKENIZER.encode(line["question"], add_bos=True, add_eos=False)
        said = theirs.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False)[
            0, len(ids) :
        ].tolist()
        line["said"] = TOKENIZER.decode(
            said[: said.index(TOKENIZER.eos_id)] if TOKENIZER.eos_id in said else said
        ).partition("\n")[0]
    questions.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    assert harness(measure, questions, "said")["exact_match"] == pytest.approx(4 / 6)
    assert "this task samples its answers at random" in refused(
        measure, capsys, f"task: drawn, folder: {questions.parent}/tasks"
    )


def test_a_limit_counts_questions(measure: Measure, questions: Path) -> None:
    assert harness(measure, questions, "ours", "limit: 2")["questions"] == 2


def test_examples_stand_before_the_question(
    measure: Measure, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest: list[int] = []
    scored = LoadedEvalModel.score_continuations
    monkeypatch.setattr(
        LoadedEvalModel,
        "score_continuations",
        lambda self, pairs: longest.append(len(pairs[0][0])) or scored(self, pairs),
    )
    harness(measure, questions, "ours", "num_fewshot: 0", "limit: 1")
    alone = max(longest)
    harness(measure, questions, "ours", "num_fewshot: 2", "limit: 1")
    assert max(longest) > 2 * alone


def refused(
    measure: Measure, capsys: pytest.CaptureFixture[str], fields: str, code: int = 2
) -> str:
    """What is said of a task that cannot be measured."""
    measure(f"evaluation.tasks=[{{name: lm_eval, {fields}}}]", code=code)
    return capsys.readouterr().err


def test_a_task_that_is_not_there_is_a_problem(
    measure: Measure, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(measure, capsys, "task: hellaswagg")
    assert "the harness has no task 'hellaswagg'" in said
    assert "did you mean 'hellaswag'?" in said
    (questions.parent / "tasks" / "lost.yaml").write_text(
        (TEXTS % "nowhere.jsonl").replace("task: texts", "task: lost"), encoding="utf-8"
    )
    assert "the harness cannot read the data of 'lost'" in refused(
        measure, capsys, f"task: lost, folder: {questions.parent}/tasks", code=3
    )
    assert "no folder 'nowhere'" in refused(measure, capsys, "task: ours, folder: nowhere")


def test_without_the_extra_there_is_the_line_that_installs_it(
    measure: Measure,
    questions: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("lm_eval", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "titanrun.components.evaluation.lm_eval_model", raising=False)
    said = refused(measure, capsys, f"task: ours, folder: {questions.parent}/tasks")
    assert "the task lm_eval needs a package that is not installed: lm_eval" in said
    assert 'pip install "titanrun[lm-eval]"' in said
