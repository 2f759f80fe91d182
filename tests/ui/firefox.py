"""Firefox of this machine, driven by Marionette, the protocol that Firefox itself brings along."""

import base64
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

START_SECONDS = 60
# no questions, no requests to Mozilla, and no transitions: axe would measure colors halfway
PREFERENCES = {
    "ui.prefersReducedMotion": 1,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.update.auto": False,
}


class Firefox:
    """One window of a headless Firefox with a fresh profile."""

    def __init__(self, folder: Path, *, is_dark: bool = False) -> None:
        program = shutil.which("firefox-esr") or shutil.which("firefox")
        assert program is not None, "apt-get install -y --no-install-recommends firefox-esr"
        profile = folder / f"firefox-{'dark' if is_dark else 'light'}"
        profile.mkdir()
        port = find_free_port()
        scheme = {"layout.css.prefers-color-scheme.content-override": 0 if is_dark else 1}
        preferences = {**PREFERENCES, "marionette.port": port, **scheme}
        (profile / "user.js").write_text(
            "".join(
                f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
                for name, value in preferences.items()
            )
        )
        self.process = subprocess.Popen(
            [program, "--headless", "--marionette", "--no-remote", "--profile", str(profile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        self.socket = connect(port)
        self.buffer = b""
        self.number = 0
        self.receive()
        self.ask("WebDriver:NewSession", {})

    def receive(self) -> Any:
        """Read one message: its length, a colon, JSON."""
        while b":" not in self.buffer:
            self.buffer += self.receive_some()
        length, _, rest = self.buffer.partition(b":")
        while len(rest) < int(length):
            rest += self.receive_some()
        self.buffer = rest[int(length) :]
        return json.loads(rest[: int(length)])

    def receive_some(self) -> bytes:
        some = self.socket.recv(2**16)
        assert some, "Firefox has ended"
        return some

    def ask(self, command: str, parameters: dict[str, Any]) -> Any:
        """Send a command and return its answer; fail for an error."""
        error, answer = self.try_to_ask(command, parameters)
        assert error is None, error
        return answer

    def try_to_ask(self, command: str, parameters: dict[str, Any]) -> tuple[Any, Any]:
        """Send a command and return its error, None without one, and its answer."""
        self.number += 1
        message = json.dumps([0, self.number, command, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, answer = self.receive()
        return error, answer

    def ask_about(self, command: str, selector: str, **parameters: Any) -> None:
        """Send a command about an element, again if the page draws it anew meanwhile."""
        end = time.monotonic() + 20
        while True:
            error, _ = self.try_to_ask(command, {"id": self.find(selector), **parameters})
            if error is None:
                return
            is_stale = error["error"] == "stale element reference"
            assert is_stale and time.monotonic() < end, error

    def go(self, url: str) -> None:
        """Open an address and wait until it is loaded."""
        self.ask("WebDriver:Navigate", {"url": url})

    def run(self, script: str) -> Any:
        """Run a function body in the page and return its result; await what it returns."""
        words = "const done = arguments[arguments.length - 1];"
        text = f"{words} (async () => {{ {script} }})().then(done, error => done(String(error)));"
        return self.ask("WebDriver:ExecuteAsyncScript", {"script": text, "args": []})["value"]

    def wait_for(self, expression: str, seconds: float = 20) -> None:
        """Wait until an expression of the page is true."""
        end = time.monotonic() + seconds
        # not the value: an element may be replaced before it is sent
        while not self.run(f"return Boolean({expression})"):
            assert time.monotonic() < end, expression
            time.sleep(0.1)

    def find(self, selector: str) -> str:
        words = {"using": "css selector", "value": selector}
        [identifier] = self.ask("WebDriver:FindElement", words)["value"].values()
        return str(identifier)

    def click(self, selector: str) -> None:
        """Click where a mouse would."""
        self.ask_about("WebDriver:ElementClick", selector)

    def type(self, selector: str, text: str) -> None:
        """Press keys."""
        self.ask_about("WebDriver:ElementSendKeys", selector, text=text)

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page a width; no window is narrower than 500 pixels."""
        self.ask("WebDriver:SetWindowRect", {"width": width, "height": height})
        inner = self.run("return innerWidth")
        self.ask("WebDriver:SetWindowRect", {"width": 2 * width - inner, "height": height})

    def take_picture(self, path: Path) -> None:
        """Write the whole page as PNG."""
        found = self.ask("WebDriver:TakeScreenshot", {"full": True, "hash": False})
        path.write_bytes(base64.b64decode(found["value"]))

    def close(self) -> None:
        self.ask("Marionette:Quit", {})
        self.socket.close()
        self.process.wait(30)


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def connect(port: int) -> socket.socket:
    """Connect to a Firefox that is starting."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except ConnectionRefusedError:
            assert time.monotonic() < end, "Firefox does not start"
            time.sleep(0.2)
