"""The training section: batches, length, precision, memory."""

from typing import Annotated, Literal, TypeAlias

from annotated_types import Gt

from titanrun.components.checkpoints.spec.storage_path import LocalPath
from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, bookkeeping, component, numerics, performance, section
from titanrun.config.types import DtypeName, OrAuto, PositiveFloat, PositiveInt
from titanrun.config.units import TokenCount

MoreThanOne: TypeAlias = Annotated[float, Gt(1)]

# Lower sampling temperatures select the most likely token: they would magnify differences of logits
# that are within the rounding error of fp32, and the quotients overflow in the end
MIN_TEMPERATURE = 1e-5

CASTS_WEIGHTS = ReadWhen(
    "products-follow-bf16-weights",
    ".dtype",
    "is {run.training.dtype}, and such weights compute in it",
    "remove it, or set training.dtype: float32",
    fact="casts_weights",
)
IS_DATA_PARALLEL = ReadWhen(
    "offload-needs-shards",
    "parallelism.data_parallel_shard_degree",
    "gives each rank all weights",
    "let ranks share the weights, or remove it",
    fact="is_data_parallel",
)

STREAMS_DATA = ReadWhen(
    "settings-need-a-stream",
    "",
    "without a stream in training.dataset",
    "set streaming: true in the dataset, or remove it",
    fact="streams_data",
)


class TrainingConfig(Config):
    """Batches, length, precision, memory."""

    dataset: DatasetConfig = component()
    """Training dataset."""
    local_batch_size: PositiveInt = numerics(8, unit="sequences")
    """Sequences per forward pass on each data-parallel rank."""
    global_batch_size: OrAuto[PositiveInt] = numerics("auto", unit="sequences", examples=[64])
    """Sequences per optimizer step over all ranks, by gradient accumulation if necessary.

    `auto`: one forward pass on each data-parallel rank, of all replica groups."""
    seq_len: PositiveInt = numerics(2048, unit="tokens")
    """Tokens per sequence."""
    lanes: OrAuto[PositiveInt] | None = numerics("auto", examples=[128], read_when=STREAMS_DATA)
    """Logical shards of streamed data, each read from beginning to end. Ranks and loader processes
    share them out, and may change when a run is resumed; their number may not.

    `auto`: the largest divisor of global_batch_size up to 64. Null if nothing is streamed."""
    steps: OrAuto[PositiveInt] | None = numerics(
        "auto", unit="steps", resume=True, examples=[10000]
    )
    """Optimizer steps. `auto`: computed from `tokens`, else 10000. Null with `epochs`."""
    tokens: TokenCount | None = numerics(None, unit="tokens", resume=True, examples=["10B"])
    """Length of the run in tokens instead of steps, rounded up to whole steps.

    The resolved recipe holds the steps."""
    epochs: PositiveInt | None = numerics(None, unit="epochs", resume=True, examples=[3])
    """Length of the run in epochs over the data instead of steps.

    Batches continue across epoch boundaries. Sequences at the very end that do not fill a global
    batch are dropped."""
    max_norm: PositiveFloat | None = numerics(1.0)
    """Maximum global L2 norm of the gradients. Set to null to disable clipping.

    The logged norm is the one before clipping."""
    dtype: DtypeName = numerics("float32")
    """Storage dtype of weights, gradients and optimizer states. Not of RoPE and loss (fp32)."""
    mixed_precision_param: DtypeName = numerics("bfloat16", read_when=CASTS_WEIGHTS)
    """Compute dtype of matrix products if weights are stored in fp32."""
    mixed_precision_reduce: Literal["float32"] = numerics("float32")
    """Dtype in which gradients are summed over ranks."""
    enable_cpu_offload: bool = performance(False, resume=True, read_when=IS_DATA_PARALLEL)
    """Whether to keep weights, gradients and optimizer states in host memory."""
    gc_freq: PositiveInt = performance(50, unit="steps")
    """Steps between Python garbage collections.

    Automatic collections are disabled so that all ranks pause together."""
    gc_debug: bool = performance(False)
    """Whether to run a full collection after every step and report cycles that hold tensors."""
    dataloader: DataLoaderConfig = section(DataLoaderConfig)
    data_cache: OrAuto[LocalPath] | None = bookkeeping(
        "auto", resume=True, examples=["cache/tokens"]
    )
    """Folder of tokenized data, shared by runs.

    `auto`: runs/.data if dump_folder is not set, else null. Null: data is stored in the run
    directory."""


class GuardConfig(Config):
    """Handling of failing, hanging and slow steps."""

    non_finite: Literal["stop", "skip", "rollback"] = numerics("stop", resume=True)
    """Reaction to a NaN or infinite loss or gradient.

    `stop` ends the run with exit code 5, `skip` skips the update, `rollback` returns to the last
    valid checkpoint and skips the data consumed since then."""
    max_skips: PositiveInt = numerics(8, unit="steps", resume=True)
    """Consecutive skipped updates after which the run stops."""
    max_rollbacks: PositiveInt = numerics(3, resume=True)
    """Rollbacks without a new checkpoint in between after which the run stops."""
    spike_sigmas: PositiveFloat | None = bookkeeping(10.0, resume=True)
    """Standard deviations above the recent median at which a loss is reported as a spike.

    Set to null to disable."""
    spike_window: PositiveInt = bookkeeping(128, unit="steps", resume=True)
    """Recent steps that the spike detection compares with.

    With fewer steps, a new level of the loss counts as normal sooner."""
    replay_interval: PositiveInt | None = performance(
        None, unit="steps", resume=True, examples=[1000]
    )
    """Steps between replays: one step is computed twice and compared bit by bit.

    Copies on several ranks are compared with each other too. A machine that silently computes wrong
    results ends the run with exit code 70. Set to null to disable."""
    straggler_ratio: MoreThanOne | None = bookkeeping(1.3, resume=True)
    """Ratio of a rank's own work per step to the other ranks' above which it is a straggler.

    A rank is reported as slow if it stays above the ratio for some time. Set to null to disable."""
    build_timeout_seconds: PositiveInt | None = bookkeeping(3600, unit="seconds", resume=True)
    """Longest time without a heartbeat while the run is built.

    Each built component and each tokenized batch of documents is a heartbeat. After this time the
    run counts as hung and ends with exit code 6. Set to null to disable."""
    first_step_timeout_seconds: PositiveInt | None = bookkeeping(3600, unit="seconds", resume=True)
    """Longest duration of the first step after a start, including compilation.

    After this time the run counts as hung and ends with exit code 6. Set to null to disable."""
    step_timeout_seconds: PositiveInt | None = bookkeeping(1800, unit="seconds", resume=True)
    """Longest duration of any later step. Set to null to disable."""
    save_timeout_seconds: PositiveInt | None = bookkeeping(3600, unit="seconds", resume=True)
    """Longest duration of saving a checkpoint. Set to null to disable.

    After the first save of a start, ten times the duration of the last one is enough, but at least
    300 seconds."""
