"""`titanrun init --kind`: short recipes of fine-tuning that validate and train as they are."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from datasets import Dataset
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

from titanrun.cli import init, migrate
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference.finetuning_template import KINDS
from titanrun.recipe.resolving.resolve import resolve_recipe

CHAT = [{"role": "user", "content": "Say moon"}, {"role": "assistant", "content": "moon"}]
RECORDS: dict[str, dict[str, Any]] = {
    "text": {"text": "Say moon " * 8},
    "chat": {"messages": CHAT},
    "preference": {"prompt": "Say moon", "chosen": "moon", "rejected": "sun"},
    "labelled": {"prompt": "Say moon", "completion": "moon", "label": True},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a model and a file of each dataset."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=2048, max_position_embeddings=96, **sizes, **heads)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    for file in TinyTokenizerConfig().folder.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            copy(file, tmp_path / "model")
    for name, record in RECORDS.items():
        text = json.dumps(record)
        lines = [text.replace("Say", f"{number} Say") for number in range(200)]
        lines[1::2] = [line.replace("true", "false") for line in lines[1::2]]  # the labels
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(kind: str, file: str, *words: str) -> str:
    data = f"{KINDS[kind].dataset}.jsonl"
    assert init.run(["--kind", kind, "--model", "model", "--data", data, "-o", file, *words]) == 0
    return Path(file).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_at_most_40_lines_that_validate(
    kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for suffix in (".yaml", ".toml"):
        text = write(kind, f"mine{suffix}")
        assert len(text.splitlines()) <= 40
        found = resolve_recipe(f"mine{suffix}", environment={}, should_check_inputs=True)
        assert found.warnings == ()
        runs.append(found.run)
    assert runs[0] == runs[1]
    assert runs[0].training.seq_len == 96 and runs[0].checkpoint.initial_load_in_hf
    told = capsys.readouterr()
    assert told.out == "mine.yaml\nmine.toml\n"
    assert told.err.splitlines()[0] == "next: titanrun validate mine.yaml --level environment"


def test_the_command_that_migrate_names_for_a_file_of_trl_writes_a_recipe(place: Path) -> None:
    text = "model_name_or_path: ./model\ndataset_name: ./chat.jsonl\nlearning_rate: 1.0e-5\n"
    Path("trl.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ProblemsFound) as found:
        migrate.run(["trl.yaml"])
    command = shlex.split(str(found.value.problems[0].hint).partition(" writes a recipe")[0])
    assert command[:2] == ["titanrun", "init"] and init.run(command[2:]) == 0
    assert resolve_recipe("recipe.yaml", environment={}, should_check_inputs=True).warnings == ()


def test_a_model_without_template_gets_the_one_that_suits_its_tokens(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "model" / "chat_template.jinja").unlink()
    settings = json.loads((place / "model" / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (place / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    text = write("sft", "mine.yaml")
    assert "  chat_template: alpaca  # a guess" in text
    assert "  hf_assets_path: model  # weights and tokenizer\n" in text
    told = "model has no chat template; alpaca is a guess by its tokens: check "
    assert f"{told}tokenizer.chat_template\n" in capsys.readouterr().err
    found = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True)
    assert found.run.tokenizer.chat_template == "alpaca"


def test_records_that_the_template_rejects_are_counted_with_the_one_that_is_advised(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"messages": [{"role": "system", "content": "Be kind"}, *CHAT]}
    lines = [json.dumps(record).replace("Say", f"{number} Say") for number in range(40)]
    (place / "chat.jsonl").write_text("\n".join(lines) + "\n")
    write("sft", "mine.yaml")
    assert "set tokenizer.chat_template: alpaca, which renders them" in capsys.readouterr().err
    advised = ["tokenizer.chat_template=alpaca"]
    found = resolve_recipe("mine.yaml", advised, environment={}, should_check_inputs=True)
    assert found.warnings == () and found.run.validation.holdout == 2


FLAT = {
    "sft": {"Frage": "Say moon", "Antwort": "moon"},
    "dpo": RECORDS["preference"],
    "kto": RECORDS["labelled"],
}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("kind", FLAT)
def test_tables_are_read_by_their_columns(
    kind: str, suffix: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = FLAT[kind]
    records = [{**FLAT[kind], first: f"{number} Say moon"} for number in range(200)]
    for record in records[::2] if kind == "kto" else ():
        record["label"] = False
    table = Dataset.from_list(records)
    getattr(table, f"to_{suffix}")(f"data.{suffix}")
    words = ["--model", "model", "--data", f"data.{suffix}", "-o", "mine.yaml"]
    assert init.run(["--kind", kind, *words]) == 0
    # first records are read and rendered
    found = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True)
    assert found.warnings == ()
    noted = capsys.readouterr().err
    assert ("'Frage' is taken for the prompt" in noted) == (kind == "sft")


def test_what_it_says_is_left_out_when_quiet(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("sft", "mine.yaml", "--quiet")
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_trains(kind: str, place: Path) -> None:
    text = write(kind, "mine.yaml")
    (promised,) = re.findall(r"epochs: \d+  # (\d+) steps: an epoch has", text)
    assert 10 <= int(promised) <= 50
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "train", "mine.yaml", "dump_folder=run", "device=cpu"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    assert "held out 10 of 200 " in done.stderr
    assert f"finished: {promised} steps" in done.stderr


# records, context: batch, epochs, held-out records
SMALL = [(4, 96, 1, 10, 2), (30, 96, 2, 3, 2), (64, 2048, 4, 2, 3), (1_000, 96, 16, 1, 50)]


@pytest.mark.parametrize(("records", "context", "batch", "epochs", "held"), SMALL)
def test_batch_epochs_and_held_out_pairs_suit_the_number_of_records(
    records: int, context: int, batch: int, epochs: int, held: int, place: Path
) -> None:
    line = json.dumps(RECORDS["preference"])
    lines = [line.replace("Say", f"{number} Say") for number in range(records)]
    (place / "preference.jsonl").write_text("\n".join(lines))
    config = json.loads((place / "model" / "config.json").read_text())
    (place / "model" / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": context})
    )
    write("dpo", "mine.yaml")
    run = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True).run
    assert (run.training.global_batch_size, run.training.epochs) == (batch, epochs)
    assert run.validation.holdout == held


def test_many_records_are_not_counted(place: Path) -> None:
    line = json.dumps(RECORDS["preference"]) + "\n"
    (place / "preference.jsonl").write_text(line * 20_000)
    text = write("dpo", "mine.yaml")
    for setting in ("global_batch_size: 16 ", "epochs: 1\n", "holdout: 0.05 "):
        assert setting in text


@pytest.mark.parametrize(
    ("words", "data"),
    [
        (
            ["--kind", "sft", "--data", "my chats.jsonl"],
            "hub:Qwen/Qwen3-0.6B --data 'my chats.jsonl'",
        ),
        (["--kind", "dpo", "--model", "mine"], "mine --data pairs.jsonl"),
    ],
)
def test_the_example_has_what_was_given(words: list[str], data: str) -> None:
    with pytest.raises(ProblemsFound) as found:
        init.run(words)
    assert found.value.problems[0].hint == f"titanrun init {' '.join(words[:2])} --model {data}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kind", "sft"], "--kind sft needs --model"),
        (["--kind", "sft", "--model", "model"], "--kind sft needs --data"),
        (["--data", "chat.jsonl"], "--data needs --kind"),
        (["--model", "model"], "--model model needs --kind"),
        (["--model", "hub:Qwen/Qwen3-0.6B"], "needs --kind"),
        (["--kind", "qlora"], "unknown kind 'qlora'; expected pretrain, sft, lora"),
        (["--kind", "sft", "--model", "llama3:8B", "--data", "chat.jsonl"], "without weights"),
        (["--kind", "sft", "--model", "model", "--data", "no.jsonl"], "file not found: 'no.jsonl'"),
        (
            ["--kind", "sft", "--model", "hub:Q", "--data", "chat.jsonl"],
            "is not a model on the Hub",
        ),
        (["--kind", "sft", "--model", "none", "--data", "chat.jsonl"], "folder not found"),
        (["--kind", "sft", "--model", ".", "--data", "chat.jsonl"], "has no config.json"),
        (["--kind", "dpo", "--model", "gpt2", "--data", "preference.jsonl"], "of type 'gpt2'"),
        (
            ["--kind", "sft", "--model", "model", "--data", "chat.jsonl", "--full"],
            "--full excludes --kind",
        ),
    ],
)
def test_it_says_what_is_wrong_and_writes_nothing(
    words: list[str], message: str, place: Path
) -> None:
    GPT2Config(n_embd=32, n_layer=1, n_head=2).save_pretrained(place / "gpt2")
    with pytest.raises(ProblemsFound, match=message) as found:
        init.run([*words, "-o", "mine.yaml"])
    assert all(problem.hint for problem in found.value.problems)
    assert not Path("mine.yaml").exists()


@pytest.mark.parametrize(
    ("model", "data", "message", "hint"),
    [
        ("modl", "chat.jsonl", "folder not found: 'modl'", "did you mean 'model'?"),
        ("some", "chat.jsonl", "folder not found: 'some'", "write hub:OWNER/NAME instead"),
        ("models", "chat.jsonl", "'models' has no config.json", "did you mean 'models/tiny'?"),
        ("me/tiny", "chat.jsonl", "folder not found: 'me/tiny'", "write hub:me/tiny instead"),
        (
            "runs/tuned",
            "chat.jsonl",
            "'runs/tuned' is a run of titanrun",
            "titanrun checkpoint export runs/tuned tuned-hf --format hf --merge, then titanrun "
            "init --kind sft --model tuned-hf --data chat.jsonl -o mine.yaml",
        ),
        (
            "runs/whole",
            "chat.jsonl",
            "'runs/whole' is a run of titanrun",
            "titanrun checkpoint export runs/whole whole-hf --format hf, then titanrun init --kind "
            "sft --model whole-hf --data chat.jsonl -o mine.yaml",
        ),
        ("runs/exported", "chat.jsonl", "is a run of titanrun", "did you mean 'runs/exported/hf'?"),
        ("model", "chats.jsonl", "file not found: 'chats.jsonl'", "did you mean 'chat.jsonl'?"),
        ("model", "me/chats", "file not found: 'me/chats'", "is written as hub:me/chats"),
    ],
)
def test_a_wrong_path_is_told_the_right_one(
    model: str, data: str, message: str, hint: str, place: Path
) -> None:
    for folder in ("models/tiny", "runs/exported/hf"):
        (place / folder).mkdir(parents=True)
        (place / folder / "config.json").write_text("{}")
    for name, converters in (("tuned", "[lora]"), ("whole", "[]"), ("exported", "[]")):
        (place / "runs" / name).mkdir(parents=True, exist_ok=True)
        (place / "runs" / name / "resolved.yaml").write_text(f"converters: {converters}\n")
    with pytest.raises(ProblemsFound) as found:
        init.run(["--kind", "sft", "--model", model, "--data", data, "-o", "mine.yaml"])
    (problem,) = found.value.problems
    assert message in problem.message and problem.hint is not None
    assert hint in problem.hint


def get_init_problem(*words: str) -> tuple[str, str]:
    """Message and hint of the only problem."""
    with pytest.raises(ProblemsFound) as found:
        init.run(list(words))
    (problem,) = found.value.problems
    return problem.message, str(problem.hint)


@pytest.mark.parametrize("option", [["--data"], []])
def test_several_files_that_a_pattern_names_alone_are_read_by_it(
    place: Path, option: list[str]
) -> None:
    for name in ("part-0", "part-1", "part-2"):
        copy("chat.jsonl", f"{name}.jsonl")
    words = ["--kind", "sft", "--model", "model", "--data", "part-0.jsonl", *option]
    assert init.run([*words, "part-1.jsonl", "-o", "mine.yaml"]) == 0
    run = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True).run
    assert run.training.dataset.model_dump()["path"] == "part-[01].jsonl"


def test_files_of_several_layouts_become_a_mixture_that_reads_each_once(place: Path) -> None:
    records = [{"instruction": f"Say {number}", "output": "yes"} for number in range(400)]
    Path("alpaca.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    words = ["--kind", "lora", "--model", "model", "--data", "chat.jsonl", "alpaca.jsonl"]
    assert init.run([*words, "-o", "mine.yaml"]) == 0
    run = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True).run
    dataset = run.training.dataset.model_dump()
    sources = dataset["sources"]
    found = [(one["dataset"]["path"], one["dataset"]["layout"]) for one in sources]
    assert found == [("chat.jsonl", "messages"), ("alpaca.jsonl", "alpaca")]
    assert {one["dataset"]["packing"] for one in sources} == {"best_fit"}
    assert run.validation.holdout == 0.05


def test_a_folder_of_several_layouts_is_a_mixture_of_its_files(place: Path) -> None:
    records = [{"instruction": f"Say {number}", "output": "yes"} for number in range(400)]
    Path("data").mkdir()
    Path("data/alpaca.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    copy("chat.jsonl", "data/chat.jsonl")
    words = ["--kind", "lora", "--model", "model", "--data"]
    assert init.run([*words, "data", "-o", "mine.yaml"]) == 0
    dataset = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True).run.training
    sources = dataset.dataset.model_dump()["sources"]
    assert [one["dataset"]["layout"] for one in sources] == ["alpaca", "messages"]
    Path("data/alpaca.jsonl").unlink()
    copy("chat.jsonl", "data/more.jsonl")
    assert init.run([*words, "data", "-o", "one.yaml"]) == 0
    run = resolve_recipe("one.yaml", environment={}, should_check_inputs=True).run
    assert run.training.dataset.model_dump()["path"] == "data"


def test_a_weight_file_is_told_its_folder(place: Path) -> None:
    file = "model/model.safetensors"
    message, hint = get_init_problem("--kind", "sft", "--model", file, "--data", "chat.jsonl")
    assert message == f"'{file}' is a file, not a folder"
    assert hint == "name the folder that holds it: model"


def test_replies_that_are_compared_come_from_one_dataset(place: Path) -> None:
    copy("preference.jsonl", "data.jsonl")
    files = ["preference.jsonl", "data.jsonl", "--data", "chat.jsonl"]
    message, hint = get_init_problem("--kind", "dpo", "--model", "model", "--data", *files)
    assert message == "--kind dpo takes one dataset, not 3"
    assert hint.startswith("replies that are compared come from one dataset, not from a mixture")


def test_files_between_commas_are_told_to_be_separated(place: Path) -> None:
    data = "chat.jsonl,preference.jsonl"
    _, hint = get_init_problem("--kind", "sft", "--model", "model", "--data", data)
    assert hint == "separate them by spaces: --data chat.jsonl preference.jsonl"


def test_without_a_kind_the_model_is_told_first_and_then_the_whole_command(place: Path) -> None:
    (place / "adapters").mkdir()
    settings = {"base_model_name_or_path": "model", "r": 8, "peft_type": "LORA"}
    (place / "adapters" / "adapter_config.json").write_text(json.dumps(settings))
    message, _ = get_init_problem("--model", "adapters", "--data", "chat.jsonl")
    assert message.startswith("'adapters' holds adapters without the model")
    told = get_init_problem("--model", "model", "--data", "preference.jsonl")
    command = "titanrun init --kind dpo --model model --data preference.jsonl"
    assert told == ("--data needs --kind", command)
    named = get_init_problem("--model", "model", "--data", "preference.jsonl", "-o", "my.yaml")
    assert named[1] == f"{command} -o my.yaml"
    assert init.run(shlex.split(command)[2:]) == 0


def test_offline_a_name_of_the_hub_is_told_both_ways(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "HF_HUB_OFFLINE" not in get_init_problem("--model", "Qwen/Qwen3-0.6B")[1]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get_init_problem("--model", "Qwen/Qwen3-0.6B")[1] == (
        "unset HF_HUB_OFFLINE and write --model hub:Qwen/Qwen3-0.6B; without a network, run "
        "titanrun download Qwen/Qwen3-0.6B -o Qwen3-0.6B on a machine that has one, copy the "
        "folder here, and name it instead of the model"
    )


def test_messages_that_are_stored_as_text_are_told(place: Path) -> None:
    Dataset.from_dict({"messages": [json.dumps(CHAT)]}).to_parquet("text.parquet")
    with pytest.raises(ProblemsFound, match="has text in 'messages', not a list of messages"):
        init.run(["--kind", "sft", "--model", "model", "--data", "text.parquet"])


def test_a_template_that_rejects_the_data_is_told_with_the_record(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alternate = "{{ raise_exception('roles must alternate') }}"
    (place / "model" / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        f"{alternate}{{% endif %}}{{{{ m.content }}}}<|end_of_text|>{{% endfor %}}"
    )
    records = [CHAT, [*CHAT, CHAT[1]]]
    lines = [json.dumps({"messages": messages}) for messages in records]
    (place / "chat.jsonl").write_text("\n".join(lines))
    write("sft", "mine.yaml")
    told = capsys.readouterr().err
    assert "warning[data]: the chat template of 'model' rejects the messages" in told
    assert (
        "roles must alternate; record 2 of 'chat.jsonl' has messages from: user, assistant, "
        "assistant" in told
    )


def test_texts_are_named_counted_and_held_out_if_there_are_enough(place: Path) -> None:
    Path("book.txt").write_text("Say moon " * 2_000, encoding="utf-8")
    words = ["--kind", "pretrain", "--model", "model", "-o"]
    assert init.run([*words, "one.yaml", "--data", "book.txt"]) == 0
    one = resolve_recipe("one.yaml", environment={}, should_check_inputs=True)
    assert one.warnings == () and one.run.validation.holdout is None
    assert not one.run.validation.enable and one.run.training.dataset.packing == "documents"
    record = {"id": "a", "content": "Say moon " * 8}
    Dataset.from_list([record] * 40).to_parquet("texts.parquet")
    assert init.run([*words, "two.yaml", "--data", "texts.parquet"]) == 0
    two = resolve_recipe("two.yaml", environment={}, should_check_inputs=True)
    assert two.warnings == () and two.run.training.dataset.column == "content"
    assert two.run.validation.holdout == 2
    with pytest.raises(ProblemsFound) as found:
        init.run(["--model", "model", "--data", "book.txt"])
    assert str(found.value.problems[0].hint).startswith("titanrun init --kind pretrain")


@pytest.mark.parametrize("kind", ["sft", "dpo", "kto"])
def test_three_records_are_all_trained_on(kind: str, place: Path) -> None:
    file = Path(f"{KINDS[kind].dataset}.jsonl")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    text = write(kind, "mine.yaml")
    assert "holdout" not in text
    run = resolve_recipe("mine.yaml", environment={}, should_check_inputs=True).run
    assert run.training.epochs == 10
    assert run.training.global_batch_size == (2 if kind == "kto" else 1)
