"""Share of labels that are the likeliest tokens, from the logits that a loss is computed from.

Shapes: X tokens of any number of dims, V vocabulary or this rank's part of it.
"""

import torch
from torch import Tensor

from titanrun.distributed.split_logits import VocabPart
from titanrun.distributed.vocab_parallel import find_top_tokens, reduce_top_tokens


class TokenAccuracy:
    """Count of labels that are the likeliest tokens, and of all labels.

    Args:
        device: Device of the logits.
    """

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)

    def add(
        self, logits_XV: Tensor, labels_X: Tensor, counts_X: Tensor, part: VocabPart | None = None
    ) -> None:
        """Add the tokens whose `counts_X` is true.

        Collective over tp if the vocabulary is split.

        Args:
            logits_XV: The logits, as a DTensor if the vocabulary is sharded.
            labels_X: Labels of the tokens.
            counts_X: Whether each label counts.
            part: The part of the vocabulary in plain logits. None: all of it.
        """
        found_X = (
            find_top_tokens(logits_XV)
            if part is None
            else reduce_top_tokens(logits_XV, start=part.start, group=part.group)
        )
        self.counts += torch.stack([((found_X == labels_X) & counts_X).sum(), counts_X.sum()])
