"""Conversations with models, each in a process that holds them, and what it has said so far."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.launch.detached_command import COMMAND
from titanrun.ui.refusal import Refusal
from titanrun.ui.run_details import to_plain_text

MAX_CHATS = 2
MAX_TEXT = 100_000
MAX_NEW_TOKENS = 32_768
END_SECONDS = 5.0
NUMBERS = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "seed": (0, 2**53),
    "max_new_tokens": (1, MAX_NEW_TOKENS),
}

FRACTIONS = ("temperature", "top_p")


@dataclass(slots=True)
class Chat:
    """One process with one or two models."""

    id: str
    shell: str
    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def read_events(self) -> None:
        """Keep what the process says, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = parse_json(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self.events.append(event)
        code = self.process.wait()
        self.events.append({"closed": code, "output": "".join(self.errors[-50:])})

    def read_errors(self) -> None:
        """Keep what the process prints beside its events."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(to_plain_text(line))

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request. Raise Refusal if the process has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise Refusal(409, "chat", "the conversation has ended") from None

    def close(self) -> None:
        """End the process, which stops when its input ends."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()


@dataclass(slots=True)
class Chats:
    """Conversations of one server; they end with it."""

    cwd: Path
    environment: Mapping[str, str]
    open_chats: dict[str, Chat] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def open(self, name: str, words: Sequence[str], shell: str) -> None:
        """Start a process; the oldest one ends if there are too many."""
        with self.lock:
            while len(self.open_chats) >= MAX_CHATS:
                self.open_chats.pop(next(iter(self.open_chats))).close()
            process = subprocess.Popen(
                [*COMMAND, *words],
                cwd=self.cwd,
                env=dict(self.environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
            chat = Chat(name, shell, process)
            self.open_chats[name] = chat
        for target in (chat.read_events, chat.read_errors):
            Thread(target=target, daemon=True).start()

    def find(self, name: str) -> Chat:
        """Return a conversation. Raise Refusal if there is none of this id."""
        chat = self.open_chats.get(name)
        if chat is None:
            raise Refusal(404, "chat", "there is no such conversation")
        return chat

    def describe(self, name: str) -> dict[str, Any]:
        """Return what was said so far, and the command line."""
        chat = self.find(name)
        events = list(chat.events)
        return {"id": name, "shell": chat.shell, "events": events, "cursor": str(len(events))}

    def send(self, name: str, request: Mapping[str, Any]) -> None:
        """Send a request of a page. Raise Refusal if it is none."""
        chat, checked = self.find(name), check_request(request)
        if "text" in checked:
            chat.events.append({"id": checked["id"], "said": checked["text"]})
        chat.send(checked)

    def close(self, name: str) -> None:
        """End a conversation."""
        with self.lock:
            self.find(name)
            chat = self.open_chats.pop(name)
        chat.close()

    def close_all(self) -> None:
        """End all conversations."""
        for name in list(self.open_chats):
            self.open_chats.pop(name).close()


def check_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known parts of a request. Raise Refusal if it is not one of a page."""
    text, system = request.get("text"), request.get("system")
    if isinstance(text, str) and type(request.get("id")) is int and len(text) <= MAX_TEXT:
        options = request.get("options")
        if not isinstance(options, list) or not 1 <= len(options) <= 2:
            raise Refusal(400, "usage", "'options' is missing")
        return {
            "id": request["id"],
            "text": text,
            "options": [check_options(one) for one in options],
        }
    if type(request.get("cancel")) is int:
        return {"cancel": request["cancel"]}
    if request.get("pick") in (1, 2):
        return {"pick": request["pick"]}
    if request.get("reset") is True and isinstance(system, str) and len(system) <= MAX_TEXT:
        return {"reset": True, "system": system}
    raise Refusal(400, "usage", "the request is not known")


def check_options(options: object) -> dict[str, float]:
    """Return how a model replies. Raise Refusal for values out of range."""
    given: Mapping[str, Any] = options if isinstance(options, dict) else {}
    found: dict[str, float] = {}
    for name, (low, high) in NUMBERS.items():
        value = given.get(name)
        is_number = type(value) is int or (type(value) is float and name in FRACTIONS)
        if value is None or not is_number or not low <= value <= high:
            raise Refusal(400, "usage", f"{name} is from {low} to {high}")
        found[name] = value
    return found
