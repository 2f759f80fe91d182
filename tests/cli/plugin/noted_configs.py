"""A plug-in that offers a choice `noted` in every slot. Each leaves a note when it is built, and is
otherwise like its base."""

from typing import ClassVar, Literal

from titanrun.components.converters.config import ConverterConfig
from titanrun.components.data.config import TinyDatasetConfig
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.lr_schedulers.config import WarmupStableDecayConfig
from titanrun.components.metrics.config import TrackerConfig
from titanrun.components.modules.config import GatedFeedForwardConfig
from titanrun.components.optimizers.config import AdamWConfig
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.config.fields import numerics
from titanrun.distributed.config import NoActivationCheckpointConfig
from titanrun.launch.config import LocalLaunchConfig
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.rope_config import Llama3RopeScalingConfig

PLUGIN_API = 1


class NotedModelConfig(Llama3Config):
    """A Llama 3."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:model"


class NotedRopeScalingConfig(Llama3RopeScalingConfig):
    """Llama 3.1's rule."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:rope_scaling"


class NotedConverterConfig(ConverterConfig):
    """Changes nothing."""

    name: Literal["noted"] = numerics("noted")
    builds: ClassVar = "noted_parts:converters"


class NotedTokenizerConfig(TinyTokenizerConfig):
    """The tiny tokenizer."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:tokenizer"


class NotedDatasetConfig(TinyDatasetConfig):
    """The tiny corpus."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:dataset"


class NotedOptimizerConfig(AdamWConfig):
    """AdamW."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:optimizer"


class NotedScheduleConfig(WarmupStableDecayConfig):
    """Warmup, plateau, decay."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:lr_scheduler"


class NotedLossConfig(CrossEntropyConfig):
    """Cross entropy."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:loss"


class NotedActivationCheckpointConfig(NoActivationCheckpointConfig):
    """Keeps everything."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:activation_checkpoint"


class NotedModuleConfig(GatedFeedForwardConfig):
    """The layer that the model has."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:module"


class NotedTrackerConfig(TrackerConfig):
    """Listens to nothing."""

    name: Literal["noted"] = numerics("noted")
    builds: ClassVar = "noted_parts:trackers"


class NotedLaunchConfig(LocalLaunchConfig):
    """One process here."""

    name: Literal["noted"] = numerics("noted")  # type: ignore[assignment]
    builds: ClassVar = "noted_parts:launch"
