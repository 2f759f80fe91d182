"""Protocol of RL generators, and the resources they are built from."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from titanrun.distributed.working_weights import WorkingWeights
from titanrun.rl.generators.batch_invariant import BatchInvariantForward
from titanrun.rl.generators.config import SamplingConfig
from titanrun.rl.rollout_types import Completion, GenerateRequest


@dataclass(frozen=True, slots=True)
class GeneratorProcessConfig:
    """Settings of a generator in a separate process.

    Args:
        resolved_text: the text of the resolved recipe.
        dtype_name: compute dtype.
        max_tokens: longest conversation.
        log_file: file of the process's output.
        local_rank: index of this rank's accelerator on the machine.
    """

    resolved_text: str
    dtype_name: str
    max_tokens: int
    log_file: Path
    local_rank: int


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Weights by name, one at a time, and their version."""

    weights: Iterable[tuple[str, Tensor]]
    version: int


@dataclass(frozen=True, slots=True)
class WeightUpdates:
    """Newer weights that a generator may load while it generates.

    Args:
        take: returns weights that have come since the last call, None without any.
        resets_cache: whether keys and values of earlier tokens are computed again with them.
    """

    take: Callable[[], WeightUpdate | None]
    resets_cache: bool


@dataclass(slots=True)
class GenerationLog:
    """What a generator did since the last look, for a replay.

    Attributes:
        batches: prompts that were continued together: the version of the weights at the start,
            `requests`, and `loads`, which are weights that were loaded in between: after how many
            tokens, and their version.
    """

    batches: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, requests: Sequence[GenerateRequest], version: int, loads: Sequence[tuple[int, int]]
    ) -> None:
        """Add a batch that has ended."""
        self.batches.append(
            {"version": version, "requests": [asdict(each) for each in requests], "loads": loads}
        )

    def pop(self) -> list[dict[str, Any]]:
        """Return the batches since the last call, and forget them."""
        found, self.batches = self.batches, []
        return found


@dataclass(frozen=True, slots=True)
class GeneratorResources:
    """Resources that a generator is built from.

    Args:
        build_model: builds the generator's own model, of the policy's architecture and in the
            generator's dtype. Its argument is whether tensor-parallel ranks split it.
        sampling: how tokens are chosen.
        end_ids: end tokens.
        encode: converts text to ids, including the end token of a completion.
        build_working_weights: builds the weights that the model's passes compute with.
        process_config: settings of a generator in a separate process.
        batch_invariant_forward: computes each next token from all tokens before it, as a trainer
            does. None: use a KV cache.
        updates: newer weights. None: weights change between completions only.
        log: what is written down for a replay. None: nothing.
    """

    build_model: Callable[[bool], Any]
    sampling: SamplingConfig
    end_ids: frozenset[int]
    encode: Callable[[str], list[int]]
    build_working_weights: Callable[[nn.Module], WorkingWeights]
    process_config: GeneratorProcessConfig
    batch_invariant_forward: BatchInvariantForward | None = None
    updates: WeightUpdates | None = None
    log: GenerationLog | None = None


class Generator(Protocol):
    """Generator of completions with one version of the policy's weights."""

    version: int

    def generate(
        self, requests: Sequence[GenerateRequest], *, temperature: float | None = None
    ) -> list[Completion]:
        """Generate a completion of each prompt.

        Args:
            requests: the prompts.
            temperature: replaces the recipe's temperature.
        """

    def load(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Load new weights: all of them by name, one at a time."""

    def close(self) -> None:
        """Release all resources."""
