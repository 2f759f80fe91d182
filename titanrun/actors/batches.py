"""What a caller of an actor gives for a step, as batches of the engine; and its loss, as a loss of the engine.

Shapes: B rows, T tokens of a row, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from titanrun.components.data.batch import TokenBatch
from titanrun.config.problems import ProblemsFound, fail

CallersLoss = Callable[..., Tensor]
INPUTS = ("tokens", "positions")


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step may be: rows of a rank and of one pass, tokens of a row, ids of the model, and whether ranks share the rows."""

    rows: int
    rows_per_pass: int
    seq_len: int
    vocab_size: int
    shares_rows: bool


def picked(name: str, given: Sequence[Any], *, rank: int, count: int) -> Any:
    """This rank's of what is given for each data-parallel rank."""
    if isinstance(given, Mapping | Tensor) or not isinstance(given, Sequence):
        raise wrong(f"{name} is no list with one entry for each of the {count} data-parallel ranks")
    if len(given) != count:
        raise wrong(
            f"{name} has {len(given)} entries, and there {'is 1 data-parallel rank' if count == 1 else f'are {count} ranks'}"
        )
    return given[rank]


def wrong(message: str, help: str | None = None) -> ProblemsFound:
    """The problem of what a caller gave for a step."""
    return fail("data", message, help=help)


def batch_of(
    inputs: Mapping[str, Any], targets: Mapping[str, Any], shape: StepShape
) -> tuple[TokenBatch, dict[str, Any]]:
    """The batch of a rank, in which targets with a row for each of its rows travel, and the targets that are the same for all rows.

    Raises ProblemsFound where they are not what `shape` says.
    """
    for name, given in (("inputs", inputs), ("targets", targets)):
        if not isinstance(given, Mapping):
            raise wrong(f"{name} of a rank is {type(given).__name__}, which is no mapping")
    unknown = set(inputs).difference(INPUTS)
    if unknown or "tokens" not in inputs:
        raise wrong(
            f"inputs has {', '.join(sorted(inputs)) or 'nothing'}",
            help="write inputs={'tokens': ids}, and 'positions' if you like",
        )
    tokens_BT = inputs["tokens"]
    refuse_ids("inputs['tokens']", tokens_BT, shape.vocab_size)
    refuse_shape(tokens_BT, shape)
    rows, length = tokens_BT.shape
    by_row = {
        name: value
        for name, value in targets.items()
        if isinstance(value, Tensor) and value.ndim and len(value) == rows
    }
    if shape.shares_rows and any(value.shape[:2] != (rows, length) for value in by_row.values()):
        raise wrong(
            f"targets are not all [{rows}, {length}], as tokens are",
            help="with context_parallel_degree above 1 a rank sees a part of each row: give a value for each token",
        )
    everywhere = {name: value for name, value in targets.items() if name not in by_row}
    counted_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    return TokenBatch(tokens_BT, tokens_BT, inputs.get("positions"), counted_BT, by_row), everywhere


def refuse_ids(name: str, ids_BT: object, vocab_size: int) -> None:
    """Raises ProblemsFound for what is no tensor [B, T] of ids that the model knows; ids on a device are not looked at."""
    if not isinstance(ids_BT, Tensor) or ids_BT.ndim != 2 or ids_BT.is_floating_point():
        raise wrong(f"{name} is no tensor of rows by tokens")
    if ids_BT.device.type == "cpu" and ids_BT.numel():
        for id in (int(ids_BT.max()), int(ids_BT.min())):
            if not 0 <= id < vocab_size:
                raise wrong(f"{name} holds id {id}, outside the model's vocabulary of {vocab_size}")


def refuse_shape(tokens_BT: Tensor, shape: StepShape) -> None:
    """Raises ProblemsFound for rows that the fields did not announce."""
    rows, length = tokens_BT.shape
    if not 0 < rows <= shape.rows:
        message = f"inputs['tokens'] has {rows} rows, and a step takes {shape.rows} of a rank"
        raise wrong(message, help="see training.local_batch_size and training.global_batch_size")
    if rows % shape.rows_per_pass and rows > shape.rows_per_pass:
        message = f"inputs['tokens'] has {rows} rows, which passes of {shape.rows_per_pass} rows do not divide"
        raise wrong(message, help="see training.local_batch_size")
    if length > shape.seq_len:
        raise wrong(
            f"inputs['tokens'] has rows of {length} tokens, longer than {shape.seq_len}",
            help="see training.seq_len",
        )


def whole(logits_BTV: Tensor) -> Tensor:
    """Logits of the whole vocabulary, which tensor-parallel ranks may have split."""
    gather = getattr(logits_BTV, "full_tensor", None)
    return logits_BTV if gather is None else gather()


def engine_loss(
    loss: CallersLoss, everywhere: Mapping[str, Any]
) -> Callable[[Tensor, TokenBatch], Tensor]:
    """The caller's loss(logits, **targets) as the engine calls it: on the logits of some rows and the targets of these."""

    def measured(logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        found = loss(whole(logits_BTV), **batch.extra, **everywhere)
        if not isinstance(found, Tensor) or found.numel() != 1:
            shape = (
                f"a tensor of shape {list(found.shape)}"
                if isinstance(found, Tensor)
                else type(found).__name__
            )
            raise wrong(
                f"loss gives {shape}, and a step learns from one number",
                help="give loss(logits, **targets)",
            )
        return found.reshape(())

    return measured
