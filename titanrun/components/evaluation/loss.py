"""Loss and perplexity on a dataset."""

import math

import numpy as np

from titanrun.components.data.batch import TokenBatch
from titanrun.components.evaluation.config import LossTaskConfig
from titanrun.components.evaluation.subject import Numbers, Subject
from titanrun.config.problems import fail


def measure_loss(config: LossTaskConfig, *, subject: Subject) -> Numbers:
    """The mean loss of a token that counts, its exponential, and how many counted."""
    assert config.dataset is not None and config.dataset != "auto" and config.seq_len != "auto"
    rows = subject.rows(config.dataset, seq_len=config.seq_len)
    count = len(rows) if config.limit is None else min(config.limit, len(rows))
    total, weight, tokens = 0.0, 0.0, 0
    for start in range(0, count, subject.batch_size):
        wanted = range(start, min(start + subject.batch_size, count))
        batch = TokenBatch.from_rows(np.stack([rows[index] for index in wanted]))
        total += float(subject.loss_sum(batch))
        weight += float(batch.valid_count())
        tokens += int(batch.valid_mask().sum())
    if tokens == 0:
        raise fail(
            "data",
            "the data has no token that counts in the loss",
            path=("dataset",),
            help="use more data, or shorter rows",
        )
    loss = total / weight
    return {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < math.log(1e300) else math.inf,
        "tokens": tokens,
        "rows": count,
    }
