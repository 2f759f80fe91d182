"""The checkpoint section: when to save, what to keep, what to start from."""

from typing import Literal

from titanrun.components.checkpoints.addresses import CheckpointFolder, PathOrAddress
from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, numerics, performance
from titanrun.config.types import NonNegativeInt, PositiveInt, Text
from titanrun.config.units import StepsOrDuration


class CheckpointConfig(Config):
    """When to save, what to keep, what to start from."""

    enable: bool = bookkeeping(False)
    """Whether checkpoints are written, and a run that was stopped goes on from its last one."""
    folder: CheckpointFolder = bookkeeping("checkpoint", examples=["s3://bucket/runs/first"])
    """Folder of the checkpoints inside the run directory, or an address in a store, which belongs to one run."""
    interval: StepsOrDuration = bookkeeping(500, unit="steps", resume=True)
    """Steps between checkpoints, or the time between them, such as 10m; a time is looked at after each step."""
    keep_latest_k: NonNegativeInt = bookkeeping(10)
    """How many checkpoints stay; 0 keeps all."""
    keep_every: PositiveInt | None = bookkeeping(None, unit="steps", examples=[1000])
    """Checkpoints of steps that this divides stay too; null: none does for that reason."""
    keep_best: NonNegativeInt = bookkeeping(0)
    """How many checkpoints with the lowest validation loss stay too; only those count that were validated after the same step."""
    initial_load_path: PathOrAddress | None = numerics(
        None, examples=["runs/first/checkpoint/step-1000"]
    )
    """Where a new run takes its weights from: a checkpoint, or with initial_load_in_hf a Hugging Face folder; a path or an address."""
    initial_load_model_only: bool = numerics(True)
    """Whether only the weights come from there; false: optimizer, schedule, data position and step too."""
    initial_load_in_hf: bool = numerics(False)
    """Whether initial_load_path is a Hugging Face folder; without a path, model.hf_assets_path."""
    initial_load_in_hf_quantized: bool = numerics(False)
    """Whether the weights in that folder are quantised, and are expanded as they are loaded; its config.json names the format."""
    load_step: NonNegativeInt | None = numerics(None, unit="steps", resume=True)
    """The checkpoint that a run goes on from, once; null: the latest. Later ones are kept under another name."""
    exclude_from_loading: tuple[
        Literal["optimizer", "lr_scheduler", "dataloader", "train_state"], ...
    ] = numerics((), resume=True)
    """What begins anew when a run goes on, once, or starts from another's state; the weights are always loaded."""
    load_only: bool = bookkeeping(False, resume=True)
    """Whether the run goes on from its checkpoints, but writes none."""
    enable_first_step_checkpoint: bool = bookkeeping(False, resume=True)
    """Whether there is a checkpoint after the first step too, to see early that saving works."""
    create_seed_checkpoint: bool = bookkeeping(False)
    """Whether the run ends before its first step, with a checkpoint of its first weights that runs on any number of ranks load."""
    # torchtitan 0.2.2 saves the weights only at the end; here a run can always go on with more steps
    last_save_model_only: bool = bookkeeping(False)
    """Whether the last checkpoint holds the weights only; such a run cannot go on."""
    adapters_only: bool = bookkeeping(False)
    """Whether checkpoints leave frozen weights out, which a run that goes on takes from where it started: initial_load_path or the seed."""
    last_save_in_hf: bool = bookkeeping(False)
    """Whether the end of the run also writes a folder `hf` that transformers opens."""
    export_dtype: Literal["float32", "bfloat16", "float16"] = bookkeeping("float32")
    """Storage type of the weights in that folder, and of a last checkpoint with the weights only."""
    verify: Literal["always", "sampled", "off"] = bookkeeping("always")
    """How much of a checkpoint is compared with its digests before it is loaded: every byte, a sample, or sizes only."""
    allow_change: tuple[Text, ...] = bookkeeping(
        (), examples=[["optimizer.lr", "training.dataset"]]
    )
    """Fields or sections that may differ from those of the run that is resumed, though they move the loss curve."""
    allow_extra: bool = bookkeeping(False)
    """Whether tensors of a checkpoint that the model does not have are passed over; else they are an error."""
    allow_cast: bool = bookkeeping(False)
    """Whether tensors saved in another dtype are converted when a run is resumed; else they are an error."""
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = performance("disabled")
    """What writes a checkpoint while training goes on, from a copy in memory: async a thread, async_with_pinned_mem a process."""
