"""`titanrun serve` and `chat` as their users start them; transformers judges the replies."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
import yaml
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from titanrun.cli.generate import get_weight_source
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.worker.serving.chat_model import load_chat_model, load_chat_model_and_base

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "titanrun"]
QUESTIONS = ("Once upon a time", "And then?")


@pytest.fixture(scope="module")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of transformers with the shipped tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "random"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TinyTokenizerConfig().folder / name, folder)
    return folder


@pytest.fixture(scope="module")
def replies(random_llama: Path) -> list[str]:
    """The greedy replies of transformers to two messages of a conversation."""
    tokenizer: Any = AutoTokenizer.from_pretrained(random_llama)
    model: Any = LlamaForCausalLM.from_pretrained(random_llama)
    messages, found = [], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        made = model.generate(**ids, max_new_tokens=16, do_sample=False)
        text = tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        found.append(text)
        messages.append({"role": "assistant", "content": text})
    return found


def test_the_server_replies_as_transformers(random_llama: Path, replies: list[str]) -> None:
    with serve_run(random_llama) as address:
        text = ask(address, "random")
    assert text and text == replies[0]


def test_a_conversation_in_lines_is_that_of_transformers(
    random_llama: Path, replies: list[str]
) -> None:
    """Two models get the same messages, and each sees its own replies."""
    options = ["--temperature", "0", "--max-new-tokens", "16"]
    done = subprocess.run(
        [*COMMAND, "chat", str(random_llama), str(random_llama), *options],
        input="".join(f"{question}\n" for question in QUESTIONS),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line)["reply"] for line in done.stdout.splitlines()]
    assert found == [replies[0], replies[0], replies[1], replies[1]]


@pytest.fixture(scope="module")
def adapted(random_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained adapters of the random llama, with rates that change its replies."""
    place = tmp_path_factory.mktemp("adapted")
    recipe = {
        "version": 1,
        "kind": "sft",
        "device": "cpu",
        "model": {
            "name": "llama3",
            "flavor": "auto",
            "hf_assets_path": str(random_llama),
            "attention": {"mask": "block_causal"},
        },
        "converters": [{"name": "lora", "rank": 8, "alpha": 64}],
        "optimizer": {"lr": 0.05},
        "training": {
            "dataset": {"name": "tiny_chat", "packing": "best_fit"},
            "seq_len": 64,
            "steps": 3,
            "local_batch_size": 4,
            "mixed_precision_param": "float32",
        },
        "checkpoint": {"enable": True, "adapters_only": True},
        "dump_folder": "runs/adapted",
    }
    (place / "mine.yaml").write_text(json.dumps(recipe))
    subprocess.run([*COMMAND, "train", "mine.yaml"], cwd=place, check=True, capture_output=True)
    return place / "runs" / "adapted"


def converse(*words: str) -> "subprocess.CompletedProcess[str]":
    """Ask the questions, for greedy replies."""
    return subprocess.run(
        [*COMMAND, "chat", *words, "--temperature", "0", "--max-new-tokens", "16"],
        input="".join(f"{question}\n" for question in QUESTIONS),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_base_of_a_run_replies_as_the_model_it_started_from(
    adapted: Path, replies: list[str]
) -> None:
    done = converse(str(adapted), "--base")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["model"] for one in found] == ["adapted", "adapted-base"] * 2
    assert [one["reply"] for one in found[1::2]] == replies
    alone = [json.loads(line)["reply"] for line in converse(str(adapted)).stdout.splitlines()]
    assert [one["reply"] for one in found[::2]] == alone
    assert alone != replies


@pytest.mark.parametrize("converters", ["[{name: lora, rank: 8, magnitude: true}]", "[]"])
def test_weights_are_in_memory_once_if_only_adapters_were_trained(
    converters: str, adapted: Path, random_llama: Path
) -> None:
    place = adapted.parents[1]
    words = [f"converters={converters}", f"checkpoint.adapters_only={converters != '[]'}".lower()]
    run = place / "runs" / ("dora" if converters != "[]" else "full")
    command = [*COMMAND, "train", "mine.yaml", f"dump_folder={run}", *words]
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    source = get_weight_source(str(run))
    trained, base = load_chat_model_and_base(source, names=["run", "base"])
    assert (trained.model is base.model) == (converters != "[]")
    adapters = " + lora" if converters != "[]" else ""
    assert [model.about for model in (trained, base)] == [
        f"step-3, llama3{adapters}",
        f"the start of the run, llama3{adapters}",
    ]
    apart = (
        load_chat_model(source, name="run"),
        load_chat_model(get_weight_source(str(random_llama)), name="start"),
    )
    ids = torch.tensor([trained.encode_chat([{"role": "user", "content": QUESTIONS[0]}])])
    seen = []
    for found, expected in zip((trained, base), apart, strict=True):
        with torch.no_grad(), found.open_weights(found.model):
            seen.append(found.model(ids))
            torch.testing.assert_close(seen[-1], expected.model(ids), rtol=1e-4, atol=2e-4)
    assert not torch.allclose(*seen)


def test_a_base_that_cannot_be_compared_with_is_a_problem(
    adapted: Path, random_llama: Path, tmp_path: Path
) -> None:
    done = converse(str(random_llama), "--base")
    assert done.returncode == 2 and "--base needs a run" in done.stderr
    done = converse(str(adapted), str(random_llama), "--base")
    assert done.returncode == 2 and "--base already adds a second model" in done.stderr
    recipe = yaml.safe_load((adapted.parents[1] / "mine.yaml").read_text())
    model = {**recipe["model"], "flavor": "debugmodel", "vocab_size": 2048, "hf_assets_path": None}
    drawn = {**recipe, "model": model, "tokenizer": "tiny", "dump_folder": "runs/drawn"}
    (tmp_path / "drawn.yaml").write_text(json.dumps(drawn))
    subprocess.run([*COMMAND, "train", "drawn.yaml"], cwd=tmp_path, check=True, capture_output=True)
    done = converse(str(tmp_path / "runs" / "drawn"), "--base")
    assert done.returncode == 2 and "started from random weights" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_conversation_in_a_terminal(
    random_llama: Path, replies: list[str], tmp_path: Path
) -> None:
    """A reply is written while it is generated, and what was typed is kept for the next time."""
    main, terminal = pty.openpty()
    options = ["--temperature", "0", "--max-new-tokens", "16"]
    process = subprocess.Popen(
        [*COMMAND, "chat", str(random_llama), *options],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"},
        cwd=tmp_path,
    )
    os.close(terminal)
    try:
        shown = read_until(main, "you> ")
        assert "random: llama3; stops at " in shown
        assert "<|end_of_text|>; /help lists commands" in shown
        os.write(main, f"{QUESTIONS[0]}\n".encode())
        shown = read_until(main, "tok/s", "you> ")
        assert replies[0].split()[0] in shown and "reached --max-new-tokens" in shown
        os.write(main, b"/set temperature -1\n")
        assert "cannot set temperature to '-1'" in read_until(main, "you> ")
        os.write(main, b"/save said.jsonl\n")
        read_until(main, "saved said.jsonl", "you> ")
        os.write(main, b"/quit\n")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main)
    record = json.loads((tmp_path / "said.jsonl").read_text())
    assert [message["content"] for message in record["messages"]] == [QUESTIONS[0], replies[0]]
    assert QUESTIONS[0] in (tmp_path / "titanrun" / "chat_history").read_text()


@pytest.mark.parametrize("columns", [100, 99])
def test_two_replies_are_side_by_side_from_100_columns_on(
    random_llama: Path, replies: list[str], tmp_path: Path, columns: int
) -> None:
    other = tmp_path / "other"
    shutil.copytree(random_llama, other)
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    options = ["--temperature", "0", "--max-new-tokens", "16"]
    variables = {name: os.environ[name] for name in os.environ if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [*COMMAND, "chat", str(random_llama), str(other), *options],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**variables, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"},
        cwd=tmp_path,
    )
    os.close(terminal)
    try:
        shown = read_until(main, "you> ")
        os.write(main, f"{QUESTIONS[0]}\n".encode())
        shown += read_until(main, "other: 16 tokens", "you> ")
    finally:
        process.kill()
        process.wait()
        os.close(main)
    first = replies[0][:5]
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n").split("\n")
    found = [line for line in lines if line.startswith(f"random> {first}")][-1]
    assert (f"other> {first}" in found) == (columns == 100)
    assert any(line.startswith(f"other> {first}") for line in lines) == (columns == 99)


def read_until(terminal: int, *texts: str) -> str:
    """Return what a terminal shows until all texts were shown in this order."""
    shown, deadline = "", time.monotonic() + 120
    while time.monotonic() < deadline:
        shown += os.read(terminal, 4096).decode(errors="replace")
        position = 0
        for text in texts:
            position = shown.find(text, position) + len(text)
            if position < len(text):
                break
        else:
            return shown
    raise AssertionError(shown)


def test_the_server_has_a_run_and_the_model_it_started_from(
    adapted: Path, replies: list[str]
) -> None:
    """Two requests at a time give what one at a time gives; both models share their weights."""
    with serve_run(adapted, "--base", "--max-concurrent", "2") as address:
        with urlopen(f"{address}/models") as answer:
            names = [model["id"] for model in json.loads(answer.read())["data"]]
        assert names == ["adapted", "adapted-base"]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda name: ask(address, name), names * 2))
    alone = json.loads(converse(str(adapted)).stdout.splitlines()[0])["reply"]
    assert found == [alone, replies[0]] * 2 and alone != replies[0]


def ask(address: str, name: str) -> str:
    """Return the greedy reply of a served model to the first question."""
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    request = {"model": name, "messages": messages, "temperature": 0, "max_tokens": 16}
    with urlopen(Request(f"{address}/chat/completions", json.dumps(request).encode())) as answer:
        return str(json.loads(answer.read())["choices"][0]["message"]["content"])


@contextmanager
def serve_run(folder: Path, *words: str) -> Iterator[str]:
    """Start a server, and yield its address."""
    command = [*COMMAND, "serve", str(folder), "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://127.0.0.1:\d+/v1", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        process.stdout.close()


STAND_IN = """#!{python}
import json, os, sys
told = {{"words": sys.argv[1:], "pid": os.getpid(), "key": os.environ.get("VLLM_API_KEY")}}
print(json.dumps(told))
"""


def test_the_engine_vllm_gets_an_export_and_the_process(adapted: Path, tmp_path: Path) -> None:
    """A program in the place of vLLM tells how it was started; transformers reads the export."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    variables = {"TITANRUN_CACHE": str(tmp_path / "cache"), "MY_KEY": "secret"}
    where = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    options = ["--host", "0.0.0.0", "--port", "9000", "--api-key-env", "MY_KEY"]
    options += ["--max-seq-len", "64", "--max-concurrent", "4", "--cors", "http://localhost:3000"]
    command = [*COMMAND, "serve", str(adapted), "--engine", "vllm", *options]
    told = []
    for _ in range(2):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "PATH": where},
        )
        shown, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        # the export is told about too
        told.append(json.loads(shown.splitlines()[-1]))
        assert told[-1]["pid"] == process.pid and "secret" not in errors
    words = told[0]["words"]
    assert words == told[1]["words"] and "exported earlier" in errors
    assert words[2:] == [
        *("--served-model-name", "adapted", "--host", "0.0.0.0", "--port", "9000"),
        *("--max-model-len", "64", "--max-num-seqs", "4"),
        *("--allowed-origins", '["http://localhost:3000"]'),
    ]
    assert words[0] == "serve" and told[0]["key"] == "secret"
    folder = Path(words[1])
    assert folder.parent == tmp_path / "cache" / "served"
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    chat = load_chat_model(get_weight_source(str(adapted)), name="run")
    ids = torch.tensor([chat.encode_chat([{"role": "user", "content": QUESTIONS[0]}])])
    with torch.no_grad():
        expected, found = chat.model(ids), model.float()(ids).logits
    # weights of the base alone differ by more than the rounding to bfloat16
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    talk = [{"role": "user", "content": QUESTIONS[0]}]
    assert (
        tokenizer.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
        == ids[0].tolist()
    )


def test_a_missing_vllm_is_a_problem(random_llama: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "serve", str(random_llama), "--engine", "vllm"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert done.returncode == 2 and "which is not on PATH" in done.stderr
