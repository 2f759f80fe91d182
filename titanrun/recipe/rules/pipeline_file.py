"""The rule about a pipeline schedule of one's own."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.distributed.schedule_file import (
    ScheduleFileError,
    fault_in,
    read_schedule,
    splits_backward,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.pipeline import (
    DEGREE,
    LOCAL_BATCH,
    MICROBATCH,
    PARTS,
    PER_STAGE,
    stages_in,
)
from titanrun.recipe.rules.ranks import at

FILE = at("pipeline_parallel_schedule_csv")
HELP = "see titanrun explain schedule-file-fits"


@rule("schedule-file-fits", level="environment")
def schedule_file_fits(run: Recipe) -> Iterator[Finding]:
    """The file that pipeline_parallel_schedule_csv names is there and has a line for each pipeline rank. Its actions, like `0F1` for the
    forward pass of stage 0 on microbatch 1, run each microbatch forward and backward through each stage, on one rank, in an order that
    never comes to a halt. Stages are counted as stages-fit-schedule says, and without pipeline_parallel_layers_per_stage or
    module_fqns_per_model_part there are two a rank. A file that runs backward passes in halves (I and W) needs weights that stay:
    fsdp_reshard_after_forward must not be `always`."""
    section, file = run.parallelism, run.parallelism.pipeline_parallel_schedule_csv
    ranks, microbatches = (
        section.pipeline_parallel_degree,
        run.training.local_batch_size // section.pipeline_parallel_microbatch_size,
    )
    if ranks == 1 or file is None:
        return
    if not Path(file).is_file():
        yield Finding(
            f"there is no '{file}'",
            (FILE,),
            help=f"paths are relative to {Path.cwd()}",
            code="file",
        )
        return
    try:
        order = read_schedule(Path(file))
        fault = fault_in(order, ranks=ranks, stages=stages_in(run), microbatches=microbatches)
    except ScheduleFileError as error:
        yield Finding(f"'{file}' is no schedule: {error}", (FILE,), help=HELP)
        return
    if fault is not None:
        yield Finding(
            f"'{file}' does not fit: {fault}",
            (FILE, DEGREE, LOCAL_BATCH, MICROBATCH, PARTS, PER_STAGE),
            help=HELP,
        )
    elif splits_backward(order) and section.fsdp_reshard_after_forward == "always":
        message = f"'{file}' splits backward passes, which lose gradients where weights are dropped after the forward pass"
        yield Finding(
            message, (at("fsdp_reshard_after_forward"), FILE), help="use default, or never"
        )
