"""yaml-language-server, which VS Code, Neovim and others use, with the schema that the first line
of a recipe names."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEBUG = ROOT / "recipes" / "llama3_debug.yaml"
SETTINGS = {"validate": True, "completion": True, "schemaStore": {"enable": False}}

pytestmark = pytest.mark.editors


class Server:
    """One running language server, spoken to as an editor speaks to it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.number = 0
        self.request(
            "initialize",
            {
                "processId": None,
                "rootUri": None,
                "capabilities": {"workspace": {"configuration": True}},
            },
        )
        self.send({"method": "initialized", "params": {}})

    def send(self, message: dict[str, Any]) -> None:
        """Write one message."""
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Read one message; questions about settings are answered on the way."""
        assert self.process.stdout is not None
        length = 0
        while line := self.process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the server ended"
        message: dict[str, Any] = json.loads(self.process.stdout.read(length))
        if message.get("method") == "workspace/configuration":
            sections = [item.get("section") for item in message["params"]["items"]]
            self.send(
                {
                    "id": message["id"],
                    "result": [SETTINGS if section == "yaml" else None for section in sections],
                }
            )
            return self.receive()
        return message

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """The answer to one question."""
        self.number += 1
        number = f"question-{self.number}"
        self.send({"id": number, "method": method, "params": params})
        while (message := self.receive()).get("id") != number:
            pass
        return message["result"]

    def open(self, file: Path) -> list[dict[str, Any]]:
        """What the server says about a file, after it was opened."""
        document = {
            "uri": file.as_uri(),
            "languageId": "yaml",
            "version": 1,
            "text": file.read_text(encoding="utf-8"),
        }
        self.send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        while (message := self.receive()).get(
            "method"
        ) != "textDocument/publishDiagnostics" or message["params"]["uri"] != file.as_uri():
            pass
        diagnostics: list[dict[str, Any]] = message["params"]["diagnostics"]
        return diagnostics

    def offers(self, file: Path, line: int, character: int) -> list[str]:
        """What is completed at a place, counted from 0."""
        place = {
            "textDocument": {"uri": file.as_uri()},
            "position": {"line": line, "character": character},
        }
        return [item["label"] for item in self.request("textDocument/completion", place)["items"]]


@pytest.fixture
def server(tools: Path) -> Iterator[Server]:
    with subprocess.Popen(
        [tools / "yaml-language-server", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield Server(process)
        process.kill()


def recipe(folder: Path, *changes: tuple[str, str]) -> Path:
    """The debug recipe with changes, in a folder from which the schema is named by its whole
    path."""
    text = DEBUG.read_text(encoding="utf-8").replace("../schemas", str(ROOT / "schemas"))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    file = folder / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def lines_of(file: Path, word: str) -> list[int]:
    return [
        number
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines())
        if word in line
    ]


def test_valid_recipes_are_clean(server: Server) -> None:
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        assert server.open(path) == [], path.name


def test_an_unknown_key_and_a_wrong_name_are_shown_on_their_lines(
    server: Server, tmp_path: Path
) -> None:
    file = recipe(tmp_path, ("name: adamw", "name: adamx"), ("decay_ratio", "decay_ration"))
    found = {
        diagnostic["range"]["start"]["line"]: diagnostic["message"]
        for diagnostic in server.open(file)
    }
    assert sorted(found) == sorted(lines_of(file, "adamx") + lines_of(file, "decay_ration"))
    assert "adamw" in found[lines_of(file, "adamx")[0]]
    assert "decay_ration" in found[lines_of(file, "decay_ration")[0]]


def test_a_value_of_a_wrong_type_and_an_unknown_section_are_shown(
    server: Server, tmp_path: Path
) -> None:
    file = recipe(tmp_path, ("steps: 80", "steps: many"), ("checkpoint:", "checkpoints:"))
    shown = {diagnostic["range"]["start"]["line"] for diagnostic in server.open(file)}
    assert shown == {lines_of(file, "steps: many")[0], lines_of(file, "checkpoints:")[0]}


def test_names_of_components_and_keys_are_completed(server: Server, tmp_path: Path) -> None:
    file = recipe(tmp_path, ("name: adamw", "name: "), ("warmup_steps: 8", "w"))
    server.open(file)
    (line,) = [
        number for number in lines_of(file, "  name: ") if number > lines_of(file, "optimizer:")[0]
    ]
    assert "adamw" in server.offers(file, line, len("  name: "))
    assert "warmup_steps" in server.offers(file, lines_of(file, "lr_scheduler:")[0] + 1, len("  w"))


def test_flavors_are_offered_and_references_are_accepted(server: Server, tmp_path: Path) -> None:
    """Row C16 of the defect list."""
    file = recipe(
        tmp_path, ("steps: 80", "steps: ${env:STEPS}"), ("flavor: debugmodel", "flavor: ")
    )
    steps, flavor = lines_of(file, "env:STEPS")[0], lines_of(file, "flavor:")[0]
    assert [found["range"]["start"]["line"] for found in server.open(file)] in ([], [flavor])
    assert {"8B", "405B", "debugmodel"} <= set(server.offers(file, flavor, len("  flavor: ")))
    place = {"textDocument": {"uri": file.as_uri()}, "position": {"line": steps, "character": 3}}
    shown = server.request("textDocument/hover", place)["contents"]["value"]
    assert "steps" in shown.splitlines()[0]
    assert "titanrun recipe" not in shown
    assert "Default: auto" in shown
