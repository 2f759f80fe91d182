"""Rule about user-defined pipeline schedules."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.distributed.spec.pipeline_schedule_csv import (
    ScheduleFileError,
    find_schedule_problem,
    has_split_backward,
    read_schedule_csv,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.parallel_dims import get_parallelism_path
from titanrun.recipe.rules.pipeline import (
    DEGREE,
    LOCAL_BATCH,
    MICROBATCH,
    PARTS,
    PER_STAGE,
    count_pipeline_stages,
)
from titanrun.recipe.rules.registry import RuleViolation, rule

FILE = get_parallelism_path("pipeline_parallel_schedule_csv")
HELP = "see titanrun explain schedule-file-fits"


def count_csv_microbatches(run: Recipe) -> int:
    """Return the number of microbatches of a forward pass."""
    return run.training.local_batch_size // run.parallelism.pipeline_parallel_microbatch_size


@rule("schedule-file-fits", level="environment")
def schedule_file_fits(run: Recipe) -> Iterator[RuleViolation]:
    """Require pipeline_parallel_schedule_csv to be a valid schedule for the run.

    The file exists and has a line for each pipeline rank. Its actions, like `0F1` for the forward
    pass of stage 0 on microbatch 1, run each microbatch forward and backward through each stage, on
    one rank, in an order without deadlock. Stages are counted as stages-fit-schedule explains.
    Without pipeline_parallel_layers_per_stage or module_fqns_per_model_part each rank has two. A
    file that runs backward passes in halves (I and W) needs weights that stay gathered:
    fsdp_reshard_after_forward must not be `always`.
    """
    section, file = run.parallelism, run.parallelism.pipeline_parallel_schedule_csv
    ranks = section.pipeline_parallel_degree
    if ranks == 1 or file is None:
        return
    if not Path(file).is_file():
        yield RuleViolation(
            f"file not found: '{file}'",
            (FILE,),
            hint=f"paths are relative to {Path.cwd()}",
            code="file",
        )
        return
    try:
        order = read_schedule_csv(Path(file))
        fault = find_schedule_problem(
            order,
            pp_size=ranks,
            num_stages=count_pipeline_stages(run),
            num_microbatches=count_csv_microbatches(run),
        )
    except ScheduleFileError as error:
        yield RuleViolation(f"'{file}' is not a schedule: {error}", (FILE,), hint=HELP)
        return
    if fault is not None:
        yield RuleViolation(
            f"'{file}' does not fit the run: {fault}",
            (FILE, DEGREE, LOCAL_BATCH, MICROBATCH, PARTS, PER_STAGE),
            hint=HELP,
        )
    elif has_split_backward(order) and section.fsdp_reshard_after_forward == "always":
        message = (
            f"'{file}' splits backward passes, which lose gradients if weights are "
            "resharded after the forward pass"
        )
        yield RuleViolation(
            message,
            (get_parallelism_path("fsdp_reshard_after_forward"), FILE),
            hint="use default or never",
        )
