"""A scripted model behind a server on a free port."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
import uvicorn
from torch import Tensor, nn

from titanrun.components.tokenizers.chat_template import load_chat_template
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.worker.serving.chat_model import ChatModel
from titanrun.worker.serving.generation_queue import GenerationQueue
from titanrun.worker.serving.openai_app import OpenAIApp
from titanrun.worker.serving.shared_weights import ModelCopies


class ScriptedModel(nn.Module):
    """A decoder that writes the tokens of a script, whatever the prompt is."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        self.unused = nn.Parameter(torch.zeros(1))
        self.vocab_size, self.script, self.delay = vocab_size, list[int](), 0.0
        self.position, self.prompt_end, self.steps = 0, 0, 0

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        time.sleep(self.delay)
        last = tokens.size(1) - 1 if positions is None else int(positions[0, -1])
        # a prompt, or the rest of one whose beginning is kept
        if positions is None or tokens.size(1) > 1 or last < self.prompt_end:
            self.prompt_end = last
        self.position = last - self.prompt_end
        self.steps += 1
        logits = torch.full((*tokens.shape, self.vocab_size), -30.0)
        logits[..., self.script[min(self.position, len(self.script) - 1)]] = 30.0
        return logits


@dataclass
class Server:
    """A server, and what its model says."""

    model: ScriptedModel
    chat_model: ChatModel
    url: str = ""

    def say(self, text: str, *, ends: bool = True) -> None:
        """Let the model say a text, and end its turn."""
        tokenizer = self.chat_model.tokenizer
        self.model.script = tokenizer.encode(text, add_bos=False, add_eos=ends)

    def ask(self, path: str, data: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON answer to a request, POST if it has data."""
        body = data if isinstance(data, bytes | None) else json.dumps(data).encode()
        try:
            with urlopen(Request(self.url + path, body, headers)) as answer:
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


Open = Callable[..., Server]


@contextmanager
def say_nothing(model: ScriptedModel) -> Iterator[None]:
    """Let the model end its turns at once within the block."""
    script, model.script = model.script, model.script[-1:]
    try:
        yield
    finally:
        model.script = script


@contextmanager
def run_server(app: OpenAIApp) -> Iterator[str]:
    config = uvicorn.Config(app.build(), port=0, log_level="error")
    socket = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
        socket.close()


@pytest.fixture
def open_server() -> Iterator[Open]:
    """Starts a server with a scripted model."""
    with ExitStack() as stack:

        def start(
            *,
            template: str | None = None,
            key: str | None = None,
            queue: GenerationQueue | None = None,
            origins: Sequence[str] = (),
            num_threads: int = 1,
            says: str = "hello",
        ) -> Server:
            tokenizer = build_tiny_tokenizer(TinyTokenizerConfig(chat_template=template))
            assert tokenizer.eos_id is not None
            model = ScriptedModel(tokenizer.vocab_size)
            # what copies of the model say too
            model.script = tokenizer.encode(says, add_bos=False, add_eos=True)
            ends = frozenset({tokenizer.eos_id})
            chat_template = load_chat_template(tokenizer)
            chat_model = ChatModel(
                *("mine", model, tokenizer, chat_template, ends, ends, 1000),
                copies=ModelCopies(model, num_threads),
            )
            base = replace(chat_model, name="mine-base", open_weights=say_nothing)
            queue = GenerationQueue(32, num_threads) if queue is None else queue
            app = OpenAIApp([chat_model, base], queue, key, origins)
            return Server(model, chat_model, stack.enter_context(run_server(app)))

        yield start
