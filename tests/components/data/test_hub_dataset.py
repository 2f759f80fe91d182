"""Documents from a hub on this machine, which answers as the Hub's API is documented."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

COMMIT = "1234567890abcdef1234567890abcdef12345678"
API, RESOLVE = "/api/datasets/owner/words", f"/datasets/owner/words/resolve/{COMMIT}/"
TEXTS = [f"document {number}" for number in range(5)]
FILES = {
    "data/train-0.jsonl": "".join(
        json.dumps({"text": text, "lang": "en"}) + "\n" for text in TEXTS
    ).encode(),
    "data/validation-0.jsonl": b'{"text": "held out", "lang": "de"}\n',
    "words/train-0.jsonl": b'{"text": "of the subset"}\n',
    "sums/train-0.jsonl": (
        b'{"q": "1+1", "a": "two: 2", "prompt": "3+4", "answer": "7"}\n{"q": "2+2", "a": "four: '
        b'4", "prompt": "", "answer": ""}\n'
    ),
    "README.md": b"""---
configs:
- config_name: default
  data_files:
  - {split: train, path: data/train-*}
  - {split: validation, path: data/validation-*}
- config_name: words
  data_files: words/*
- config_name: sums
  data_files:
  - {split: train, path: sums/*}
---
""",
}
READ = """
import json, sys
from pathlib import Path
from titanrun.components.data.config import HubDatasetConfig
from titanrun.components.data.hub_dataset import build_hub_dataset
from titanrun.config.problems import ProblemsFound
from tests.components.data.conftest import ByteTokenizer
config, cache = HubDatasetConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2])
try:
    rows = build_hub_dataset(config, tokenizer=ByteTokenizer(), sample_length=1, cache_folder=cache)
except ProblemsFound as found:
    print(found.problems[0].path, found.problems[0].message)
else:
    tokens = (rows[index][0] for index in range(len(rows)))
    print(ByteTokenizer().decode([1 + 3 + 9 if token == 2 else int(token) for token in tokens]))
"""

ASK = """
import json, sys
from pathlib import Path
from titanrun.config.problems import ProblemsFound
from titanrun.rl.prompts.config import HubQuestionsConfig
from titanrun.rl.prompts.prompt_dataset import build_prompt_dataset
from tests.rl.parts import tokenizer
config = HubQuestionsConfig.model_validate_json(sys.argv[1])
try:
    prompts = build_prompt_dataset(
        config, tokenizer=tokenizer(), sample_length=64, cache_folder=Path(sys.argv[2])
    )
    print(json.dumps([list(pair) for pair in prompts.prompt_answer_pairs]))
except ProblemsFound as found:
    print(found.problems[0].path, found.problems[0].message)
"""


class Hub(BaseHTTPRequestHandler):
    """One dataset with two subsets."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        Hub.requests.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        if path in (API, f"{API}/revision/{COMMIT}"):
            return self.send(
                {
                    "id": "owner/words",
                    "sha": COMMIT,
                    "siblings": [{"rfilename": name} for name in FILES],
                }
            )
        if path.startswith(f"{API}/tree/{COMMIT}"):
            return self.send(self.listed(path.removeprefix(f"{API}/tree/{COMMIT}").strip("/")))
        name = path.removeprefix(RESOLVE)
        if path.startswith(RESOLVE) and name in FILES:
            return self.file(FILES[name], with_body=with_body)
        self.send_response(404)
        self.send_header(
            "X-Error-Code", "EntryNotFound" if path.startswith(RESOLVE) else "RepoNotFound"
        )
        self.send_header("Content-Length", "0")
        self.end_headers()

    def listed(self, folder: str) -> list[dict[str, Any]]:
        inside = {
            name: content
            for name, content in FILES.items()
            if not folder or name.startswith(f"{folder}/")
        }
        depth = folder.count("/") + 1 if folder else 0
        folders = {
            "/".join(name.split("/")[: depth + 1]) for name in inside if name.count("/") > depth
        }
        files = [
            {
                "type": "file",
                "path": name,
                "size": len(content),
                "oid": hashlib.sha1(content).hexdigest(),
            }
            for name, content in inside.items()
            if name.count("/") == depth
        ]
        return [
            *files,
            *({"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in folders),
        ]

    def file(self, content: bytes, *, with_body: bool) -> None:
        wanted = self.headers.get("Range")
        first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), min(len(content), int(last) + 1) if last else len(content)
        self.send_response(206 if wanted else 200)
        sent = {
            "Content-Length": end - start,
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
        }
        for key, value in {
            **sent,
            "Content-Range": f"bytes {start}-{end - 1}/{len(content)}",
        }.items():
            self.send_header(key, str(value))
        self.end_headers()
        if with_body:
            self.wfile.write(content[start:end])

    def send(self, data: Any) -> None:
        content = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Reads a dataset of the hub in a process of its own, whose library finds that hub: its
    documents, or its problem."""
    Hub.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": ""}
    environment = {**os.environ, **home, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}

    def start(
        *, script: str = READ, cache: str = "cache", offline: bool = False, **fields: Any
    ) -> str:
        config = json.dumps({"repo": "owner/words", "revision": COMMIT, **fields})
        given = {**environment, **({"HF_HUB_OFFLINE": "1"} if offline else {})}
        command = [sys.executable, "-c", script, config, str(tmp_path / cache)]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.rstrip("\n")

    yield start
    server.shutdown()
    server.server_close()
    thread.join()


def documents(*texts: str) -> str:
    return "".join(f"{text}\n" for text in texts).rstrip("\n")


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [True, False])
def test_a_split_at_a_commit_is_read_once(streaming: bool, read: Callable[..., str]) -> None:
    assert read(streaming=streaming, max_documents=3) == documents(*TEXTS[:3])
    count = len(Hub.requests)
    # what is tokenised needs no hub any more
    assert (
        read(streaming=streaming, max_documents=3) == documents(*TEXTS[:3])
        and len(Hub.requests) == count
    )
    assert read(
        streaming=streaming, split="validation", column="lang", max_documents=1
    ) == documents("de")
    assert read(streaming=streaming, subset="words") == documents("of the subset")


@pytest.mark.slow
def test_a_stream_is_read_no_further_than_it_must(
    read: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "data/train-1.jsonl", b'{"text": "later", "lang": "en"}\n')
    assert read(streaming=True, max_documents=3) == documents(*TEXTS[:3])
    assert not any("train-1.jsonl" in line for line in Hub.requests if line.startswith("GET"))
    assert read(max_documents=7) == documents(*TEXTS, "later")
    assert any("train-1.jsonl" in line for line in Hub.requests if line.startswith("GET"))


@pytest.mark.slow
def test_questions_come_from_the_hub(
    read: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(**fields: Any) -> Any:
        return json.loads(read(script=ASK, **fields))

    monkeypatch.setitem(FILES, "data/train-1.jsonl", b'{"text": "later", "lang": "en"}\n')
    assert (
        len(asked(streaming=True, prompt_column="text", answer_column="lang", max_questions=2)) == 2
    )
    assert not any("train-1.jsonl" in line for line in Hub.requests if line.startswith("GET"))
    found = asked(subset="sums", prompt_column="q", answer_column="a", answer_pattern=": (.*)")
    assert found == [["1+1", "2"], ["2+2", "4"]]
    assert asked(subset="sums", max_questions=1) == [["3+4", "7"]]
    assert asked(split="validation", prompt_column="text", answer_column="lang") == [
        ["held out", "de"]
    ]
    assert read(script=ASK, repo="owner/none").startswith("('repo',) 'owner/none' cannot be opened")
    assert "cannot be opened at aaaaaaaaaaaa" in read(script=ASK, revision="a" * 40)
    assert read(script=ASK, subset="sums").startswith(
        "('prompt_column',) owner/words train record 2 has an empty prompt"
    )


@pytest.mark.slow
def test_another_commit_is_other_data(read: Callable[..., str]) -> None:
    assert read() == documents(*TEXTS)
    told = (
        f"('revision',) 'owner/words' cannot be opened at aaaaaaaaaaaa: what was fetched before "
        f"is {COMMIT[:12]}"
    )
    assert read(revision="a" * 40) == told == read(revision="a" * 40, offline=True)


@pytest.mark.slow
def test_what_was_fetched_is_there_offline_and_what_was_not_is_told(
    read: Callable[..., str],
) -> None:
    assert read() == documents(*TEXTS)
    count = len(Hub.requests)
    assert read(cache="other", offline=True, format="{text}!") == documents(
        *(f"{text}!" for text in TEXTS)
    )
    assert len(Hub.requests) == count
    assert "('repo',) 'owner/others' cannot be opened at 123456789" in read(
        repo="owner/others", offline=True
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"repo": "owner/none"}, "('repo',) 'owner/none' cannot be opened at 1234567890ab"),
        ({"subset": "wrods"}, "('repo',) 'owner/words' cannot be opened"),
        ({"split": "test"}, "('repo',) 'owner/words' cannot be opened"),
        (
            {"column": "body", "streaming": True},
            "('column',) owner/words train record 1 has no column 'body'; it has: text, lang",
        ),
    ],
)
def test_what_the_hub_does_not_have_is_told(
    fields: dict[str, Any], told: str, read: Callable[..., str]
) -> None:
    assert read(**fields).startswith(told)
