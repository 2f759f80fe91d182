"""Answers that are given, whatever the prompt and the weights."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from titanrun.rl.generators.config import StaticConfig
from titanrun.rl.generators.generator import Supplies
from titanrun.rl.samples import Completion, Request


class StaticGenerator:
    """Gives its replies in turn, by the seed of each request: the same request gets the same reply.

    Args:
        config: the replies.
        supplies: what makes ids of them.
    """

    def __init__(self, config: StaticConfig, *, supplies: Supplies) -> None:
        self.replies = [supplies.encode(text) for text in config.replies]
        self.version = -1

    def generate(
        self, requests: Sequence[Request], *, temperature: float | None = None
    ) -> list[Completion]:
        """The reply of each request. Nobody drew it: its log-probability is that of what is certain."""
        return [self._reply(request) for request in requests]

    def load(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Reads the weights, which change nothing."""
        for _ in weights:
            pass
        self.version = version

    def close(self) -> None:
        """Nothing is held open."""

    def _reply(self, request: Request) -> Completion:
        reply = self.replies[request.seed % len(self.replies)]
        tokens = reply[: request.max_new_tokens]
        return Completion(
            tokens,
            [0.0] * len(tokens),
            "stop" if len(tokens) == len(reply) else "length",
            self.version,
        )
