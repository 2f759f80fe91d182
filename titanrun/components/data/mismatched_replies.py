"""Prompts with the replies to other prompts, for the divergence that KTO estimates.

Shapes: B sequences, T tokens of a sequence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from titanrun.components.data.token_batch import TokenBatch


def build_mismatched_batches(
    batches: Sequence[TokenBatch], *, group: ProcessGroup | None, device: torch.device
) -> list[TokenBatch]:
    """Return the batches with each reply replaced by that of the sequence before it.

    The sequence before the first one is the last of the global batch, so that the pairing does not
    depend on the ranks. Only labels in the loss are replies; sequences without one are left out. A
    reply that does not fit is cut at the end of the sequence. Collective over `group`.

    Args:
        batches: Consecutive batches of this rank, one conversation per sequence.
        group: Ranks in the order of their shares of the global batch, None for a single rank.
        device: Device of the collective.
    """
    width = batches[0].tokens.size(1)
    replies = [reply for batch in batches for reply in iter_replies(batch)]
    last = next((reply for reply in reversed(replies) if reply is not None), None)
    previous = find_previous_reply(last, width, group=group, device=device)
    found = []
    for batch in batches:
        mismatched = replace(
            batch,
            tokens=batch.tokens.clone(),
            labels=batch.labels.clone(),
            loss_mask=torch.zeros_like(batch.loss_mask),
            extra={},
            document_ids=None,
            positions=None if batch.positions is None else batch.positions.clone(),
        )
        for row, reply in enumerate(iter_replies(batch)):
            if reply is not None:
                assert previous is not None, "there is at least this reply"
                start = int(batch.label_mask()[row].int().argmax())
                replace_reply(mismatched, row, start, previous)
                previous = reply
        found.append(mismatched)
    return found


def iter_replies(batch: TokenBatch) -> Iterator[Tensor | None]:
    """Yield the tokens of each sequence's reply, None for a sequence without one."""
    valid_BT = batch.label_mask().cpu()
    for labels_T, valid_T in zip(batch.labels.cpu(), valid_BT, strict=True):
        yield labels_T[valid_T] if bool(valid_T.any()) else None


def replace_reply(batch: TokenBatch, row: int, start: int, reply: Tensor) -> None:
    """Write a reply after token `start` of a sequence, and padding after it."""
    width = batch.tokens.size(1)
    reply = reply[: width - start].to(batch.tokens.device)
    end = start + len(reply)
    batch.tokens[row, start + 1 :] = 0
    batch.tokens[row, start + 1 : end + 1] = reply[: width - start - 1]
    batch.labels[row, start:end] = reply
    batch.loss_mask[row, start:end] = True
    if batch.positions is not None:
        columns_T = torch.arange(width, device=batch.tokens.device)
        # padding restarts at 0: it is its own document
        batch.positions[row] = torch.where(columns_T <= end, columns_T, columns_T - end - 1)


def find_previous_reply(
    last: Tensor | None, width: int, *, group: ProcessGroup | None, device: torch.device
) -> Tensor | None:
    """Return the last reply of the ranks before this one, from the end for the first rank."""
    if group is None:
        return last
    message = torch.zeros(width + 1, dtype=torch.int64)
    if last is not None:
        message[0] = len(last)
        message[1 : 1 + len(last)] = last
    received = [torch.empty_like(message, device=device) for _ in range(group.size())]
    dist.all_gather(received, message.to(device), group=group)
    # the ranks before this one, the nearest first, and this one as the last resort
    for back in range(1, group.size() + 1):
        found = received[(group.rank() - back) % group.size()].cpu()
        if found[0] > 0:
            return found[1 : 1 + int(found[0])]
    return None
