"""The reference actor of TorchForge by its documented fields and calls: weights that never change, asked for logits or log-probabilities.

Shapes: B rows, T tokens of a row, R tokens of a response, V vocabulary.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from titanrun.actors.batches import refuse_ids, wrong
from titanrun.actors.fields import section_of
from titanrun.actors.opened import OpenActor, open_actor
from titanrun.actors.translated import translate
from titanrun.components.data.batch import TokenBatch
from titanrun.distributed.agreement import current_ranks
from titanrun.worker.weights import load_initial_weights

REFERENCE_MODEL = "ReferenceModel"
SECTIONS = ("model", "parallelism", "checkpoint", "compile", "comm", "training")


@dataclass(eq=False)
class ReferenceModel:
    """An actor that only looks: `setup`, `forward`, `cleanup`. Every rank calls the same, with all rows.

    Sections are as those of TitanTrainer. Of `checkpoint` only where the first weights come from is read: the folder of a run that is
    trained elsewhere is never gone on from.
    """

    model: Any = field(default_factory=dict)
    parallelism: Any = field(default_factory=dict)
    checkpoint: Any = field(default_factory=dict)
    compile: Any = field(default_factory=dict)
    comm: Any = field(default_factory=dict)
    training: Any = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._translation = translate(
            REFERENCE_MODEL, {name: getattr(self, name) for name in SECTIONS}
        )
        self._translation.run(None)
        for name in SECTIONS:
            setattr(self, name, section_of(name, self._translation.values))
        self._opened: OpenActor | None = None
        self.step = 0

    def setup(self) -> None:
        """Builds the model and takes its weights; a second call changes nothing."""
        if self._opened is not None:
            return
        opened = open_actor(self._translation)
        config, model = opened.run.checkpoint, opened.run.model
        with ExitStack() as undo:
            undo.callback(opened.close)
            load_initial_weights(
                config,
                model_config=model,
                engine=opened.engine,
                ranks=current_ranks(),
                seed=opened.run.debug.seed,
            )
            undo.pop_all()
        opened.engine.model.eval().requires_grad_(False)
        self._opened = opened

    @torch.no_grad()
    def forward(self, input_ids: Tensor, max_req_tokens: int, return_logprobs: bool) -> Tensor:
        """What the model says of rows, each a request that is filled up to `max_req_tokens` and a response.

        Args:
            input_ids: [B, T].
            max_req_tokens: where responses begin; at least 1.
            return_logprobs: else logits.

        Gives log-probabilities of the responses' tokens [B, R], or logits [B, T, V], in fp32 on the device.
        """
        if self._opened is None:
            raise RuntimeError(
                "call setup() first: the reference has no model, or cleanup() has ended it"
            )
        refuse_ids("input_ids", input_ids, self._opened.run.model.output_width())
        length, longest = input_ids.size(1), self._opened.run.training.seq_len
        if length > longest:
            raise wrong(
                f"input_ids has rows of {length} tokens, longer than {longest}",
                help="see training.seq_len",
            )
        if not 1 <= max_req_tokens <= length:
            raise wrong(
                f"max_req_tokens is {max_req_tokens}, and rows have {length} tokens",
                help="it is where responses begin",
            )
        batch = TokenBatch(
            input_ids, input_ids.roll(-1, 1), None, torch.ones_like(input_ids, dtype=torch.bool)
        )
        name = "logprobs" if return_logprobs else "logits"
        found = self._opened.engine.forward(batch, outputs=(name,))[name]
        self.step += 1
        self._opened.garbage.after_step(self.step)
        # the token before it says what a token's probability is
        return found[:, max_req_tokens - 1 : length - 1] if return_logprobs else found

    def cleanup(self) -> None:
        """Ends what `setup` began; more than once does no harm."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
