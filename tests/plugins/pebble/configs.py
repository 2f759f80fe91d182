"""What the plug-in `pebble` adds to recipes. Nothing here imports torch: `titanrun validate` reads
this file."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from titanrun.components.converters.config import ConverterConfig
from titanrun.components.data.config import DatasetConfig
from titanrun.components.losses.config import LossConfig
from titanrun.components.modules.config import ModuleConfig
from titanrun.components.optimizers.config import OptimizerConfig
from titanrun.config.base import Config
from titanrun.config.extension_fields import ExtensionFields
from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.types import NonNegativeFloat, PositiveFloat, PositiveInt, Text
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.trainer_kinds import TrainerKind

PLUGIN_API = 1


class LionConfig(OptimizerConfig):
    """Lion: the sign of a mean of gradients (https://arxiv.org/abs/2302.06675)."""

    name: Literal["lion"] = numerics("lion")
    builds: ClassVar = "pebble.optimizer:build_lion"
    lr: PositiveFloat = numerics(1e-4)
    """Peak learning rate."""
    beta1: NonNegativeFloat = numerics(0.9)
    """Share of the mean in the direction of a step."""
    beta2: NonNegativeFloat = numerics(0.99)
    """Share of the mean that is kept for the next step."""


class FreezeConfig(ConverterConfig):
    """Freezes modules: their weights stay as they were drawn or loaded."""

    name: Literal["freeze"] = numerics("freeze")
    builds: ClassVar = "pebble.converter:freeze"
    modules: tuple[Text, ...] = numerics(examples=[["tok_embeddings"]])
    """Texts in the names of the modules."""

    @property
    def name_patterns(self) -> dict[str, tuple[str, ...]]:
        """A text that is in no name is a problem."""
        return {"modules": self.modules}


class FocalConfig(LossConfig):
    """Focal loss: tokens that are easy already count less (https://arxiv.org/abs/1708.02002)."""

    name: Literal["focal"] = numerics("focal")
    builds: ClassVar = "pebble.loss:Focal"
    gamma: NonNegativeFloat = numerics(2.0)
    """Power of 1 - p that a token's loss is multiplied by; 0 is cross entropy."""


class CountingConfig(DatasetConfig):
    """Rows that count upwards from a number of their own, modulo `limit`."""

    name: Literal["counting"] = numerics("counting")
    builds: ClassVar = "pebble.dataset:Counting"
    needs_tokenizer: ClassVar = False
    limit: PositiveInt = numerics(64)
    """Numbers that there are."""


class MixerConfig(ModelConfig):
    """A decoder whose layers mix tokens by the mean of all tokens so far."""

    name: Literal["mixer"] = bookkeeping("mixer")
    builds: ClassVar = "pebble.model:Mixer"
    unsupported_features: ClassVar = frozenset(
        {"tensor parallelism", "pipeline parallelism", "context parallelism", "text generation"}
    )
    dim: PositiveInt = numerics(32)
    """Width of the residual stream."""
    n_layers: PositiveInt = numerics(2)
    """Number of layers."""

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in the model's order."""
        vocabulary = (int(self.vocab_size), self.dim)
        layers = {
            f"layers.{layer}.{part}.weight": (self.dim, self.dim)
            for layer in range(self.n_layers)
            for part in ("own", "past")
        }
        return {
            "tok_embeddings.weight": vocabulary,
            **layers,
            "norm.weight": (self.dim,),
            "output.weight": vocabulary,
        }

    def attention_dim(self) -> int:
        """There is no attention, and no products of queries and keys to be counted."""
        return 0

    def model_dim(self) -> int:
        """Width of the residual stream."""
        return self.dim

    def layer_activation_elements(self) -> tuple[int, int]:
        """The stream, its mean, and both products."""
        return 4 * self.dim, 0


class SquaredConfig(ModuleConfig):
    """A feed-forward layer whose gate is relu(x)^2 (https://arxiv.org/abs/2109.08668)."""

    name: Literal["squared"] = numerics("squared")
    builds: ClassVar = "pebble.squared:Squared"


class TargetFields(ExtensionFields):
    """When a run of the kind `until_target` ends."""

    adds_to: ClassVar = "training"
    target_loss: PositiveFloat | None = numerics(None, examples=[2.5])
    """Loss at which a run of the kind until_target ends. If null, it runs to its last step."""


class PatienceConfig(Config):
    """How sure a run must be that it has arrived."""

    steps: PositiveInt = numerics(1, unit="steps")
    """Steps in a row whose loss must be at the target or below."""


class PebbleFields(ExtensionFields):
    """Fields at the top level of a recipe."""

    owner: Text | None = bookkeeping(None, examples=["the tide group"])
    """Contact for this run."""
    patience: PatienceConfig = section(PatienceConfig)


class UntilTarget(TrainerKind):
    """Train until the loss reaches training.target_loss."""

    name = "until_target"
    builds = "pebble.trainer:assembled_until_target"


@rule("target-needs-its-kind")
def target_needs_its_kind(run: Recipe) -> Iterator[RuleViolation]:
    """training.target_loss ends runs of the kind until_target only. Set kind: until_target, or
    remove it."""
    if run.training.target_loss is not None and run.kind != "until_target":
        message = "a run of the kind pretrain does not stop at training.target_loss"
        yield RuleViolation(
            message,
            (("training", "target_loss"),),
            hint="set kind: until_target",
            code="no-effect",
            severity="warning",
        )
