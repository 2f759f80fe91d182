"""Rules about settings that nothing reads because what would read them is switched off."""

from collections.abc import Iterator

from titanrun.components.data.config import DatasetConfig
from titanrun.components.schedules.config import (
    ConstantConfig,
    WarmedConfig,
    WarmupStableDecayConfig,
)
from titanrun.config.problems import DataPath
from titanrun.config.tree import path_text
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.data import measured_datasets

SAVING = ("interval", "keep_latest_k", "enable_first_step_checkpoint", "async_mode")
LOADING = ("folder", "load_only", "load_step", "exclude_from_loading")
TRACES = ("save_traces_folder", "profiler_active", "profiler_warmup")
COMPILING = ("components", "backend")
RECORDING = ("save_traces_folder", "save_traces_file_prefix")
WARMUP = ("warmup_start_factor", "first_step")
MEETING = ("rdzv_endpoint", "rdzv_id", "rdzv_timeout_seconds")
DECAY = ("decay_type", "min_lr_factor")


@rule("settings-need-validation")
def settings_need_validation(run: Recipe) -> Iterator[Finding]:
    """While validation.enable is false, nothing else in the section is read, but by a run of kind eval that measures by its dataset. Switch
    it on, or remove the rest."""
    measured = any(place == ("validation", "dataset") for place, _ in measured_datasets(run))
    if not run.validation.enable:
        for name in type(run.validation).model_fields:
            if name not in ("enable", *(("dataset", "seq_len") if measured else ())):
                yield unread(
                    ("validation", name),
                    ("validation", "enable"),
                    "is false",
                    "set validation.enable: true, or remove it",
                )


@rule("settings-need-checkpoints")
def settings_need_checkpoints(run: Recipe) -> Iterator[Finding]:
    """While checkpoint.enable is false, nothing is saved, and nothing that was saved is loaded: where, how often and how many does not
    matter. Switch it on, or remove them."""
    if not run.checkpoint.enable:
        for name in (*SAVING, *LOADING):
            yield unread(
                ("checkpoint", name),
                ("checkpoint", "enable"),
                "is false",
                "set checkpoint.enable: true, or remove it",
            )


@rule("validation-reads-in-order")
def validation_reads_in_order(run: Recipe) -> Iterator[Finding]:
    """Validation reads the same rows in the same order each time: shuffling its data changes nothing. Remove it."""
    dataset = run.validation.dataset
    if run.validation.enable and isinstance(dataset, DatasetConfig) and dataset.shuffle:
        message = "shuffle has no effect on validation: it reads the same rows in the same order each time"
        paths = (("validation", "dataset", "shuffle"),)
        yield Finding(
            message, paths, help="remove it", code="no-effect", severity="warning", if_written=True
        )


@rule("products-follow-bf16-weights")
def products_follow_bf16_weights(run: Recipe) -> Iterator[Finding]:
    """training.mixed_precision_param is what fp32 weights compute in; weights stored in another type compute in their own. Remove it, or
    store the weights in float32."""
    training = run.training
    if training.dtype not in ("float32", training.mixed_precision_param):
        state, help = (
            f"is {training.dtype}, and such weights compute in it",
            "remove it, or set training.dtype: float32",
        )
        yield unread(("training", "mixed_precision_param"), ("training", "dtype"), state, help)


@rule("warning-needs-deterministic")
def warning_needs_deterministic(run: Recipe) -> Iterator[Finding]:
    """debug.deterministic_warn_only softens debug.deterministic, and means nothing without it."""
    if run.debug.deterministic_warn_only and not run.debug.deterministic:
        paths = ("debug", "deterministic_warn_only"), ("debug", "deterministic")
        yield unread(*paths, "is false", "set debug.deterministic: true, or remove it")


@rule("floor-needs-decay")
def floor_needs_decay(run: Recipe) -> Iterator[Finding]:
    """With lr_scheduler.decay_ratio 0 the learning rate stays at its peak: shape and floor of the decay are not read."""
    if isinstance(run.lr_scheduler, WarmupStableDecayConfig) and run.lr_scheduler.decay_ratio == 0:
        for name in DECAY:
            yield unread(
                ("lr_scheduler", name),
                ("lr_scheduler", "decay_ratio"),
                "is 0",
                "set another decay_ratio, or remove it",
            )


@rule("floor-needs-a-decay")
def floor_needs_a_decay(run: Recipe) -> Iterator[Finding]:
    """The constant schedule stays at its peak: there is no floor that it comes down to. Remove it, or choose a schedule that decays."""
    if isinstance(run.lr_scheduler, ConstantConfig):
        path = ("lr_scheduler", "min_lr_factor")
        yield unread(
            path,
            ("lr_scheduler", "name"),
            "is constant",
            "remove it, or choose a schedule that decays",
        )


@rule("start-needs-warmup")
def start_needs_warmup(run: Recipe) -> Iterator[Finding]:
    """With no step of warmup, where the warmup begins and what its first step counts as is not read."""
    if isinstance(run.lr_scheduler, WarmedConfig) and run.lr_scheduler.warmup_steps == 0:
        for name in WARMUP:
            yield unread(
                ("lr_scheduler", name),
                ("lr_scheduler", "warmup_steps"),
                "is 0",
                "set lr_scheduler.warmup_steps, or remove it",
            )


@rule("settings-need-saving")
def settings_need_saving(run: Recipe) -> Iterator[Finding]:
    """While checkpoint.load_only is true, nothing is saved: how often and how many does not matter. Remove one of the two."""
    if run.checkpoint.enable and run.checkpoint.load_only:
        for name in (*SAVING, "last_save_model_only", "last_save_in_hf"):
            yield unread(
                ("checkpoint", name),
                ("checkpoint", "load_only"),
                "is true",
                "remove one of the two",
            )


@rule("settings-need-initial-load")
def settings_need_initial_load(run: Recipe) -> Iterator[Finding]:
    """What is taken from another run matters only where checkpoint.initial_load_path names one."""
    if run.checkpoint.initial_load_path is None and not run.checkpoint.initial_load_in_hf:
        path = ("checkpoint", "initial_load_path")
        yield unread(
            ("checkpoint", "initial_load_model_only"),
            path,
            "is not set",
            "set initial_load_path, or remove it",
        )


@rule("settings-need-profiling")
def settings_need_profiling(run: Recipe) -> Iterator[Finding]:
    """While neither profiling.enable_profiling nor profiling.enable_memory_snapshot is true, the rest of the section is not read; each
    folder belongs to one of the two. Switch it on, or remove the rest."""
    traces, snapshots = ("profiling", "enable_profiling"), ("profiling", "enable_memory_snapshot")
    if not run.profiling.enable_profiling:
        shared = () if run.profiling.enable_memory_snapshot else ("profile_freq",)
        for name in (*TRACES, *shared):
            yield unread(
                ("profiling", name),
                traces,
                "is false",
                "set profiling.enable_profiling: true, or remove it",
            )
    if not run.profiling.enable_memory_snapshot:
        folder = ("profiling", "save_memory_snapshot_folder")
        yield unread(
            folder,
            snapshots,
            "is false",
            "set profiling.enable_memory_snapshot: true, or remove it",
        )


@rule("settings-need-compile")
def settings_need_compile(run: Recipe) -> Iterator[Finding]:
    """While compile.enable is false, nothing is compiled, with whatever back end. Switch it on, or remove the rest."""
    if not run.compile.enable:
        for name in COMPILING:
            yield unread(
                ("compile", name),
                ("compile", "enable"),
                "is false",
                "set compile.enable: true, or remove it",
            )


@rule("settings-need-flight-recorder")
def settings_need_flight_recorder(run: Recipe) -> Iterator[Finding]:
    """With comm.trace_buf_size 0 the flight recorder is off and writes no files. Give it room, or remove their names."""
    if run.comm.trace_buf_size == 0:
        for name in RECORDING:
            yield unread(
                ("comm", name),
                ("comm", "trace_buf_size"),
                "is 0",
                "set comm.trace_buf_size above 0, or remove it",
            )


@rule("settings-need-loader-processes")
def settings_need_loader_processes(run: Recipe) -> Iterator[Finding]:
    """With num_workers 0 each rank prepares its rows itself: there is no process that could stay, or work ahead. Ask for processes, or
    remove the setting."""
    sections = {"training": run.training.dataloader, "validation": run.validation.dataloader}
    for section, loader in sections.items():
        if loader.num_workers == 0 and (section == "training" or run.validation.enable):
            for name in ("persistent_workers", "prefetch_factor"):
                count = (section, "dataloader", "num_workers")
                yield unread(
                    (section, "dataloader", name),
                    count,
                    "is 0",
                    "set num_workers above 0, or remove it",
                )


@rule("pinning-needs-a-copy")
def pinning_needs_a_copy(run: Recipe) -> Iterator[Finding]:
    """Page-locked memory speeds the copy of token ids to an accelerator: on the CPU nothing is copied, and what is made of pictures is on
    the device already. Remove pin_memory."""
    for section in ("training", *(("validation",) if run.validation.enable else ())):
        path = (section, "dataloader", "pin_memory")
        if run.device == "cpu":
            yield unread(path, ("device",), "is cpu", "remove it, or train on a gpu")
        elif run.model.takes != "tokens":
            yield unread(
                path,
                ("model", "name"),
                f"is {run.model.name}, which takes {run.model.takes}",
                "remove it",
            )


@rule("settings-need-nodes")
def settings_need_nodes(run: Recipe) -> Iterator[Finding]:
    """One machine meets nobody: where and how is read only with launch.nnodes above 1. Remove it, or set nnodes."""
    if run.launch.nodes == 1:
        for name in MEETING:
            yield unread(
                ("launch", name),
                ("launch", "nnodes"),
                "is 1",
                "set launch.nnodes above 1, or remove it",
            )


@rule("balance-needs-experts")
def balance_needs_experts(run: Recipe) -> Iterator[Finding]:
    """debug.moe_force_load_balance deals tokens to experts, and a dense model has none. Remove it."""
    if run.model.routed_experts() == 0:
        yield unread(
            ("debug", "moe_force_load_balance"),
            ("model", "name"),
            f"{run.model.name} has no experts",
            "remove it",
        )


def unread(path: DataPath, switch: DataPath, state: str, help: str) -> Finding:
    """A warning about a value that somebody wrote for nothing."""
    message = f"{path[-1]} has no effect: {path_text(switch)} {state}"
    return Finding(
        message, (path, switch), help=help, code="no-effect", severity="warning", if_written=True
    )
