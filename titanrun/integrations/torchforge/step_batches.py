"""Conversion of an actor's step inputs and loss to engine batches and an engine loss.

Shapes: B sequences, T tokens per sequence, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error

UserLoss = Callable[..., Tensor]
INPUT_NAMES = ("tokens", "positions")


@dataclass(frozen=True, slots=True)
class StepShape:
    """Limits of a step's input.

    Args:
        batch_size: sequences of a rank.
        local_batch_size: sequences of one pass.
        seq_len: tokens per sequence.
        vocab_size: token ids of the model.
        uses_context_parallel: whether ranks share sequences.
    """

    batch_size: int
    local_batch_size: int
    seq_len: int
    vocab_size: int
    uses_context_parallel: bool


def select_for_rank(name: str, per_rank: Sequence[Any], *, dp_rank: int, dp_size: int) -> Any:
    """Return this rank's entry of a list with one entry per data-parallel rank."""
    if isinstance(per_rank, Mapping | Tensor) or not isinstance(per_rank, Sequence):
        raise build_step_input_error(
            f"{name} must be a list with one entry per data-parallel rank ({dp_size})"
        )
    if len(per_rank) != dp_size:
        raise build_step_input_error(
            f"{name} has {pluralize(len(per_rank), 'entry', 'entries')} "
            f"for {pluralize(dp_size, 'data-parallel rank')}"
        )
    return per_rank[dp_rank]


def build_step_input_error(message: str, hint: str | None = None) -> ProblemsFound:
    """Build the problem of a step's input."""
    return problem_error("data", message, hint=hint)


def build_step_batch(
    inputs: Mapping[str, Any], targets: Mapping[str, Any], shape: StepShape
) -> tuple[TokenBatch, dict[str, Any]]:
    """Return a rank's batch with its per-sequence targets, and the shared targets.

    Targets without one entry per sequence are shared by all sequences.

    Raises:
        ProblemsFound: they do not fit `shape`.
    """
    for name, given in (("inputs", inputs), ("targets", targets)):
        if not isinstance(given, Mapping):
            raise build_step_input_error(
                f"{name} of a rank is {type(given).__name__}, not a mapping"
            )
    unknown = set(inputs).difference(INPUT_NAMES)
    if unknown or "tokens" not in inputs:
        raise build_step_input_error(
            f"inputs has {', '.join(sorted(inputs)) or 'nothing'}",
            hint="pass inputs={'tokens': ids}, and optionally 'positions'",
        )
    tokens_BT = inputs["tokens"]
    check_step_token_ids("inputs['tokens']", tokens_BT, shape.vocab_size)
    check_batch_shape(tokens_BT, shape)
    rows, length = tokens_BT.shape
    per_sequence = {
        name: value
        for name, value in targets.items()
        if isinstance(value, Tensor) and value.ndim and len(value) == rows
    }
    if shape.uses_context_parallel and any(
        value.shape[:2] != (rows, length) for value in per_sequence.values()
    ):
        raise build_step_input_error(
            f"not all targets have the shape of tokens, [{rows}, {length}]",
            hint="with context_parallel_degree above 1 a rank has a part of each sequence: "
            "pass a value for each token",
        )
    shared = {name: value for name, value in targets.items() if name not in per_sequence}
    counted_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    return TokenBatch(
        tokens_BT, tokens_BT, inputs.get("positions"), counted_BT, per_sequence
    ), shared


def check_step_token_ids(name: str, ids_BT: object, vocab_size: int) -> None:
    """Check that a value is a tensor [B, T] of ids that the model knows.

    Ids on a device are not checked.

    Raises:
        ProblemsFound: it is not.
    """
    if not isinstance(ids_BT, Tensor) or ids_BT.ndim != 2 or ids_BT.is_floating_point():
        raise build_step_input_error(f"{name} must be an integer tensor [B, T]")
    if ids_BT.device.type == "cpu" and ids_BT.numel():
        for token_id in (int(ids_BT.max()), int(ids_BT.min())):
            if not 0 <= token_id < vocab_size:
                raise build_step_input_error(
                    f"{name} has id {token_id}, outside the model's vocabulary of {vocab_size}"
                )


def check_batch_shape(tokens_BT: Tensor, shape: StepShape) -> None:
    """Check that the tokens fit the configured sizes.

    Raises:
        ProblemsFound: they do not.
    """
    rows, length = tokens_BT.shape
    if not 0 < rows <= shape.batch_size:
        message = (
            f"inputs['tokens'] has {rows:,} sequences, "
            f"but a step takes at most {shape.batch_size} per rank"
        )
        raise build_step_input_error(
            message, hint="see training.local_batch_size and training.global_batch_size"
        )
    if rows % shape.local_batch_size and rows > shape.local_batch_size:
        message = (
            f"inputs['tokens'] has {rows:,} sequences, "
            f"not divisible by local_batch_size {shape.local_batch_size}"
        )
        raise build_step_input_error(message, hint="see training.local_batch_size")
    if length > shape.seq_len:
        raise build_step_input_error(
            f"inputs['tokens'] has sequences of {length:,} tokens, longer than {shape.seq_len:,}",
            hint="see training.seq_len",
        )


def gather_logits(logits_BTV: Tensor) -> Tensor:
    """Return logits of the full vocabulary, gathered from tensor-parallel ranks if sharded."""
    gather = getattr(logits_BTV, "full_tensor", None)
    return logits_BTV if gather is None else gather()


def build_engine_loss(
    loss: UserLoss, shared_targets: Mapping[str, Any]
) -> Callable[[Tensor, TokenBatch], Tensor]:
    """Wrap the caller's loss(logits, **targets) as an engine loss.

    It gets the logits and the targets of some sequences.
    """

    def compute_loss(logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        found = loss(gather_logits(logits_BTV), **batch.extra, **shared_targets)
        if not isinstance(found, Tensor) or found.numel() != 1:
            shape = (
                f"a tensor of shape {list(found.shape)}"
                if isinstance(found, Tensor)
                else type(found).__name__
            )
            raise build_step_input_error(
                f"loss returns {shape}, but must return a scalar",
                hint="pass loss(logits, **targets)",
            )
        return found.reshape(())

    return compute_loss
