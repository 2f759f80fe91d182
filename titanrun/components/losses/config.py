"""The loss slot and its choices."""

import math
from typing import Any, ClassVar, Literal

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import numerics, performance
from titanrun.config.types import Fraction, NonNegativeFloat, OrAuto, PositiveFloat, PositiveInt

# of a loss that is built without a recipe, which would say how many tokens there are
DEFAULT_CHUNKS = 8
# entries of a vocabulary from which on `auto` computes the loss in chunks
CHUNKED_VOCABULARY = 32_768
# fewer rows do not fill a device, and more save no time
MIN_CHUNK_TOKENS, MAX_CHUNK_TOKENS = 512, 8192


def compute_num_chunks(tokens: int, *, dim: int, vocab_size: int) -> int:
    """Return the number of chunks of a pass of `tokens` tokens.

    The tokens of a chunk are the power of two with which its logits take about as much memory as
    the input of the head.
    """
    each = 1 << round(math.log2(max(1.0, tokens * dim / vocab_size)))
    return -(-tokens // min(max(each, MIN_CHUNK_TOKENS), MAX_CHUNK_TOKENS))


class LossConfig(ComponentConfig):
    """Loss to minimize.

    A loss returns a sum over tokens. The engine divides once by the global number of valid tokens.
    """

    slot: ClassVar = "loss"
    is_slot: ClassVar = True
    builds_what: ClassVar = "a function or object that is called with the logits and the batch"
    built_attributes: ClassVar = ("__call__",)
    default_name: ClassVar = "auto"
    name: str = numerics()
    modality: ClassVar[str] = "tokens"
    """Modality of the loss, tokens or images, which must match the model."""
    supports_loss_parallel: ClassVar = False
    """Whether the loss accepts vocabulary shards as a DTensor. Others get full logits."""

    needs_teacher: ClassVar = False
    """Whether the loss compares the model with another one, a teacher."""
    supports_token_weights: ClassVar = False
    """Whether the loss multiplies each token by its weight in the batch."""
    needs_reference: ClassVar = False
    """Whether the loss compares the model with its weights before the run."""
    head: ClassVar[Literal["lm", "scalar"]] = "lm"
    """Head of the model that the loss reads."""
    compares: ClassVar[Literal["pairs", "labels"] | None] = None
    """What the loss learns from: pairs of replies, replies with labels, or None for tokens."""

    @property
    def nll_tokens(self) -> Literal["all", "replies"] | None:
        """Tokens of preferred conversations in a cross entropy beside the loss of pairs.

        None if there is none.
        """
        return None

    @property
    def teacher_path(self) -> str | None:
        """Place of the model with whose predictions the loss compares; None if there is none."""
        return None

    @property
    def taught_logprobs(self) -> Any:
        """Files with predictions with which the loss compares, None if it reads none.

        See `TeacherLogprobsConfig`.
        """
        return None

    @property
    def num_loss_chunks(self) -> int | None:
        """Number of chunks of a sequence for which the head computes the loss separately.

        None if the loss takes logits of whole sequences.
        """
        return None

    @property
    def mtp_loss_weight(self) -> float | None:
        """Training weight of the mean loss of the tokens after the next one.

        The model predicts them by separate layers. None if the loss uses only the next token.
        """
        return None


class CrossEntropyConfig(LossConfig):
    """Cross entropy of the next token, in fp32."""

    name: Literal["cross_entropy"] = numerics("cross_entropy")
    builds: ClassVar = "titanrun.components.losses.cross_entropy:CrossEntropyLoss"
    supports_loss_parallel: ClassVar = True
    supports_token_weights: ClassVar = True
    label_smoothing: Fraction = numerics(0.0, examples=[0.1])
    """Share of the target that is spread evenly over the vocabulary
    (https://arxiv.org/abs/1512.00567)."""
    z_loss: NonNegativeFloat = numerics(0.0, examples=[1e-4])
    """Weight of log(sum(exp(logits)))^2, which keeps logits from drifting
    (https://arxiv.org/abs/2204.02311)."""


class AutoCrossEntropyConfig(CrossEntropyConfig):
    """Cross entropy of the next token, in chunks if the vocabulary is large.

    It becomes chunked_cross_entropy if device is not cpu, the vocabulary has at least 32,768
    entries, and model and parallelism allow it. Otherwise it becomes cross_entropy.
    """

    name: Literal["auto"] = numerics("auto")  # type: ignore[assignment]
    builds: ClassVar = "titanrun.components.losses.cross_entropy:CrossEntropyLoss"


class ChunkedCrossEntropyConfig(CrossEntropyConfig):
    """Cross entropy that never holds all logits.

    The head computes the logits of a chunk of tokens, their loss, and the gradients of both its
    inputs, and frees them. In converted heads but fp32_lm_head, the logits are computed again for
    the gradients.
    """

    name: Literal["chunked_cross_entropy"] = numerics("chunked_cross_entropy")  # type: ignore[assignment]
    builds: ClassVar = "titanrun.components.losses.cross_entropy:CrossEntropyLoss"
    num_chunks: OrAuto[PositiveInt] = performance("auto", resume=True, examples=[8])
    """Number of chunks. The memory of logits is divided by it.

    `auto`: the logits of a chunk take about as much memory as the head's whole input, with 512 to
    8192 tokens in a chunk."""

    @property
    def num_loss_chunks(self) -> int:
        """Number of chunks in the recipe."""
        return DEFAULT_CHUNKS if self.num_chunks == "auto" else self.num_chunks


class MultiTokenCrossEntropyConfig(CrossEntropyConfig):
    """Cross entropy of the next token and, in training, of the tokens after it.

    deepseek_v3 predicts these with num_mtp_layers.
    """

    name: Literal["multi_token_cross_entropy"] = numerics("multi_token_cross_entropy")  # type: ignore[assignment]
    builds: ClassVar = "titanrun.components.losses.cross_entropy:CrossEntropyLoss"
    supports_token_weights: ClassVar = False
    mtp_scale: PositiveFloat = numerics(0.3, examples=[0.1])
    """Weight of the mean loss of the tokens after the next one (https://arxiv.org/abs/2412.19437,
    section 2.2). DeepSeek-V3 ended with 0.1."""

    @property
    def mtp_loss_weight(self) -> float:
        """Weight in the recipe."""
        return self.mtp_scale


class MseConfig(LossConfig):
    """Mean squared error of the logits.

    The target is `height` for the label and 0 for all others (https://arxiv.org/abs/2006.07322).
    """

    name: Literal["mse"] = numerics("mse")
    builds: ClassVar = "titanrun.components.losses.mse:MSELoss"
    supports_token_weights: ClassVar = True
    height: PositiveFloat = numerics(1.0)
    """Target of the label's logit. Use higher values for larger vocabularies."""


class FlowMatchingConfig(LossConfig):
    """Mean squared error of the velocity from images to noise, in fp32.

    See https://arxiv.org/abs/2209.03003.
    """

    name: Literal["flow_matching"] = numerics("flow_matching")
    builds: ClassVar = "titanrun.components.losses.flow_matching:FlowMatchingLoss"
    modality: ClassVar = "images"
