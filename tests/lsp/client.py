"""An editor's side of the protocol: raw JSON-RPC over the pipes of `titanrun lsp`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

Place = tuple[int, int]


class Client:
    """One session with a running server."""

    def __init__(
        self,
        encodings: list[str] | None = None,
        options: dict[str, Any] | None = None,
        *,
        initialize: bool = True,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "titanrun", "lsp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.number = 0
        self.version = 0
        self.diagnostics: dict[str, list[dict[str, Any]]] = {}
        if initialize:
            self.initialize(encodings, options)

    def initialize(
        self, encodings: list[str] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin the session."""
        general = {} if encodings is None else {"positionEncodings": encodings}
        answer = self.request(
            "initialize",
            {
                "processId": None,
                "rootUri": None,
                "capabilities": {"general": general},
                "initializationOptions": options,
            },
        )
        self.capabilities = answer["capabilities"]
        self.notify("initialized", {})

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def write(self, body: bytes) -> None:
        """Send what need not be a message."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.send({"method": method, "params": params})

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        length = 0
        while line := self.process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the server ended"
        message: dict[str, Any] = json.loads(self.process.stdout.read(length))
        if message.get("method") == "textDocument/publishDiagnostics":
            params = message["params"]
            self.diagnostics[params["uri"]] = params["diagnostics"]
        return message

    def request(self, method: str, params: dict[str, Any] | None) -> Any:
        message = self.exchange(method, params)
        assert "error" not in message, message["error"]
        return message["result"]

    def find_error(self, method: str, params: dict[str, Any] | None) -> int:
        """The code of the error that a request gets."""
        message = self.exchange(method, params)
        assert "result" not in message, message
        code: int = message["error"]["code"]
        return code

    def exchange(self, method: str, params: dict[str, Any] | None) -> dict[str, Any]:
        """The whole answer to a request."""
        self.number += 1
        number = self.number
        self.send({"id": number, "method": method, "params": params})
        while (message := self.receive()).get("id") != number:
            pass
        return message

    def wait_for(self, file: Path, version: int | None = None) -> list[dict[str, Any]]:
        """The diagnostics of a file that the server publishes next."""
        while True:
            message = self.receive()
            params = message.get("params", {})
            if (
                message.get("method") == "textDocument/publishDiagnostics"
                and params["uri"] == file.as_uri()
                and version in (None, params.get("version"))
            ):
                found: list[dict[str, Any]] = params["diagnostics"]
                return found

    def open(self, file: Path, text: str | None = None) -> list[dict[str, Any]]:
        """What the server says about a file after it was opened."""
        self.version += 1
        document = {
            "uri": file.as_uri(),
            "languageId": "yaml",
            "version": self.version,
            "text": file.read_text(encoding="utf-8") if text is None else text,
        }
        self.notify("textDocument/didOpen", {"textDocument": document})
        return self.wait_for(file, self.version)

    def change(self, file: Path, text: str) -> int:
        """Replace the text of an open file; the version of the new one."""
        self.version += 1
        self.notify(
            "textDocument/didChange",
            {
                "textDocument": {"uri": file.as_uri(), "version": self.version},
                "contentChanges": [{"text": text}],
            },
        )
        return self.version

    def ask(self, method: str, file: Path, place: Place) -> Any:
        """The answer to a question about a place, counted from 0."""
        return self.request(f"textDocument/{method}", self.at(file, place))

    @staticmethod
    def at(file: Path, place: Place) -> dict[str, Any]:
        """The parameters of a question about a place."""
        return {
            "textDocument": {"uri": file.as_uri()},
            "position": {"line": place[0], "character": place[1]},
        }

    def labels(self, file: Path, place: Place) -> list[str]:
        """What may be written at a place."""
        return [item["label"] for item in self.ask("completion", file, place)["items"]]

    def actions(self, file: Path, line: int, only: list[str] | None = None) -> Any:
        """The actions that are offered on a line."""
        where = {"start": {"line": line, "character": 0}, "end": {"line": line, "character": 999}}
        return self.request(
            "textDocument/codeAction",
            {
                "textDocument": {"uri": file.as_uri()},
                "range": where,
                "context": {"diagnostics": [], **({} if only is None else {"only": only})},
            },
        )

    def close(self) -> int:
        """End the session; the exit code of the server."""
        self.request("shutdown", None)
        return self.leave()

    def leave(self) -> int:
        """Send `exit`; the exit code of the server."""
        self.send({"method": "exit"})
        code = self.process.wait(timeout=30)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return code
