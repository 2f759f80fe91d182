"""The checkpoint section: saving, retention and initial weights."""

from typing import Literal

from titanrun.components.checkpoints.spec.storage_path import CheckpointFolder, LocalOrStoragePath
from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, bookkeeping, numerics, performance
from titanrun.config.types import NonNegativeInt, OrAuto, PositiveInt, Text
from titanrun.config.units import StepsOrDuration

CHECKPOINTING = ReadWhen(
    "settings-need-checkpoints",
    ".enable",
    "is false",
    "set checkpoint.enable: true, or remove it",
    values=(True,),
)
SAVING = ReadWhen(
    "settings-need-saving",
    ".load_only",
    "is true",
    "remove one of the two",
    values=(False,),
    fact="has_no_checkpoints",
)
INITIAL_LOAD = ReadWhen(
    "settings-need-initial-load",
    ".initial_load_path",
    "is not set",
    "set initial_load_path, or remove it",
    not_values=(None,),
    or_enabled="initial_load_in_hf",
)


class CheckpointConfig(Config):
    """When to save, what to keep, what to load."""

    enable: bool = bookkeeping(True)
    """Whether to write checkpoints and to resume a stopped run from the last one."""
    folder: CheckpointFolder = bookkeeping(
        "checkpoint", examples=["s3://bucket/runs/first"], read_when=CHECKPOINTING
    )
    """Folder of the checkpoints inside the run directory, or a storage URL, which belongs to one
    run."""
    interval: StepsOrDuration = bookkeeping(
        500, unit="steps", resume=True, read_when=(CHECKPOINTING, SAVING)
    )
    """Steps between checkpoints, or the time between them, such as 10m. A time is checked after
    each step."""
    keep_latest_k: NonNegativeInt = bookkeeping(2, read_when=(CHECKPOINTING, SAVING))
    """Number of latest checkpoints to keep. Set to 0 to keep all."""
    keep_every: PositiveInt | None = bookkeeping(None, unit="steps", examples=[1000])
    """Also keep checkpoints of steps divisible by this number. Set to null to disable."""
    keep_best: NonNegativeInt = bookkeeping(0)
    """Number of the best checkpoints, those with the lowest validation loss, to keep, too. Only
    those with a validation after the same step count."""
    initial_load_path: OrAuto[LocalOrStoragePath] | None = numerics(
        "auto", examples=["runs/first/checkpoint/step-1000"]
    )
    """Initial weights of a new run: a checkpoint, or with initial_load_in_hf a Hugging Face folder.
    A path or a storage URL. auto: model.hf_assets_path if that has weights and kind is not
    pretrain, else null."""
    initial_load_model_only: bool = numerics(True, read_when=INITIAL_LOAD)
    """Whether to load only the weights from there. If false, optimizer, schedule, data position and
    step are loaded, too."""
    initial_load_in_hf: bool = numerics(False)
    """Whether initial_load_path is a Hugging Face folder. Without a path, model.hf_assets_path is
    used. false for a run or checkpoint of titanrun on this machine, whatever is written."""
    initial_load_in_hf_quantized: bool = numerics(False)
    """Whether the weights in that folder are quantized, to be dequantized at loading. Its
    config.json names the format."""
    load_step: NonNegativeInt | None = numerics(
        None, unit="steps", resume=True, read_when=CHECKPOINTING
    )
    """Step of the checkpoint to resume from, once. If null, the latest. Later ones are renamed."""
    exclude_from_loading: tuple[
        Literal["optimizer", "lr_scheduler", "dataloader", "train_state"], ...
    ] = numerics((), resume=True, read_when=CHECKPOINTING)
    """State that is reset when a run resumes, once, or starts from another run's state. The weights
    are always loaded."""
    load_only: bool = bookkeeping(False, resume=True, read_when=CHECKPOINTING)
    """Whether the run resumes from its checkpoints, but writes none."""
    enable_first_step_checkpoint: bool = bookkeeping(
        False, resume=True, read_when=(CHECKPOINTING, SAVING)
    )
    """Whether to also save after the first step, to detect early if saving fails."""
    create_seed_checkpoint: bool = bookkeeping(False)
    """Whether to end the run before its first step, with a checkpoint of its initial weights that
    runs on any number of ranks load."""
    # torchtitan 0.2.2 saves the weights only at the end; here a run can always continue with more
    # steps
    last_save_model_only: bool = bookkeeping(False, read_when=SAVING)
    """Whether the last checkpoint holds the weights only. Such a run cannot be resumed."""
    adapters_only: OrAuto[bool] = bookkeeping("auto", examples=[True])
    """Whether checkpoints omit frozen weights, which a resumed run takes from its start:
    initial_load_path or the seed.

    `auto`: true with qlora, whose frozen weights cannot be saved."""
    last_save_in_hf: bool = bookkeeping(False, read_when=SAVING)
    """Whether to also write a folder `hf` for transformers at the end of the run."""
    export_dtype: Literal["float32", "bfloat16", "float16"] = bookkeeping("float32")
    """Storage dtype of the weights in that folder, and of a last checkpoint with the weights
    only."""
    verify: Literal["always", "sampled", "off"] = bookkeeping("always")
    """How much of a checkpoint is compared with its digests before loading: every byte, a sample,
    or sizes only."""
    allow_change: tuple[Text, ...] = bookkeeping(
        (), examples=[["optimizer.lr", "training.dataset"]]
    )
    """Fields or sections that may differ from those of the resumed run, although they change the
    loss curve. Weights must keep their shapes."""
    allow_extra: bool = bookkeeping(False)
    """Whether to ignore tensors of a checkpoint that the model does not have. Otherwise they are an
    error."""
    allow_cast: bool = bookkeeping(False)
    """Whether to convert tensors saved in another dtype when a run is resumed. Otherwise they are
    an error."""
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = performance(
        "disabled", read_when=(CHECKPOINTING, SAVING)
    )
    """Writer of checkpoints during training, from a copy in memory: async a thread,
    async_with_pinned_mem a process."""

    def allows_change(self, *paths: str) -> bool:
        """Return whether allow_change names one of the fields, what is in it, or what it is in."""
        return any(
            f"{path}.".startswith(f"{allowed}.") or allowed.startswith(f"{path}.")
            for allowed in self.allow_change
            for path in paths
        )
