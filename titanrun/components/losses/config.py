"""The loss slot and its choices."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import numerics, performance
from titanrun.config.types import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt


class LossConfig(ComponentConfig):
    """What is minimised. A loss returns a sum over tokens; the engine divides once by the global count of valid tokens."""

    slot: ClassVar = "loss"
    is_slot: ClassVar = True
    default_name: ClassVar = "cross_entropy"
    name: str = numerics()
    concerns: ClassVar[str] = "tokens"
    """What it is about, tokens or images, which has to be what the model takes."""
    takes_split_logits: ClassVar = False
    """Whether the loss can do with a part of the vocabulary on each rank, as a DTensor; others get whole logits."""

    takes_weights: ClassVar = False
    """Whether each token counts as often as the batch says that it weighs."""
    needs_reference: ClassVar = False
    """Whether it compares the model with what it was before the run."""

    @property
    def pieces(self) -> int | None:
        """Pieces that the head cuts each row into, computing the loss of one after the other; None: the loss takes logits of whole rows."""
        return None

    @property
    def further_scale(self) -> float | None:
        """Weight, in training, of the mean loss of the tokens behind the next one, which a model has layers of its own for; None: the
        loss is about the next one alone."""
        return None


class CrossEntropyConfig(LossConfig):
    """Cross entropy of the next token, in fp32."""

    name: Literal["cross_entropy"] = numerics("cross_entropy")
    builds: ClassVar = "titanrun.components.losses.cross_entropy:CrossEntropy"
    takes_split_logits: ClassVar = True
    takes_weights: ClassVar = True
    label_smoothing: Fraction = numerics(0.0, examples=[0.1])
    """Share of the target that is spread evenly over the vocabulary (https://arxiv.org/abs/1512.00567)."""
    z_loss: NonNegativeFloat = numerics(0.0, examples=[1e-4])
    """Weight of log(sum(exp(logits)))^2, which keeps logits from drifting (https://arxiv.org/abs/2204.02311)."""


class DpoConfig(LossConfig):
    """Direct preference optimisation: the model comes to prefer one reply of a pair, as far as it stays near what it was before the run."""

    name: Literal["dpo"] = numerics("dpo")
    builds: ClassVar = "titanrun.components.losses.dpo:Dpo"
    takes_split_logits: ClassVar = True
    needs_reference: ClassVar = True
    beta: PositiveFloat = numerics(0.1)
    """How much a step away from the reference costs (https://arxiv.org/abs/2305.18290)."""
    label_smoothing: Fraction = numerics(0.0, examples=[0.1])
    """Share of the pairs that are taken to be the wrong way round (conservative DPO)."""


class ChunkedCrossEntropyConfig(CrossEntropyConfig):
    """Cross entropy whose logits are never all there: those of a chunk of each row are made, used, and made again for the gradients."""

    name: Literal["chunked_cross_entropy"] = numerics("chunked_cross_entropy")  # type: ignore[assignment]
    builds: ClassVar = "titanrun.components.losses.cross_entropy:CrossEntropy"
    num_chunks: PositiveInt = performance(8, resume=True)
    """Chunks that each row is cut into: the memory of logits falls by this, and the head's product is made once more."""

    @property
    def pieces(self) -> int:
        """As the recipe says."""
        return self.num_chunks


class MultiTokenCrossEntropyConfig(CrossEntropyConfig):
    """Cross entropy of the next token and, in training, of the tokens behind it, which deepseek_v3 has num_mtp_layers for."""

    name: Literal["multi_token_cross_entropy"] = numerics("multi_token_cross_entropy")  # type: ignore[assignment]
    builds: ClassVar = "titanrun.components.losses.cross_entropy:CrossEntropy"
    takes_weights: ClassVar = False
    mtp_scale: PositiveFloat = numerics(0.3, examples=[0.1])
    """Weight of the mean loss of the further tokens (https://arxiv.org/abs/2412.19437, section 2.2); DeepSeek-V3 ended with 0.1."""

    @property
    def further_scale(self) -> float:
        """As the recipe says."""
        return self.mtp_scale


class MseConfig(LossConfig):
    """Mean squared error of the logits, of which the label's is to be `height` and all others 0 (https://arxiv.org/abs/2006.07322)."""

    name: Literal["mse"] = numerics("mse")
    builds: ClassVar = "titanrun.components.losses.mse:Mse"
    takes_weights: ClassVar = True
    height: PositiveFloat = numerics(1.0)
    """What the label's logit is to be; the larger the vocabulary, the higher."""


class FlowMatchingConfig(LossConfig):
    """Mean squared error of the velocity from pictures to noise (https://arxiv.org/abs/2209.03003), in fp32."""

    name: Literal["flow_matching"] = numerics("flow_matching")
    builds: ClassVar = "titanrun.components.losses.flow_matching:FlowMatching"
    concerns: ClassVar = "images"
