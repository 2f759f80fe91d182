"""The whole recipe: one field a section. Resolved, with every `auto` decided, it is the run."""

from typing import Literal

from titanrun.components.checkpoints.addresses import LocalPath
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.converters.config import ConverterConfig
from titanrun.components.evaluation.config import EvaluationConfig
from titanrun.components.losses.config import LossConfig
from titanrun.components.metrics.config import MetricsConfig
from titanrun.components.modules.config import ReplaceConfig
from titanrun.components.optimizers.config import OptimizerConfig
from titanrun.components.profiling.config import ProfilingConfig
from titanrun.components.schedules.config import ScheduleConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.validation.config import ValidationConfig
from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component, numerics, performance, section
from titanrun.config.types import OrAuto, Text
from titanrun.distributed.config import (
    ActivationCheckpointConfig,
    CommConfig,
    CompileConfig,
    DebugConfig,
    ParallelismConfig,
)
from titanrun.launch.config import LaunchConfig
from titanrun.models.shared.config import ModelConfig
from titanrun.rl.config import RlConfig
from titanrun.training.config import GuardConfig, TrainingConfig


class Recipe(Config):
    """One training run as text."""

    version: Literal[1] = bookkeeping()
    """Version of the recipe language."""
    name: Text | None = bookkeeping(None, examples=["llama3-8b-first"])
    """Name of the run; null is the file's stem."""
    description: str = bookkeeping("", examples=["first run on new data"])
    """Free text."""
    dump_folder: LocalPath | None = bookkeeping(None, examples=["runs/first"])
    """The run directory; null: runs/<name>-<time>. A run that was stopped goes on in it."""
    plugins: tuple[Text, ...] = bookkeeping((), examples=[["my_plugin"]])
    """Installed plug-ins whose components this recipe names."""
    kind: Literal["pretrain", "sft", "rl", "eval"] = numerics("pretrain")
    """What the run does: pretrain learns from rows of data; sft does, and holds that its data are conversations; rl learns from what its
    own answers are worth; eval trains nothing and measures the weights that it starts from by the tasks of `evaluation`."""
    device: Literal["auto", "cpu", "gpu"] = performance("auto")
    """Where to train; `auto` is an accelerator if torch finds one."""
    model: ModelConfig = component()
    """The model family and its sizes."""
    converters: tuple[ConverterConfig, ...] = component(())
    """What rewrites the model before it is parallelised, in this order."""
    tokenizer: OrAuto[TokenizerConfig] | None = component("auto")
    """Text to token ids; `auto`: the one in model.hf_assets_path, the tiny one for the tiny corpus, none for tokens."""
    optimizer: OptimizerConfig = component(OptimizerConfig)
    lr_scheduler: ScheduleConfig = component(ScheduleConfig)
    loss: LossConfig = component(LossConfig)
    training: TrainingConfig = component()
    parallelism: ParallelismConfig = section(ParallelismConfig)
    activation_checkpoint: ActivationCheckpointConfig = component(ActivationCheckpointConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    compile: CompileConfig = section(CompileConfig)
    metrics: MetricsConfig = section(MetricsConfig)
    validation: ValidationConfig = section(ValidationConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    profiling: ProfilingConfig = section(ProfilingConfig)
    comm: CommConfig = section(CommConfig)
    debug: DebugConfig = section(DebugConfig)
    guard: GuardConfig = section(GuardConfig)
    launch: LaunchConfig = component(LaunchConfig)
    rl: RlConfig | None = component(None)
    """What a policy is asked and what it learns from, for kind rl."""
    stages: None = numerics(None)
    """Runs one after the other: a list of {id: NAME, ...}, each of them this recipe with what the stage says laid over it, from the weights
    of the one before. Null: one run."""
    replace: tuple[ReplaceConfig, ...] | None = component(None)
    """Parts of the model that are exchanged by name, before converters see them."""
