"""TorchForge's reference actor with its documented fields and calls.

It computes logits or log-probabilities with weights that never change.

Shapes: B sequences, T tokens per sequence, R tokens of a response, V vocabulary.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.integrations.torchforge.actor_engine import ActorHandle, open_actor
from titanrun.integrations.torchforge.actor_fields import build_section
from titanrun.integrations.torchforge.fields_to_recipe import translate_fields
from titanrun.integrations.torchforge.step_batches import (
    build_step_input_error,
    check_step_token_ids,
)
from titanrun.worker.weights.initial_weights import load_initial_weights

REFERENCE_MODEL = "ReferenceModel"
REFERENCE_SECTIONS = ("model", "parallelism", "checkpoint", "compile", "comm", "training")


@dataclass(eq=False)
class ReferenceModel:
    """Inference-only actor with the methods `setup`, `forward` and `cleanup`.

    All ranks must call the methods together, with all sequences. The sections are those of
    TitanTrainer. Of `checkpoint` only the location of the initial weights is read: the actor never
    resumes from the folder of another run.
    """

    model: Any = field(default_factory=dict)
    parallelism: Any = field(default_factory=dict)
    checkpoint: Any = field(default_factory=dict)
    compile: Any = field(default_factory=dict)
    comm: Any = field(default_factory=dict)
    training: Any = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._translation = translate_fields(
            REFERENCE_MODEL, {name: getattr(self, name) for name in REFERENCE_SECTIONS}
        )
        self._translation.resolve(None)
        for name in REFERENCE_SECTIONS:
            setattr(self, name, build_section(name, self._translation.values))
        self._handle: ActorHandle | None = None
        self.step = 0

    def setup(self) -> None:
        """Build the model and load its weights. Further calls have no effect."""
        if self._handle is not None:
            return
        handle = open_actor(self._translation)
        config, model = handle.recipe.checkpoint, handle.recipe.model
        with ExitStack() as undo:
            undo.callback(handle.close)
            load_initial_weights(
                config,
                model_config=model,
                engine=handle.engine,
                ranks=get_default_rank_group(),
                seed=handle.recipe.debug.seed,
            )
            undo.pop_all()
        handle.engine.model.eval().requires_grad_(False)
        self._handle = handle

    @torch.no_grad()
    def forward(self, input_ids: Tensor, max_req_tokens: int, return_logprobs: bool) -> Tensor:
        """Compute log-probabilities of responses [B, R], or logits [B, T, V].

        Each sequence is a request padded to `max_req_tokens`, followed by a response. The result is
        in fp32 on the device.

        Args:
            input_ids: token ids [B, T].
            max_req_tokens: the start of responses, at least 1.
            return_logprobs: whether to return log-probabilities instead of logits.
        """
        if self._handle is None:
            raise RuntimeError(
                "call setup() first: the reference has no model before setup() and after cleanup()"
            )
        check_step_token_ids("input_ids", input_ids, self._handle.recipe.model.output_dim())
        length, longest = input_ids.size(1), self._handle.recipe.training.seq_len
        if length > longest:
            raise build_step_input_error(
                f"input_ids has sequences of {length:,} tokens, longer than {longest:,}",
                hint="see training.seq_len",
            )
        if not 1 <= max_req_tokens <= length:
            raise build_step_input_error(
                f"max_req_tokens is {max_req_tokens:,}, but sequences have {length:,} tokens",
                hint="set it to the start of responses",
            )
        batch = TokenBatch(
            input_ids, input_ids.roll(-1, 1), None, torch.ones_like(input_ids, dtype=torch.bool)
        )
        name = "logprobs" if return_logprobs else "logits"
        found = self._handle.engine.forward(batch, outputs=(name,))[name]
        self.step += 1
        self._handle.garbage_collection.after_step(self.step)
        # the prediction of a token is at the position before it
        return found[:, max_req_tokens - 1 : length - 1] if return_logprobs else found

    def cleanup(self) -> None:
        """Release all resources. Further calls have no effect."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()
