"""The training section: batches, length, precision, memory."""

from typing import Annotated, Literal, TypeAlias

from annotated_types import Gt

from titanrun.components.checkpoints.addresses import LocalPath
from titanrun.components.data.config import DataLoaderConfig, DatasetConfig
from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component, numerics, performance, section
from titanrun.config.types import DtypeName, OrAuto, PositiveFloat, PositiveInt
from titanrun.config.units import TokenCount

MoreThanOne: TypeAlias = Annotated[float, Gt(1)]


class TrainingConfig(Config):
    """Batches, length, precision, memory."""

    dataset: DatasetConfig = component()
    """What to train on."""
    local_batch_size: PositiveInt = numerics(8, unit="rows")
    """Rows of one forward pass on each data-parallel rank."""
    global_batch_size: OrAuto[PositiveInt] = numerics("auto", unit="rows", examples=[64])
    """Rows of one optimizer step over all ranks; more than one pass holds means gradient accumulation. `auto`: one pass."""
    seq_len: PositiveInt = numerics(2048, unit="tokens")
    """Length of a row."""
    steps: OrAuto[PositiveInt] | None = numerics(
        "auto", unit="steps", resume=True, examples=[10000]
    )
    """Optimizer steps of the run; `auto`: what tokens come to, else 10000. Null where epochs decide."""
    tokens: TokenCount | None = numerics(None, unit="tokens", resume=True, examples=["10B"])
    """Length of the run in tokens instead of steps, rounded up to whole steps; the resolved recipe holds the steps."""
    epochs: PositiveInt | None = numerics(None, unit="epochs", resume=True, examples=[3])
    """Length of the run in passes over the data instead of steps. Batches run on across epochs; rows at the very end that fill no
    global batch are left out."""
    max_norm: PositiveFloat | None = numerics(1.0)
    """Gradients are scaled down to this global L2 norm; null: never. The norm is logged before."""
    dtype: DtypeName = numerics("float32")
    """Storage type of weights, gradients and optimizer states; RoPE and the loss stay in fp32."""
    mixed_precision_param: DtypeName = numerics("bfloat16")
    """Compute type of matrix products while weights are stored in fp32 (autocast on one device)."""
    mixed_precision_reduce: Literal["float32"] = numerics("float32")
    """Type in which gradients are summed over ranks."""
    enable_cpu_offload: bool = performance(False, resume=True)
    """Whether weights, gradients and optimizer states live in host memory."""
    gc_freq: PositiveInt = performance(50, unit="steps")
    """Steps between Python garbage collections; the automatic ones are off so that all ranks pause together."""
    gc_debug: bool = performance(False)
    """Whether every step collects everything and cycles that hold tensors are reported."""
    dataloader: DataLoaderConfig = section(DataLoaderConfig)
    data_cache: OrAuto[LocalPath] | None = bookkeeping(
        "auto", resume=True, examples=["cache/tokens"]
    )
    """Folder of tokenised data, which runs share; `auto` is runs/.data where dump_folder is not set, else null: data in the run
    directory."""


class GuardConfig(Config):
    """What is done about a step that goes wrong, or that does not end."""

    non_finite: Literal["stop", "skip", "rollback"] = numerics("stop", resume=True)
    """What follows a loss or gradient that is NaN or infinite: stop ends the run with exit code 5, skip leaves the update out, rollback
    goes back to the last good checkpoint and leaves out the data since."""
    max_skips: PositiveInt = numerics(8, unit="steps", resume=True)
    """How many updates in a row are skipped before the run stops."""
    max_rollbacks: PositiveInt = numerics(3, resume=True)
    """How often the run goes back without a new checkpoint in between before it stops."""
    spike_sigmas: PositiveFloat | None = bookkeeping(10.0, resume=True)
    """How far above the median of recent steps a loss is reported as a spike, in standard deviations; null: never."""
    spike_window: PositiveInt = bookkeeping(128, unit="steps", resume=True)
    """How many steps are recent; the fewer, the sooner a new level of the loss counts as normal."""
    replay_interval: PositiveInt | None = performance(
        None, unit="steps", resume=True, examples=[1000]
    )
    """Steps after which one is computed twice and compared bit by bit, and copies on several ranks with each other; a machine that
    computes wrong without a word ends the run with exit code 70. Null: never."""
    straggler_ratio: MoreThanOne | None = bookkeeping(1.3, resume=True)
    """How many times as long as the other ranks' a rank's own work of a step takes, for some time, when it is reported as slow; null:
    nobody is."""
    build_timeout_seconds: PositiveInt | None = bookkeeping(3600, unit="seconds", resume=True)
    """How long building the run may go on without a sign of life (each part that is ready, each batch of documents that is tokenised)
    before it counts as hung and ends with exit code 6; null: for ever."""
    first_step_timeout_seconds: PositiveInt | None = bookkeeping(3600, unit="seconds", resume=True)
    """How long the first step after a start may take, with all that is compiled for it, before the run counts as hung and ends with exit
    code 6; null: for ever."""
    step_timeout_seconds: PositiveInt | None = bookkeeping(1800, unit="seconds", resume=True)
    """How long any later step may take."""
    save_timeout_seconds: PositiveInt | None = bookkeeping(3600, unit="seconds", resume=True)
    """How long saving a checkpoint may take."""
