"""Generator of fixed replies, independent of prompts and weights."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from titanrun.rl.generators.config import StaticConfig
from titanrun.rl.generators.generator_protocol import GeneratorResources
from titanrun.rl.rollout_types import Completion, GenerateRequest


class StaticGenerator:
    """Generator that selects a reply by the seed of each request.

    The same request gets the same reply.

    Args:
        config: the replies.
        resources: encodes the replies.
    """

    def __init__(self, config: StaticConfig, *, resources: GeneratorResources) -> None:
        self.replies = [resources.encode(text) for text in config.replies]
        self.version = -1

    def generate(
        self, requests: Sequence[GenerateRequest], *, temperature: float | None = None
    ) -> list[Completion]:
        """Return the reply of each request, with log-probability 0 because it was not sampled."""
        return [self._select_reply(request) for request in requests]

    def load(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Read all weights and ignore them."""
        for _ in weights:
            pass
        self.version = version

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _select_reply(self, request: GenerateRequest) -> Completion:
        reply = self.replies[request.seed % len(self.replies)]
        tokens = reply[: request.max_new_tokens]
        return Completion(
            tokens,
            [0.0] * len(tokens),
            "stop" if len(tokens) == len(reply) else "length",
            self.version,
        )
