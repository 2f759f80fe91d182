"""Recipe model: one field per section. With every `auto` resolved, it describes a run."""

from typing import Literal

from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.spec.storage_path import LocalPath
from titanrun.components.converters.config import AdapterConfig, ConverterConfig, QatConfig
from titanrun.components.evaluation.config import EvaluationConfig
from titanrun.components.losses.config import LossConfig
from titanrun.components.lr_schedulers.config import LRSchedulerConfig
from titanrun.components.metrics.config import MetricsConfig
from titanrun.components.modules.config import ReplaceConfig
from titanrun.components.optimizers.config import OptimizerConfig
from titanrun.components.profiling.config import ProfilingConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.validation.config import ValidationConfig
from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component, numerics, performance, section
from titanrun.config.types import Line, OrAuto, Text
from titanrun.distributed.config import (
    ActivationCheckpointConfig,
    CommConfig,
    CompileConfig,
    DebugConfig,
    ParallelismConfig,
)
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.launch.config import LaunchConfig
from titanrun.models.shared.config import ModelConfig
from titanrun.rl.config import RlConfig
from titanrun.training.config import GuardConfig, TrainingConfig


class Recipe(Config):
    """One training run as text."""

    version: Literal[1] = bookkeeping()
    """Version of the recipe language."""
    name: Line | None = bookkeeping(None, examples=["llama3-8b-first"])
    """Name of the run; null: the stem of the recipe file."""
    description: str = bookkeeping("", examples=["first run on new data"])
    """Free text."""
    dump_folder: LocalPath | None = bookkeeping(None, examples=["runs/first"])
    """Run directory; null: runs/<name>-<time>. A stopped run resumes in it."""
    plugins: tuple[Text, ...] = bookkeeping((), examples=[["my_plugin"], ["./mine.py"]])
    """Plug-ins whose components this recipe uses: names of installed ones, and files, relative to
    the recipe, that run once you have allowed them (--trust)."""
    kind: Literal["pretrain", "sft", "rl", "eval"] = numerics("pretrain")
    """Kind of run. pretrain: train on the sequences of a dataset. sft: the same, but the data must
    be conversations. rl: train on the rewards of the policy's own completions. eval: train nothing
    and evaluate the initial weights with the tasks of `evaluation`."""
    device: Literal["auto", "cpu", "gpu"] = performance("auto")
    """Device to train on; `auto`: an accelerator if torch finds one."""
    model: ModelConfig = component()
    """Model family and sizes."""
    converters: tuple[ConverterConfig, ...] = component(())
    """Converters applied to the model before it is parallelized, in this order."""
    tokenizer: OrAuto[TokenizerConfig] | None = component("auto")
    """Tokenizer; `auto`: the one in model.hf_assets_path, the tiny one for the tiny corpus, null
    for tokenized data."""
    optimizer: OptimizerConfig = component(OptimizerConfig)
    lr_scheduler: LRSchedulerConfig = component(LRSchedulerConfig)
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
    fault_tolerance: FaultToleranceConfig = section(FaultToleranceConfig)
    launch: LaunchConfig = component(LaunchConfig)
    rl: RlConfig | None = component(None)
    """Reinforcement learning: rollouts, rewards and algorithm. Only for kind rl."""
    stages: None = numerics(None)
    """Consecutive runs: a list of {id: NAME, ...}. Each stage is this recipe with the keys of the
    stage merged over it, and starts from the weights of the previous stage. Null: one run."""
    replace: tuple[ReplaceConfig, ...] | None = component(None)
    """Modules of the model to replace by name, before converters are applied."""


def find_lora_converter(run: Recipe) -> AdapterConfig | None:
    """Return the converter that adds low-rank adapters, or None if all weights are trained."""
    return next(
        (converter for converter in run.converters if isinstance(converter, AdapterConfig)), None
    )


def is_reward_model(run: Recipe) -> bool:
    """Return whether the model gives a score of a text, and no logits of tokens."""
    return getattr(run.model, "head", "lm") == "scalar"


def find_qat_converter(run: Recipe) -> QatConfig | None:
    """Return the converter that rounds weights in every forward pass, or None."""
    return next(
        (converter for converter in run.converters if isinstance(converter, QatConfig)), None
    )


FILE_ONLY_KEYS = {
    "extends": "Recipes that this one is merged over: paths relative to this file, or "
    "`shipped:parts/fp32.yaml`; later ones win.",
    "*+": "`converters+: [lora]` adds to the list that this recipe inherits, or to its default; "
    '`converters: [lora]` replaces it. In TOML the key needs quotes: `"converters+" = [...]`.',
    "x-*": "Place for YAML anchors; ignored.",
}
