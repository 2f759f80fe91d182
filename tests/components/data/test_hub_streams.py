"""Streams from a hub on this machine: records of the datasets library, named faults."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.components.data.test_hub_dataset import COMMIT, FILES, RESOLVE, Hub, hub_environment

__all__ = ["hub_environment"]
FETCH = """
import sys
from titanrun.components.data.hub_records import load_hub_split
from titanrun.components.data.spec.hub_source import HubSource
for subset in ("words", "chats"):
    load_hub_split(HubSource("owner/words", subset, "train", sys.argv[1]))
"""
PLAN = """
import sys
from titanrun.components.data.config import HubDatasetConfig
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_sources import plan_stream
config = HubDatasetConfig(
    repo="owner/words", subset="words", revision=sys.argv[1], streaming=True
)
print(plan_stream(config, RetryPolicy(0)).digest)
"""
BUSY = """
import json, sys, time
from titanrun.components.data.config import HubDatasetConfig
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_sources import plan_stream
from titanrun.config.problems import ProblemsFound
config = HubDatasetConfig(
    repo="owner/words", subset="words", revision=sys.argv[1], streaming=True
)
sleeps = []
time.sleep = sleeps.append
try:
    plan_stream(config, RetryPolicy(0))
except ProblemsFound as found:
    print(json.dumps([found.problems[0].rule, found.problems[0].message, sleeps]))
"""
ASK = """
import json, sys, time
from titanrun.components.data import source_faults
from titanrun.components.data.config import HubDatasetConfig, TextDatasetConfig
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_sources import plan_stream
from titanrun.config.problems import ProblemsFound
source_faults.LAST_TRY_SECONDS = 1.0
fields = json.loads(sys.argv[1])
config = (TextDatasetConfig if "path" in fields else HubDatasetConfig)(streaming=True, **fields)
started = time.monotonic()
try:
    plan_stream(config, RetryPolicy(0.5))
except ProblemsFound as found:
    print(json.dumps([found.problems[0].rule, time.monotonic() - started]))
"""
STREAM = """
import json, os, sys
import datasets
from datasets.distributed import split_dataset_by_node
from tests.components.data.conftest import ByteTokenizer
from tests.components.data.lane_streams import Ranks, lane_texts, numbers_in
from titanrun.components.data import source_faults
from titanrun.components.data.c4_config import C4DatasetConfig
from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.config import HubDatasetConfig, TextDatasetConfig
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.config.problems import ProblemsFound
source_faults.FIRST_DELAY_SECONDS = 0.01
given = json.loads(sys.argv[1])
ranks = given.pop("ranks", 1)
retry_timeout = given.pop("retry_timeout", 900)
choices = ChatDatasetConfig, HubDatasetConfig, TextDatasetConfig, C4DatasetConfig
choice = {one.model_fields["name"].default: one for one in choices}[given["name"]]
config = choice.model_validate({"streaming": True, "repeat": False, "shuffle": False, **given})
chat = given["name"] == "chat"
tokenizer = build_tiny_tokenizer(TinyTokenizerConfig()) if chat else ByteTokenizer()
try:
    options = {"retry_timeout": retry_timeout, "length": 129 if chat else 65}
    loaders = Ranks(config, tokenizer, lanes=ranks, **options)
    texts = lane_texts(loaders.rest(), tokenizer, ranks)
except ProblemsFound as found:
    print(json.dumps([[one.rule, list(one.path), one.message] for one in found.problems]))
    sys.exit()
numbers = [numbers_in(text) for text in texts]
if chat:
    print(json.dumps(texts))
    sys.exit()
if given["name"] == "text" or "HF_HUB_OFFLINE" in os.environ:
    print(json.dumps(numbers))
    sys.exit()
loaded = datasets.load_dataset(
    given["repo"], given["subset"], split="train", revision=given["revision"], streaming=True
)
for rank in range(ranks):
    split = split_dataset_by_node(loaded, rank, ranks)
    assert numbers_in("".join(record["text"] for record in split)) == numbers[rank]
print(json.dumps(numbers))
"""


@pytest.fixture
def stream(hub_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Streams a dataset of the hub in a process of its own, and compares it with the library."""
    numbers = iter(range(10_000))
    for part, count in enumerate([70, 40, 55, 90]):
        lines = "".join(
            json.dumps({"text": f"<{next(numbers)}>" + "x" * (part + 3)}) + "\n"
            for _ in range(count)
        )
        name = f"words/train-{part}.json.gz"
        monkeypatch.setitem(FILES, name, gzip.compress(lines.encode()))
    monkeypatch.delitem(FILES, "words/train-0.jsonl")

    def start(*, offline: bool = False, **fields: Any) -> Any:
        given = {"name": "hub", "repo": "owner/words", "subset": "words", "revision": COMMIT}
        if fields.get("name") == "text":
            given = {}
        config = json.dumps({**given, **fields})
        environment = {**hub_environment, **({"HF_HUB_OFFLINE": "1"} if offline else {})}
        command = [sys.executable, "-c", STREAM, config]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return start


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stream_has_the_order_of_the_library_in_one_lane_per_rank(
    ranks: int, stream: Callable[..., Any]
) -> None:
    found = stream(ranks=ranks)
    assert sorted(number for lane in found for number in lane) == list(range(255))
    assert found == stream(name="c4", ranks=ranks)
    if ranks == 1:
        # the same files by their addresses; nothing is left in the cache of the Hub
        for files in ("words/*.json.gz", "words"):
            path = f"hf://datasets/owner/words@{COMMIT}/{files}"
            assert stream(name="text", path=path) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "options", "said"),
    [
        ("words/*.json.gz", "", ""),
        ("words/*.json.gz", ", column: txt", "has no column 'txt'; it has: text"),
        ("nothing/*.jsonl", "", "the store has no such object"),
    ],
)
def test_validate_reads_the_first_file_of_the_hub(
    files: str,
    options: str,
    said: str,
    stream: Callable[..., Any],
    hub_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    path = f"hf://datasets/owner/words@{COMMIT}/{files}"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\ntraining:\n"
        f'  dataset: {{name: text, path: "{path}", streaming: true{options}}}\n'
        "  local_batch_size: 8\n  seq_len: 64\n  steps: 2\n"
    )
    command = [sys.executable, "-m", "titanrun", "validate", str(recipe), "--level"]
    for level in ("rules", "environment"):
        done = subprocess.run(
            [*command, level], env=hub_environment, capture_output=True, text=True, check=False
        )
        found = said and level == "environment"
        assert done.returncode == (3 if found else 0), done.stderr
        assert ("remote-path-readable" in done.stderr + done.stdout) == bool(found)
        assert not found or said in done.stderr + done.stdout


@pytest.mark.slow
def test_conversations_are_streamed_from_the_hub(stream: Callable[..., Any]) -> None:
    (text,) = stream(name="chat", subset="chats")
    assert all(f"it is {number}" in text for number in range(40))


@pytest.mark.slow
def test_faults_of_the_hub_pass_or_end_with_their_names(
    stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stream()
    file = f"{RESOLVE}words/train-1.json.gz"
    monkeypatch.setattr(Hub, "faults", {file: [503, 500, 429, 401]})
    assert stream() == whole and Hub.faults == {file: []}
    for status, rule in (
        (403, "source-refused"),
        (404, "source-gone"),
        (503, "source-unreachable"),
    ):
        monkeypatch.setattr(Hub, "faults", {file: [status] * 100})
        ((found, path, message),) = stream(retry_timeout=0.2)
        assert (found, path) == (rule, ["path"])
        assert (
            f"hf://datasets/owner/words@{COMMIT}/words/train-1.json.gz' cannot be" in message
            or ("train-1.json.gz' after " in message)
        )


class BusyHub(BaseHTTPRequestHandler):
    """Hub that answers nothing else."""

    def do_HEAD(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.mark.slow
def test_a_busy_hub_is_not_one_without_the_dataset(hub_environment: dict[str, str]) -> None:
    """The datasets library says "Couldn't find 'owner/words' on the Hugging Face Hub"."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BusyHub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, "-c", BUSY, COMMIT]
        url = f"http://127.0.0.1:{server.server_port}"
        done = subprocess.run(
            command,
            env={**hub_environment, "HF_ENDPOINT": url},
            capture_output=True,
            text=True,
            check=True,
        )
        server.shutdown()
    rule, message, sleeps = json.loads(done.stdout)
    assert rule == "source-unreachable"
    # a run that the library's own retries hold up cannot be stopped
    assert sleeps == []
    assert "Retrying" not in done.stderr
    assert "'owner/words' cannot be read: " in message and "503 Service" in message


class SilentHub(BusyHub):
    """Hub that answers nothing."""

    def do_HEAD(self) -> None:
        self.server.has_ended.wait()  # type: ignore[attr-defined]
        self.close_connection = True

    do_GET = do_HEAD


@pytest.mark.slow
@pytest.mark.parametrize("hub", [BusyHub, SilentHub])
@pytest.mark.parametrize(
    "fields",
    [
        {"repo": "owner/words", "subset": "words", "revision": COMMIT},
        {"path": f"hf://datasets/owner/words@{COMMIT}/words/*.jsonl"},
    ],
    ids=["repo", "path"],
)
def test_files_are_not_listed_for_longer_than_the_run_is_patient(
    fields: dict[str, str], hub: type[BusyHub], hub_environment: dict[str, str]
) -> None:
    """The library asked a busy Hub for 25 s, and waited for a silent one for minutes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), hub) as server:
        server.daemon_threads, server.has_ended = True, Event()  # type: ignore[attr-defined]
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        command = [sys.executable, "-c", ASK, json.dumps(fields)]
        environment = {**hub_environment, "HF_ENDPOINT": url}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        server.has_ended.set()  # type: ignore[attr-defined]
        server.shutdown()
    rule, seconds = json.loads(done.stdout)
    assert rule == "source-unreachable"
    # 1.5 s, and 3 s in which the library asks for something else
    assert seconds < 15


@pytest.mark.slow
def test_files_that_the_library_reads_otherwise_are_refused(
    stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = b"---\nconfigs:\n- {config_name: words, data_files: lines/*}\n---\n"
    monkeypatch.setitem(FILES, "README.md", card)
    monkeypatch.setitem(FILES, "lines/a.txt", b"one\ntwo\n")
    ((_, _, message),) = stream()
    assert "'owner/words' cannot be streamed: it is read as text" in message


@pytest.mark.slow
def test_offline_streams_read_what_was_fetched_before(
    stream: Callable[..., Any], hub_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, talks = stream(), stream(name="chat", subset="chats")
    # streams leave nothing in the cache; data that is indexed does
    subprocess.run([sys.executable, "-c", FETCH, COMMIT], env=hub_environment, check=True)
    monkeypatch.setitem(hub_environment, "HF_ENDPOINT", "http://127.0.0.1:9")
    count = len(Hub.requests)
    assert stream(offline=True) == whole == stream(offline=True, name="c4")
    assert stream(offline=True, name="chat", subset="chats") == talks
    for files in ("words/*.json.gz", "words"):
        path = f"hf://datasets/owner/words@{COMMIT}/{files}"
        assert stream(offline=True, name="text", path=path) == whole
    assert len(Hub.requests) == count


@pytest.mark.slow
def test_the_cache_has_the_plan_of_the_hub(hub_environment: dict[str, str]) -> None:
    commands = [[sys.executable, "-c", script, COMMIT] for script in (PLAN, FETCH, PLAN)]
    offline = {**hub_environment, "HF_HUB_OFFLINE": "1"}
    environments = [hub_environment, hub_environment, offline]
    digests = [
        subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout
        for command, given in zip(commands, environments, strict=True)
    ]
    assert digests[0] == digests[2] != ""


@pytest.mark.slow
def test_what_cannot_be_streamed_is_told_at_the_start(stream: Callable[..., Any]) -> None:
    address = f"hf://datasets/owner/words@{COMMIT}/words/*.json.gz"
    for field, given in (("repo", {}), ("path", {"name": "text", "path": address})):
        ((_, path, message),) = stream(offline=True, **given)
        assert path == [field] and message == (
            "'owner/words' is streamed from the Hub, but HF_HUB_OFFLINE is set, and the Hub's "
            f"cache does not hold it at {COMMIT[:12]}"
        )
    ((_, path, message),) = stream(repo="owner/none")
    assert path == ["repo"] and "'owner/none' cannot be opened at 1234567890ab" in message
    ((_, path, message),) = stream(split="test")
    assert path == ["split"] and "has no split 'test'; it has: train" in message
    address = f"hf://datasets/owner/words@{COMMIT}/nothing/*.jsonl"
    assert "the store has no such object" in stream(name="text", path=address)[0][2]
    branch = "hf://datasets/owner/words@main/words/*.json.gz"
    assert (
        "does not name files of a dataset on the Hub at a commit"
        in (stream(name="text", path=branch)[0][2])
    )
