"""`titanrun download` against a hub on this machine, which answers as the Hub's API is
documented."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

COMMIT = "1234567890abcdef1234567890abcdef12345678"
# the Hub's library counts what it has in pieces of 10 MiB
CUT = 11_000_000
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 45_000,
    "README.md": b"not asked for",
}


def sha(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    """One model, two of its files cut short once."""

    truncated_files: ClassVar[set[str]] = set()
    requests: ClassVar[list[tuple[str, str | None]]] = []

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/owner/model/revision/"):
            known = path.rpartition("/")[2] in ("main", COMMIT)
            return self.info() if known else self.error(404, "RevisionNotFound")
        if path == f"/api/models/owner/model/tree/{COMMIT}":
            listed = [
                {"type": "file", "path": name, "size": len(content), "oid": sha(content)}
                for name, content in FILES.items()
            ]
            return self.send(json.dumps(listed).encode(), {"Content-Type": "application/json"})
        name = path.rpartition("/")[2]
        if path.startswith(f"/owner/model/resolve/{COMMIT}/") and name in FILES:
            return self.file(name, with_body=with_body)
        return self.error(
            401 if "owner/secret" in path else 404,
            "GatedRepo" if "owner/secret" in path else "RepoNotFound",
        )

    def info(self) -> None:
        siblings = [{"rfilename": name} for name in FILES]
        self.send(
            json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": siblings}).encode(),
            {"Content-Type": "application/json"},
        )

    def error(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def file(self, name: str, *, with_body: bool) -> None:
        content, wanted = FILES[name], self.headers.get("Range")
        if with_body:
            Hub.requests.append((name, wanted))
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", f'"{sha(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            is_cut = name in Hub.truncated_files
            Hub.truncated_files.discard(name)
            self.wfile.write(content[start : start + CUT] if is_cut else content[start:])
            if is_cut:
                self.close_connection = True
                self.connection.close()

    def send(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Hub.truncated_files, Hub.requests = set(), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def download(hub: str, *words: str) -> "subprocess.CompletedProcess[str]":
    given = {
        **os.environ,
        "HF_ENDPOINT": hub,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_TOKEN": "",
    }
    return subprocess.run(
        [sys.executable, "-m", "titanrun", "download", *words],
        capture_output=True,
        text=True,
        env=given,
        check=False,
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_the_files_of_a_model_come_with_their_digests(hub: str, tmp_path: Path) -> None:
    done = download(hub, "owner/model", "-o", str(tmp_path / "m"))
    assert done.returncode == 0
    assert done.stderr.startswith("next: titanrun init --kind sft --model ")
    assert done.stdout == f"{tmp_path / 'm'}: 3 files of owner/model at {COMMIT[:12]}\n"
    assert names(tmp_path / "m") == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "download.json",
    }
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    record = json.loads((tmp_path / "m" / "download.json").read_text(encoding="utf-8"))
    assert (record["commit"], record["files"]["config.json"]["bytes"]) == (
        COMMIT,
        len(FILES["config.json"]),
    )
    Hub.requests.clear()
    assert download(hub, "owner/model", "-o", str(tmp_path / "m")).returncode == 0
    assert Hub.requests == []


def test_a_part_of_the_files(hub: str, tmp_path: Path) -> None:
    assert (
        download(
            hub, "owner/model", "--only", "tokenizer", "--only", "config", "-o", str(tmp_path), "-q"
        ).stdout
        == ""
    )
    assert names(tmp_path) == {"config.json", "tokenizer.json", "download.json"}


def test_what_broke_off_goes_on_where_it_was(hub: str, tmp_path: Path) -> None:
    Hub.truncated_files = {"model.safetensors"}
    code = download(hub, "owner/model", "-o", str(tmp_path)).returncode
    if code:
        assert download(hub, "owner/model", "-o", str(tmp_path)).returncode == 0
    assert (tmp_path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    ranges = [wanted for name, wanted in Hub.requests if name == "model.safetensors"]
    assert ranges[0] is None and ranges[-1] is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["owner/nothing"], "model 'owner/nothing' not found on the Hub"),
        (["owner/secret"], "owner/secret is gated"),
        (["owner/model", "--revision", "v9"], "owner/model has no revision 'v9'"),
        (["a/b/c"], "is not a model name"),
    ],
)
def test_what_the_hub_does_not_give_is_a_problem(
    hub: str, tmp_path: Path, words: list[str], message: str
) -> None:
    done = download(hub, *words, "-o", str(tmp_path / "m"))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hub_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    done = download("http://127.0.0.1:9", "owner/model", "-o", str(tmp_path / "m"))
    assert done.returncode == 2
    assert "could not be fetched from http://127.0.0.1:9" in done.stderr
