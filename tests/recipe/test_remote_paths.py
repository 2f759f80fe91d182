"""Addresses of streams are read at level environment, and only there."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.components.data.fragile_server import FragileServer, serve_files
from titanrun.components.data import http_source
from titanrun.config.problems import Problem
from titanrun.recipe.resolving.validation_levels import validate_file

RULE = "remote-path-readable"
LINE = json.dumps({"text": "one", "n": 1}) + "\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FragileServer]:
    """A web server, and a folder of recipes."""
    monkeypatch.chdir(tmp_path)
    with serve_files() as server:
        yield server


def write_recipe(**dataset: Any) -> str:
    fields = {"name": "text", "streaming": True, **dataset}
    recipe = {
        "version": 1,
        "model": {"name": "llama3", "flavor": "debugmodel", "attention": {"mask": "block_causal"}},
        "tokenizer": "tiny",
        "training": {"dataset": fields, "seq_len": 64, "local_batch_size": 8, "steps": 2},
    }
    if fields["name"] == "chat":
        recipe["kind"] = "sft"
    Path("recipe.yaml").write_text(json.dumps(recipe))
    return "recipe.yaml"


def find_problems(level: Any = "environment", **dataset: Any) -> list[Problem]:
    found = validate_file(write_recipe(**dataset), (), level=level, environment={})
    return [problem for problem in found.problems if problem.rule == RULE]


@pytest.mark.parametrize("path", ["a.jsonl", "part/*.jsonl", "part/"])
def test_the_first_file_is_read_and_no_other(path: str, server: FragileServer) -> None:
    server.lists_folders = True
    for name in ("a.jsonl", "part/b.jsonl", "part/a.jsonl"):
        server.files[name] = LINE.encode()
    assert find_problems(path=f"{server.url}/{path}") == []
    asked = {address for address, _ in server.requests}
    assert "/part/b.jsonl" not in asked and asked & {"/a.jsonl", "/part/a.jsonl"}


@pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID"])
def test_the_first_rank_alone_asks_the_server(
    variable: str, server: FragileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    assert find_problems(path=f"{server.url}/gone.jsonl") == [] and server.requests == []
    monkeypatch.setenv(variable, "0")
    assert find_problems(path=f"{server.url}/gone.jsonl") and server.requests


@pytest.mark.parametrize("level", ["syntax", "schema", "rules"])
def test_other_levels_need_no_network(level: str, server: FragileServer) -> None:
    assert find_problems(level, path=f"{server.url}/gone.jsonl") == []
    assert server.requests == []


def make_content(suffix: str) -> bytes:
    if suffix == ".parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": ["one"], "n": [1]}), sink)
        return bytes(sink.getvalue())
    return b"text,n\none,1\n" if suffix == ".csv" else LINE.encode()


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_missing_column_is_named_at_its_field(suffix: str, server: FragileServer) -> None:
    server.files[f"a{suffix}"] = make_content(suffix)
    path = f"{server.url}/a{suffix}"
    (problem,) = find_problems(path=path, column="txt")
    assert problem.path == ("training", "dataset", "column") and problem.severity == "error"
    assert "has no column 'txt'; it has: text, n" in problem.message
    assert problem.hint == "did you mean 'text'?"
    (problem,) = find_problems(path=path, format="{text} {m}")
    assert problem.path[-1] == "format" and "'m'" in problem.message


def test_conversations_are_compared_with_their_layout(server: FragileServer) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    server.files["a.jsonl"] = json.dumps({"messages": turns, "id": 1}).encode()
    chat = {"name": "chat", "path": f"{server.url}/a.jsonl", "layout": "messages"}
    assert find_problems(**chat) == []
    (problem,) = find_problems(**{**chat, "column": "turns"})
    assert problem.path[-1] == "column" and "no column 'turns'" in problem.message
    server.files["a.jsonl"] = json.dumps({"messages": [{"role": "user"}]}).encode()
    assert find_problems(**chat)


@pytest.mark.parametrize(
    ("fault", "said", "severity"),
    [
        (404, "404", "error"),
        (403, "403", "error"),
        (503, "503", "warning"),
        ("stall", "no answer", "warning"),
        ("reset", "closed", "warning"),
        ("cut", "bytes", "warning"),
    ],
)
def test_each_failure_of_the_network_is_a_problem(
    fault: Any,
    said: str,
    severity: str,
    server: FragileServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault == "stall":
        # less than the server is silent
        monkeypatch.setattr(http_source, "STALL_SECONDS", 0.5)
    server.files["a.jsonl"] = LINE.encode() * 100
    server.faults["a.jsonl"] = [fault] * 9
    (problem,) = find_problems(path=f"{server.url}/a.jsonl")
    assert problem.severity == severity and problem.path == ("training", "dataset", "path")
    assert said in problem.message and problem.hint and problem.origin is not None


def test_damage_and_folders_without_data_are_problems(server: FragileServer) -> None:
    server.lists_folders = True
    server.files |= {"a.jsonl.gz": b"not gzip", "b.jsonl": b"no record\n", "c/x.bin": b"1"}
    for name, said in (
        ("a.jsonl.gz", "damaged"),
        ("b.jsonl", "not JSON"),
        ("c/", "names no .jsonl"),
    ):
        (problem,) = find_problems(path=f"{server.url}/{name}")
        assert said in problem.message and problem.severity == "error" and problem.hint, problem
    # the run goes on without the record
    assert find_problems(path=f"{server.url}/b.jsonl", bad_records="skip") == []


def test_a_server_that_is_not_there_is_a_warning(server: FragileServer) -> None:
    server.shutdown()
    server.server_close()
    (problem,) = find_problems(path=f"{server.url}/a.jsonl")
    assert problem.severity == "warning" and "refused" in problem.message


def test_a_run_is_refused_before_it_starts_and_torch_is_not_imported(
    server: FragileServer,
) -> None:
    server.files["a.jsonl"] = LINE.encode()
    recipe = write_recipe(path=f"{server.url}/a.jsonl", column="txt")
    command = [sys.executable, "-m", "titanrun", "train", recipe]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and f"error[data/{RULE}]" in done.stderr, done.stderr
    assert not Path("runs").exists()
    code = (
        "import sys\\nfrom titanrun.recipe.resolving.validation_levels import validate_file\\n"
        f"found = validate_file({recipe!r}, (), level='environment', environment={{}})\\n"
        "assert found.problems and 'torch' not in sys.modules"
    ).replace("\\n", "\n")
    subprocess.run([sys.executable, "-c", code], check=True)
