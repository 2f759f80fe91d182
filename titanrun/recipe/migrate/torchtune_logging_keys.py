"""Keys of torchtune's loggers and profiler and their migration."""

from titanrun.recipe.migrate import torchtune_values as run
from titanrun.recipe.migrate.key_mapping import SourceKey, ignore_key, move_key, when_enabled

INSIDE = "everything is written inside the run directory"
TRACE = "traces contain what the profiler records by default"
PROFILING = when_enabled("profiler.enabled")

LOGGING_KEYS: tuple[SourceKey, ...] = (
    move_key(
        "metric_logger._component_", None, "metrics.trackers", convert=run.convert_metric_logger
    ),
    ignore_key("metric_logger.log_dir", None, INSIDE),
    ignore_key("metric_logger.filename", None, INSIDE),
    ignore_key("metric_logger.organize_logs", True, INSIDE),
    move_key(
        "metric_logger.project",
        "torchtune",
        "metrics.trackers[wandb].project",
        convert=run.make_logger_conversion("wandb", "project"),
    ),
    move_key(
        "metric_logger.entity",
        None,
        "metrics.trackers[wandb].entity",
        convert=run.make_logger_conversion("wandb", "entity"),
    ),
    move_key(
        "metric_logger.group",
        None,
        "metrics.trackers[wandb].group",
        convert=run.make_logger_conversion("wandb", "group"),
    ),
    move_key(
        "metric_logger.experiment_name",
        None,
        "metrics.trackers[mlflow].experiment",
        convert=run.make_logger_conversion("mlflow", "experiment"),
    ),
    move_key(
        "metric_logger.tracking_uri",
        None,
        "metrics.trackers[mlflow].tracking_uri",
        convert=run.make_logger_conversion("mlflow", "tracking_uri"),
    ),
    ignore_key("metric_logger.run_id", None, "a run starts its own"),
    ignore_key("metric_logger.run_name", None, "the name of the run is used"),
    move_key("log_every_n_steps", 1, "metrics.log_freq"),
    ignore_key("log_peak_memory_stats", False, "memory is always logged"),
    ignore_key("log_level", None, "titanrun always logs everything"),
    move_key("profiler.enabled", False, "profiling.enable_profiling"),
    ignore_key("profiler._component_", None, "titanrun has one profiler"),
    ignore_key("profiler.output_dir", None, INSIDE),
    ignore_key("profiler.cpu", True, TRACE),
    ignore_key("profiler.cuda", True, TRACE),
    ignore_key("profiler.xpu", True, TRACE),
    ignore_key(
        "profiler.profile_memory", False, "profiling.enable_memory_snapshot records the allocator"
    ),
    ignore_key("profiler.with_stack", False, TRACE),
    ignore_key("profiler.record_shapes", False, TRACE),
    ignore_key("profiler.with_flops", False, TRACE),
    move_key(
        "profiler.wait_steps",
        5,
        "profiling.profile_freq",
        convert=run.convert_profile_cycle,
        needs=(PROFILING,),
    ),
    move_key("profiler.warmup_steps", 3, "profiling.profiler_warmup", needs=(PROFILING,)),
    move_key("profiler.active_steps", 2, "profiling.profiler_active", needs=(PROFILING,)),
    ignore_key("profiler.num_cycles", 1, "every cycle of the run is recorded"),
)
