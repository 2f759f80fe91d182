"""Loss and perplexity on a dataset."""

import math
from dataclasses import replace

import numpy as np

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.sample_order import view_first_epoch
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.evaluation.config import LossTaskConfig
from titanrun.components.evaluation.eval_model import EvalModel, TaskMetrics
from titanrun.config.problems import problem_error


def evaluate_loss_task(config: LossTaskConfig, *, eval_model: EvalModel) -> TaskMetrics:
    """Return the mean loss per token in the loss, its exponential, and the number of tokens.

    Of replies with labels all count, whatever their label.
    """
    assert config.dataset != "auto" and config.seq_len != "auto"
    source = config.dataset or (eval_model.held_out and eval_model.held_out[0])
    has_labels = isinstance(source, DatasetConfig) and source.compares == "labels"
    dataset = view_first_epoch(eval_model.open_dataset(config.dataset, seq_len=config.seq_len))
    count = len(dataset) if config.limit is None else min(config.limit, len(dataset))
    total, weight, tokens = 0.0, 0.0, 0
    for start in range(0, count, eval_model.batch_size):
        wanted = range(start, min(start + eval_model.batch_size, count))
        batch = TokenBatch.from_sequences(np.stack([dataset[index] for index in wanted]))
        if has_labels:
            # they are in the place of loss weights
            batch = replace(batch, weights=None)
        total += float(eval_model.compute_loss_sum(batch))
        weight += float(batch.num_valid_tokens())
        tokens += int(batch.label_mask().sum())
    if tokens == 0:
        raise problem_error(
            "data",
            "the data has no token that counts in the loss",
            path=("dataset",),
            hint="use more data, or a smaller seq_len",
        )
    loss = total / weight
    return {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < math.log(1e300) else math.inf,
        "tokens": tokens,
        "rows": count,
    }
