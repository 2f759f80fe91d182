"""`python -m titanrun.worker.commands.chat_requests`: replies for a program, piece by piece.

For `titanrun chat --requests`. The job is a JSON object in the file whose descriptor is the first
argument. Each line of stdin is a request, each line of stdout an event, both JSON objects.
Requests:

- `{"id", "text", "options"}`: a message, with how each model replies: `temperature`, `top_p`,
  `max_new_tokens` and `seed`;
- `{"cancel": id}`: end its replies, also while they are generated;
- `{"pick": 1}`: append the better of the last two replies to picks.jsonl, and go on from it;
- `{"reset": true, "system": text}`: forget the conversation, with another system message, or none.

Events: `{"ready": names}`, `{"id", "model", "text"}` with whole characters, `{"id", "model",
"done": {"tokens", "seconds", "reason"}}` where the reason is `stop`, `length` or `cancelled`,
`{"id", "end": true}`, `{"picked": file}`, `{"reset": true}`, and `{"id", "error": message}`.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.worker.commands.chat import open_session
from titanrun.worker.serving.chat_session import SETTINGS, ChatSession
from titanrun.worker.worker_failures import classify_failure

Send = Callable[[Mapping[str, Any]], None]


def main() -> int:
    """Answer requests until stdin ends, and return the exit code."""
    with os.fdopen(int(sys.argv[1])) as file:
        job = json.load(file)
    try:
        session = open_session(job)
        RequestLoop(session, print_event).run(sys.stdin)
    except ProblemsFound as error:
        sys.stderr.write(render_problems_as_text(error.problems))
        return error.exit_code
    except (OSError, MemoryError) as error:
        failure = classify_failure(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.exit_code
    except KeyboardInterrupt:
        pass
    return 0


def print_event(event: Mapping[str, Any]) -> None:
    """Write an event as a line."""
    print(json.dumps(event, ensure_ascii=False), flush=True)


@dataclass(slots=True)
class RequestLoop:
    """Follows requests one after another; only a cancellation does not wait.

    Args:
        session: The conversation.
        send: Takes the events.
    """

    session: ChatSession
    send: Send
    waiting: Queue[dict[str, Any] | None] = field(default_factory=Queue)
    cancelled: set[Any] = field(default_factory=set)
    has_ended: bool = False

    def run(self, lines: Iterable[str]) -> None:
        """Follow the requests of all lines."""
        threading.Thread(target=self.read, args=(lines,), daemon=True).start()
        self.answer()

    def answer(self) -> None:
        """Follow the requests that were read, until there are no more."""
        self.send({"ready": [model.name for model in self.session.models]})
        while (request := self.waiting.get()) is not None:
            try:
                self.follow(request)
            except (ProblemsFound, OSError) as error:
                self.send({"id": request.get("id"), "error": str(error)})

    def read(self, lines: Iterable[str]) -> None:
        """Read requests, and note which are cancelled. Their end cancels all."""
        for line in lines:
            try:
                request = parse_json(line)
            except ValueError:
                request = None
            if not isinstance(request, dict):
                self.waiting.put({"unknown": True})
            elif "cancel" in request:
                self.cancelled.add(request["cancel"])
            else:
                self.waiting.put(request)
        self.has_ended = True
        self.waiting.put(None)

    def follow(self, request: Mapping[str, Any]) -> None:
        """Follow one request.

        Raises:
            ProblemsFound: It cannot be followed.
        """
        if isinstance(request.get("text"), str):
            self.ask(request)
        elif "pick" in request:
            self.send({"picked": str(self.session.pick(str(request["pick"])))})
        elif request.get("reset") is True:
            self.session.system = request.get("system") or None
            self.session.reset()
            self.send({"reset": True})
        else:
            raise problem_error("usage", "the request is not known")

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send the replies to a message, piece by piece."""
        name = request.get("id")
        session = self.session
        given = request.get("options") or [{}] * len(session.models)
        if not isinstance(given, list) or len(given) != len(session.models):
            raise problem_error("usage", "options are a list with one entry for each model")
        options = []
        for one in given:
            for key in SETTINGS:
                if isinstance(one, dict) and key in one:
                    session.set_option(key, str(one[key]))
            options.append(session.options)
        answers = session.ask(
            str(request["text"]),
            options=options,
            on_text=lambda model, text: self.send({"id": name, "model": model, "text": text}),
            is_cancelled=lambda: self.has_ended or name in self.cancelled,
        )
        for model, answer in enumerate(answers):
            done = {
                "tokens": len(answer.reply.tokens),
                "seconds": answer.seconds,
                "reason": answer.reply.finish,
            }
            self.send({"id": name, "model": model, "done": done})
        self.send({"id": name, "end": True})


if __name__ == "__main__":
    sys.exit(main())
