"""The training section: batches, length, precision, memory."""

from typing import Literal

from titanrun.components.data.config import DataLoaderConfig, DatasetConfig
from titanrun.config.base import Config
from titanrun.config.fields import component, numerics, performance, section
from titanrun.config.types import DtypeName, OrAuto, PositiveFloat, PositiveInt


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
    steps: PositiveInt = numerics(10000, unit="steps", resume=True)
    """Optimizer steps of the run."""
    max_norm: PositiveFloat | None = numerics(1.0)
    """Gradients are scaled down to this global L2 norm; null: never. The norm is logged before."""
    dtype: DtypeName = numerics("float32")
    """Storage type of weights, gradients and optimizer states; RoPE and the loss stay in fp32."""
    mixed_precision_param: DtypeName = numerics("bfloat16")
    """Compute type of matrix products while weights are stored in fp32 (autocast on one device)."""
    mixed_precision_reduce: Literal["float32"] = numerics("float32")
    """Type in which gradients are summed over ranks."""
    enable_cpu_offload: bool = performance(False, not_built="CPU offload")
    """Whether weights, gradients and optimizer states live in host memory."""
    gc_freq: PositiveInt = performance(50, unit="steps")
    """Steps between Python garbage collections; the automatic ones are off so that all ranks pause together."""
    gc_debug: bool = performance(False)
    """Whether every step collects everything and cycles that hold tensors are reported."""
    dataloader: DataLoaderConfig = section(DataLoaderConfig)
