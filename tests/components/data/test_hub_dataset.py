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
    "chats/train-0.jsonl": b"".join(
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": f"what is {number}?"},
                    {"role": "assistant", "content": f"it is {number}"},
                ],
                "system": "",
            }
        ).encode()
        + b"\n"
        for number in range(40)
    ),
    "pairs/train-0.jsonl": b"".join(
        json.dumps({"prompt": f"{number}?", "chosen": "yes", "rejected": "no"}).encode() + b"\n"
        for number in range(3)
    ),
    "chats/validation-0.jsonl": (
        b'{"messages": [{"role": "user", "content": "who?"}, '
        b'{"role": "assistant", "content": "nobody"}], "system": "Be brief."}\n'
    ),
    "pairs/validation-0.jsonl": b'{"prompt": "who?", "chosen": "me", "rejected": "nobody"}\n',
    "sums/validation-0.jsonl": b'{"prompt": "5+6", "answer": "11"}\n',
    "README.md": b"""---
configs:
- config_name: default
  data_files:
  - {split: train, path: data/train-*}
  - {split: validation, path: data/validation-*}
- config_name: words
  data_files: words/*
- config_name: chats
  data_files:
  - {split: train, path: chats/train-*}
  - {split: validation, path: chats/validation-*}
- config_name: pairs
  data_files:
  - {split: train, path: pairs/train-*}
  - {split: validation, path: pairs/validation-*}
- config_name: sums
  data_files:
  - {split: train, path: sums/train-*}
  - {split: validation, path: sums/validation-*}
---
""",
}
READ = """
import json, sys
from pathlib import Path
from titanrun.components.data.config import HubDatasetConfig
from titanrun.components.data.hub_dataset import build_hub_dataset
from titanrun.config.problems import ProblemsFound
from titanrun.components.data.document_split import Holdout
from tests.components.data.conftest import ByteTokenizer
given = json.loads(sys.argv[1])
split = {"holdout": Holdout(**given.pop("side"))} if "side" in given else {}
config, cache = HubDatasetConfig.model_validate_json(json.dumps(given)), Path(sys.argv[2])
try:
    rows = build_hub_dataset(
        config, tokenizer=ByteTokenizer(), sample_length=1, cache_folder=cache, **split
    )
except ProblemsFound as found:
    print(found.problems[0].path, found.problems[0].message)
else:
    tokens = (rows[index][0] for index in range(len(rows)))
    print(ByteTokenizer().decode([1 + 3 + 9 if token == 2 else int(token) for token in tokens]))
"""

CONVERSE = """
import json, sys
from pathlib import Path
from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.replies_config import LabelledDatasetConfig, PreferenceDatasetConfig
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.config.problems import ProblemsFound
given = json.loads(sys.argv[1])
split = {"holdout": Holdout(**given.pop("side"))} if "side" in given else {}
choices = ChatDatasetConfig, PreferenceDatasetConfig, LabelledDatasetConfig
choice = {one.model_fields["name"].default: one for one in choices}[given["name"]]
config, tokenizer = choice.model_validate(given), build_tiny_tokenizer(TinyTokenizerConfig())
try:
    rows = config.load_builder()(
        config, tokenizer=tokenizer, sample_length=129, cache_folder=Path(sys.argv[2]), **split
    )
    print(json.dumps([tokenizer.decode(rows[index][0].tolist()) for index in range(len(rows))]))
except ProblemsFound as found:
    print(found.problems[0].path, found.problems[0].message)
"""

CHOOSE = """
import json, sys
from dataclasses import astuple
from titanrun.components.evaluation.config import MultipleChoiceTaskConfig
from titanrun.components.evaluation.multiple_choice import load_questions
config = MultipleChoiceTaskConfig.model_validate_json(sys.argv[1])
print(json.dumps([astuple(question) for question in load_questions(config)]))
"""

ASK = """
import json, sys
from pathlib import Path
from titanrun.config.problems import ProblemsFound
from titanrun.rl.prompts.config import HubQuestionsConfig, QuestionsConfig
from titanrun.rl.prompts.prompt_dataset import build_prompt_dataset
from tests.rl.parts import tokenizer
name = json.loads(sys.argv[1]).get("name")
choice = QuestionsConfig if name == "questions" else HubQuestionsConfig
config = choice.model_validate_json(sys.argv[1])
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
    # statuses that the next requests to a path get
    faults: ClassVar[dict[str, list[int]]] = {}

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        Hub.requests.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        if with_body and Hub.faults.get(path):
            self.send_response(Hub.faults[path].pop(0))
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if path in (API, f"{API}/revision/{COMMIT}", f"{API}/revision/main"):
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
def hub_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process whose library finds the hub of this machine."""
    Hub.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": ""}
    yield {**os.environ, **home, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def read(tmp_path: Path, hub_environment: dict[str, str]) -> Callable[..., str]:
    """Reads a dataset of the hub in a process of its own: its documents, or its problem."""

    def start(
        *, script: str = READ, cache: str = "cache", offline: bool = False, **fields: Any
    ) -> str:
        config = json.dumps({"repo": "owner/words", "revision": COMMIT, **fields})
        given = {**hub_environment, **({"HF_HUB_OFFLINE": "1"} if offline else {})}
        command = [sys.executable, "-c", script, config, str(tmp_path / cache)]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.rstrip("\n")

    return start


@pytest.mark.slow
def test_questions_with_choices_come_from_the_hub(
    read: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": f"{n}?", "choices": ["a", "b", "c"], "answer": n} for n in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    monkeypatch.setitem(FILES, "words/train-0.jsonl", text)
    found = json.loads(read(script=CHOOSE, subset="words", limit=2))
    assert found == [["0?", ["a", "b", "c"], 0], ["1?", ["a", "b", "c"], 1]]
    for split, question in (("train", "when?"), ("validation", "who?")):
        row = {"question": question, "choices": ["me", "you"], "answer": 1}
        monkeypatch.setitem(FILES, f"pairs/{split}-0.jsonl", json.dumps(row).encode() + b"\n")
    found = json.loads(read(script=CHOOSE, subset="pairs", split="validation"))
    assert found == [["who?", ["me", "you"], 1]]


def documents(*texts: str) -> str:
    return "".join(f"{text}\n" for text in texts).rstrip("\n")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [3, None])
def test_a_split_at_a_commit_is_read_once(limit: int | None, read: Callable[..., str]) -> None:
    assert read(max_documents=limit) == documents(*TEXTS[:limit])
    count = len(Hub.requests)
    # what is tokenised needs no hub any more
    assert read(max_documents=limit) == documents(*TEXTS[:limit])
    assert len(Hub.requests) == count
    assert read(split="validation", column="lang", max_documents=limit) == documents("de")
    assert read(subset="words", max_documents=limit) == documents("of the subset")


@pytest.mark.slow
def test_a_part_of_a_split_is_read_as_the_datasets_library_slices_it(
    read: Callable[..., str],
) -> None:
    assert read(split="train[:2]") == documents(*TEXTS[:2])
    assert read(split="train[2:]") == documents(*TEXTS[2:])
    assert read(split="train[:1]+validation", column="lang").count("\n") == 1


@pytest.mark.slow
def test_no_more_is_fetched_than_max_documents(
    read: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "data/train-1.jsonl", b'{"text": "later", "lang": "en"}\n')
    assert read(max_documents=3) == documents(*TEXTS[:3])
    assert not any("train-1.jsonl" in line for line in Hub.requests if line.startswith("GET"))
    assert read(max_documents=7) == documents(*TEXTS, "later")
    assert any("train-1.jsonl" in line for line in Hub.requests if line.startswith("GET"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config", "split"),
    [
        ("c4", "C4DatasetConfig", "validation"),
        ("c4_validation", "C4ValidationDatasetConfig", "train"),
    ],
    ids=["c4", "c4_validation"],
)
def test_c4_is_read_from_where_the_recipe_says(
    name: str, config: str, split: str, read: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fields have defaults of their own, which what other datasets do says nothing about."""
    monkeypatch.setitem(FILES, "data/train-1.jsonl", b'{"text": "later", "lang": "en"}\n')
    script = READ.replace(
        "data.config import HubDatasetConfig", f"data.c4_config import {config} as HubDatasetConfig"
    )
    given = {"script": script, "name": name}
    texts = [*TEXTS, "later"] if split == "train" else ["held out"]
    assert read(**given, subset=None, split=split) == documents(*texts)
    assert read(**given, subset="words", split="train") == documents("of the subset")
    Hub.requests.clear()
    found = read(**given, subset=None, split="train", max_documents=2)
    assert found == documents(*TEXTS[:2])
    assert not any("train-1.jsonl" in line for line in Hub.requests if line.startswith("GET"))


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
def test_conversations_and_pairs_come_from_the_hub(read: Callable[..., str]) -> None:
    def conversed(**fields: Any) -> Any:
        return json.loads(read(script=CONVERSE, **fields))

    chats = conversed(name="chat", subset="chats")
    assert len(chats) == 40 and all(f"it is {number}" in chats[number] for number in range(40))
    pairs = conversed(name="preference", subset="pairs")
    assert len(pairs) == 3 and "0?" in pairs[0] and "yes" in pairs[0] and "no" in pairs[0]
    assert len(conversed(name="labelled", from_pairs=True, subset="pairs")) == 6
    count = len(Hub.requests)
    assert conversed(name="chat", subset="chats") == chats and len(Hub.requests) == count
    # a part is held out of what was fetched, without the hub
    sides = [
        conversed(
            name="chat", subset="chats", offline=True, side={"size": 10, "is_validation": side}
        )
        for side in (False, True)
    ]
    assert [len(side) for side in sides] == [30, 10]
    assert sorted([*sides[0], *sides[1]]) == sorted(chats) and len(Hub.requests) == count
    assert read(script=CONVERSE, name="chat", subset="chats", column="talk").startswith(
        "('column',) owner/words train record 1 has no 'talk'"
    )
    assert read(
        script=CONVERSE, name="chat", subset="chats", system_column="sys", cache="other"
    ).startswith("('system_column',) no record has a 'sys'")
    assert read(script=CONVERSE, name="chat", repo="owner/none").startswith("('repo',)")
    asked = read(script=ASK, name="questions", subset="sums", max_questions=1)
    assert json.loads(asked) == [["3+4", "7"]]


@pytest.mark.slow
def test_another_split_of_conversations_and_pairs_comes_from_the_hub(
    read: Callable[..., str],
) -> None:
    def conversed(**fields: Any) -> Any:
        return json.loads(read(script=CONVERSE, split="validation", **fields))

    assert len(conversed(name="chat", subset="chats")) == 1
    # the tiny template has no system messages: only the column brings one
    assert "roles are user and assistant, not system" in read(
        script=CONVERSE, name="chat", subset="chats", split="validation", system_column="system"
    )
    assert len(conversed(name="preference", subset="pairs")) == 1
    assert len(conversed(name="labelled", from_pairs=True, subset="pairs")) == 2
    asked = read(script=ASK, name="questions", subset="sums", split="validation")
    assert json.loads(asked) == [["5+6", "11"]]


@pytest.mark.slow
def test_documents_of_the_hub_are_held_out(read: Callable[..., str]) -> None:
    sides = [read(side={"size": 2, "is_validation": side}).split("\n") for side in (False, True)]
    assert [len(side) for side in sides] == [3, 2]
    assert sorted([*sides[0], *sides[1]]) == TEXTS


@pytest.mark.slow
def test_another_commit_is_other_data(read: Callable[..., str]) -> None:
    assert read() == documents(*TEXTS)
    told = (
        f"('revision',) 'owner/words' cannot be opened at aaaaaaaaaaaa: the local cache "
        f"holds {COMMIT[:12]}"
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
    ("script", "fields"),
    [
        (CONVERSE, {"name": "chat", "subset": "chats"}),
        (CONVERSE, {"name": "preference", "subset": "pairs"}),
        (CONVERSE, {"name": "labelled", "from_pairs": True, "subset": "pairs"}),
        (ASK, {"name": "questions", "subset": "sums", "max_questions": 1}),
        (CHOOSE, {"subset": "words"}),
    ],
    ids=["chat", "preference", "labelled", "questions", "multiple_choice"],
)
def test_every_slot_reads_what_was_fetched_before_the_hub_went_away(
    script: str,
    fields: dict[str, Any],
    read: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"question": "who?", "choices": ["me", "you"], "answer": 1}
    if script == CHOOSE:
        monkeypatch.setitem(FILES, "words/train-0.jsonl", json.dumps(row).encode() + b"\n")
    first, count = read(script=script, **fields), len(Hub.requests)
    assert json.loads(first)
    assert read(script=script, cache="other", offline=True, **fields) == first
    assert len(Hub.requests) == count


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
