"""`titanrun generate`, from a checkpoint and from a Hugging Face folder, against transformers on
the same weights."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from titanrun.cli import generate as command
from titanrun.components.tokenizers.chat_template import apply_chat_template
from titanrun.config.problems import ProblemsFound
from titanrun.launch import worker_command
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands import checkpoint as checkpoint_worker
from titanrun.worker.commands import generate as worker
from titanrun.worker.rank_main import main
from titanrun.worker.serving.chat_model import load_chat_model

RECIPE = """
version: 1
name: talks
device: cpu
model: {name: llama3, flavor: debugmodel, dim: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2,
        max_seq_len: 96}
training: {dataset: tiny, local_batch_size: 4, seq_len: 64, steps: 8,
           mixed_precision_param: float32}
optimizer: {lr: 1.0e-2}
checkpoint: {enable: true}
"""
TEMPLATE = (
    "{%- for message in messages %}\n    {{- '<' + message['role'] + '>' + message.content | "
    "trim + '\\n' }}\n{%- endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
Say = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talks")
    (folder / "talks.yaml").write_text(RECIPE, encoding="utf-8")
    resolved = folder / "run" / "resolved.yaml"
    resolved.parent.mkdir()
    resolved.write_text(
        resolve_recipe(str(folder / "talks.yaml"), environment={}).text, encoding="utf-8"
    )
    assert main([str(resolved)]) == 0
    return resolved.parent


@pytest.fixture
def exported(trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The run as a folder that transformers opens, with a chat template."""
    (checkpoint,) = (trained / "checkpoint").glob("step-*")
    job = {
        "do": "export",
        "checkpoint": str(checkpoint),
        "out": str(tmp_path / "hf"),
        "format": "hf",
        "merge": False,
        "dtype": None,
        "shard_bytes": 10**9,
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job)))
    assert checkpoint_worker.main() == 0
    (tmp_path / "hf" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return tmp_path / "hf"


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs the command, its worker in this process, and gives what it prints as JSON."""

    def run(folder: Path, *words: str, code: int = 0) -> list[dict[str, Any]]:
        def in_process(_: Any, **options: Any) -> Any:
            monkeypatch.setattr(sys, "stdin", io.StringIO(options["input"]))
            return type("Done", (), {"returncode": worker.main()})

        monkeypatch.setattr(worker_command.subprocess, "run", in_process)
        capsys.readouterr()
        assert command.run([str(folder), *words, "--json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_greedy_text_is_that_of_transformers_from_a_run_and_from_its_export(
    trained: Path, exported: Path, say: Say
) -> None:
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(exported),
        AutoTokenizer.from_pretrained(exported),
    )
    prompts = ["Once there was", "the", "A king and his daughter went"]
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    found = say(trained, *words, "--max-new-tokens", "12", "--temperature", "0", "--ignore-eos")
    assert found == say(
        exported, *words, "--max-new-tokens", "12", "--temperature", "0", "--ignore-eos"
    )
    for prompt, answer in zip(prompts, found, strict=True):
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
        )[0, ids.size(1) :]
        assert answer["token_ids"] == expected.tolist()
        assert answer["text"] == tokenizer.decode(expected, skip_special_tokens=True)


def test_bos_stop_and_the_end_token_do_what_they_say(exported: Path, say: Say) -> None:
    asked = ["--prompt", "Once there was", "--max-new-tokens", "12", "--temperature", "0"]
    (plain,) = say(exported, *asked, "--ignore-eos")
    # an empty prompt is refused without it
    (begun,) = say(exported, "--prompt", "", "--max-new-tokens", "3", "--ignore-eos", "--add-bos")
    assert len(begun["token_ids"]) == 3
    stop = plain["text"][3:5]
    (stopped,) = say(exported, *asked, "--ignore-eos", "--stop", stop)
    assert stopped["text"] == plain["text"].partition(stop)[0]
    (exported / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [plain["token_ids"][1]]}), encoding="utf-8"
    )
    (ended,) = say(exported, *asked)
    first = plain["token_ids"].index(plain["token_ids"][1])
    assert ended["token_ids"] == plain["token_ids"][: first + 1]


def test_draws_follow_the_seed(trained: Path, say: Say) -> None:
    asked = ["--prompt", "Once", "--max-new-tokens", "12", "--top-k", "50", "--top-p", "0.95"]
    assert say(trained, *asked, "--seed", "1") == say(trained, *asked, "--seed", "1")
    assert say(trained, *asked, "--seed", "1") != say(trained, *asked, "--seed", "2")


def test_a_chat_is_rendered_as_transformers_does(exported: Path, say: Say) -> None:
    messages = [
        {"role": "user", "content": " Hello there "},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(exported)
    for opened in (True, False):
        theirs = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=opened
        )
        assert apply_chat_template(exported, messages, add_generation_prompt=opened) == theirs
    asked = ["--max-new-tokens", "8", "--temperature", "0"]
    assert say(exported, "--prompt", "Hello", "--chat", *asked) == say(
        exported, "--prompt", "<user>Hello\n<assistant>", *asked
    )


def test_a_template_reaches_nothing_beyond_its_text(exported: Path) -> None:
    (exported / "chat_template.jinja").write_text(
        "{{ messages.__class__.__mro__[1].__subclasses__() }}", encoding="utf-8"
    )
    with pytest.raises(ProblemsFound, match="rejects the messages"):
        apply_chat_template(exported, [], add_generation_prompt=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "x", "--max-new-tokens", "0"], "--max-new-tokens must be 1 or more"),
        (["--prompt", "x", "--temperature", "-1"], "--temperature must be 0 or more"),
        (["--prompt", "x", "--temperature", "nan"], "--temperature must be 0 or more"),
        (["--prompt", "x", "--top-p", "0"], "--top-p must be above 0"),
        (["--prompt", "x", "--top-k", "0"], "--top-k must be 1 or more"),
        (["--prompt", "x", "--stop", ""], "--stop must be a non-empty text"),
    ],
)
def test_numbers_that_choose_no_token_are_refused(
    trained: Path, words: list[str], message: str
) -> None:
    with pytest.raises(ProblemsFound, match=message):
        command.run([str(trained), *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", ""], "the prompt '' has no tokens to continue"),
        (["--prompt", "x", "--max-new-tokens", "96"], "the model supports at most 96"),
        (["--prompt", "x " * 96], "tokens, which leaves no room for new ones"),
    ],
)
def test_what_the_model_cannot_continue_is_a_problem(
    trained: Path, say: Say, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    say(trained, *words, code=2)
    assert message in written.getvalue()


def test_a_tokenizer_without_a_chat_template_is_a_problem(
    exported: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    (exported / "chat_template.jinja").unlink()
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    say(exported, "--prompt", "x", "--chat", code=3)
    assert "has no chat template" in written.getvalue()


def test_a_conversation_with_a_folder_without_template_names_the_folder(exported: Path) -> None:
    (exported / "chat_template.jinja").unlink()
    model = load_chat_model(command.get_weight_source(str(exported)), name="mine")
    with pytest.raises(ProblemsFound, match="mine has no chat template") as caught:
        model.encode_chat([{"role": "user", "content": "x"}])
    hint = caught.value.problems[0].hint
    assert hint is not None and f"put chat_template.jinja into {exported}, or " in hint
    assert hint.endswith(f"titanrun generate {exported} --prompt TEXT")


def test_a_model_of_no_family_and_a_folder_of_nothing_are_problems(
    exported: Path, tmp_path: Path
) -> None:
    (exported / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    with pytest.raises(ProblemsFound, match="no model family reads models of type 'mamba'"):
        command.run([str(exported), "--prompt", "x"])
    (exported / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ProblemsFound, match="does not state its model_type"):
        command.run([str(exported), "--prompt", "x"])
    with pytest.raises(ProblemsFound, match="neither a checkpoint nor a run directory"):
        command.run([str(tmp_path), "--prompt", "x"])


def test_a_folder_of_stages_names_the_runs_in_it(tmp_path: Path) -> None:
    (tmp_path / "stages.yaml").write_text("stages: []\n")
    for stage, step in (
        ("sft", "checkpoint/step-2"),
        ("pretrain", "checkpoint/step-1"),
        ("dpo", "logs"),
    ):
        (tmp_path / stage / step).mkdir(parents=True)
    with pytest.raises(ProblemsFound) as found:
        command.run([str(tmp_path), "--prompt", "x"])
    assert (
        found.value.problems[0].hint
        == f"it holds one run per stage: name {tmp_path}/pretrain or {tmp_path}/sft"
    )
