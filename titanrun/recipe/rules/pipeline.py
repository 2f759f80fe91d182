"""Rules about pipeline parallelism: stages, microbatches, schedules."""

from collections.abc import Iterator

from titanrun.config.suggest import format_word_list
from titanrun.config.tree import format_path
from titanrun.distributed.config import ParallelismConfig
from titanrun.distributed.spec.parallel_dims import compute_common_divisors
from titanrun.distributed.spec.pipeline_stages import (
    PIPELINE_SCHEDULES,
    can_split_into_rounds,
    compute_num_stages,
    find_layer_split_problem,
    get_end_layer_costs,
    should_overlap_passes,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.module_lists import LAYERS, find_cover_violations
from titanrun.recipe.rules.parallel_dims import get_parallelism_path
from titanrun.recipe.rules.registry import RuleViolation, rule

DEGREE = get_parallelism_path("pipeline_parallel_degree")
SCHEDULE = get_parallelism_path("pipeline_parallel_schedule")
MICROBATCH = get_parallelism_path("pipeline_parallel_microbatch_size")
PER_STAGE = get_parallelism_path("pipeline_parallel_layers_per_stage")
PARTS = get_parallelism_path("module_fqns_per_model_part")
WEIGHTS = (
    get_parallelism_path("pipeline_parallel_first_stage_less_layers"),
    get_parallelism_path("pipeline_parallel_last_stage_less_layers"),
)
OVERLAP = get_parallelism_path("pipeline_parallel_expert_parallel_overlap")
LOCAL_BATCH = ("training", "local_batch_size")


def find_pipeline_schedule(section: ParallelismConfig) -> str | None:
    """Return the pipeline schedule of a recipe.

    Return None without a pipeline, or if a file defines the schedule.
    """
    if section.pipeline_parallel_degree == 1 or section.pipeline_parallel_schedule_csv is not None:
        return None
    return section.pipeline_parallel_schedule


def count_pipeline_stages(run: Recipe) -> int:
    """Return the number of pipeline stages of a recipe."""
    return compute_num_stages(run.parallelism, run.model.layer_count())


def format_stages_per_rank(schedule: str) -> str:
    """Format the number of stages per rank under a schedule."""
    shape = PIPELINE_SCHEDULES[schedule]
    return (
        "1 stage"
        if shape.is_single_stage
        else "exactly 2 stages"
        if shape.is_v_shaped
        else "2 or more stages"
    )


@rule("stages-fit-schedule")
def stages_fit_schedule(run: Recipe) -> Iterator[RuleViolation]:
    """Require the number of pipeline stages to fit the schedule.

    Every pipeline rank holds the same number of stages: one under the schedules 1F1B and GPipe,
    exactly two under ZBVZeroBubble and DualPipeV, two or more under the others. The stages are the
    entries of module_fqns_per_model_part, or follow from pipeline_parallel_layers_per_stage:
    (layers + layers that embedding and head count as) / layers per stage, rounded up.
    """
    section, schedule = run.parallelism, find_pipeline_schedule(run.parallelism)
    listed, per_stage = (
        section.module_fqns_per_model_part,
        section.pipeline_parallel_layers_per_stage,
    )
    if section.pipeline_parallel_degree == 1 or (listed is None and per_stage is None):
        return
    ranks, stages = section.pipeline_parallel_degree, count_pipeline_stages(run)
    source = (PARTS,) if listed is not None else (PER_STAGE, *LAYERS, *WEIGHTS)
    each, left = divmod(stages, ranks)
    if left:
        message = f"{stages} pipeline stages are not divisible by pipeline_parallel_degree {ranks}"
        yield RuleViolation(
            message, (source[0], DEGREE, *source[1:]), hint=f"use a multiple of {ranks} stages"
        )
    elif schedule is not None and not allows_stages_per_rank(schedule, each):
        shape = PIPELINE_SCHEDULES[schedule]
        fitting = [name for name in PIPELINE_SCHEDULES if allows_stages_per_rank(name, each)]
        yield RuleViolation(
            f"schedule {schedule} needs {format_stages_per_rank(schedule)} per rank, "
            f"but {stages} stages on {ranks} ranks are {each}",
            (SCHEDULE, source[0], DEGREE, *source[1:]),
            hint=(
                f"use {ranks * shape.stages_per_rank} stages, or schedule "
                f"{format_word_list(fitting)}"
            ),
        )


def allows_stages_per_rank(schedule: str, each: int) -> bool:
    """Return whether a schedule supports `each` stages per rank."""
    shape = PIPELINE_SCHEDULES[schedule]
    return each == 1 if shape.is_single_stage else each == 2 if shape.is_v_shaped else each >= 2


@rule("layers-fill-stages")
def layers_fill_stages(run: Recipe) -> Iterator[RuleViolation]:
    """Require at least one layer per pipeline stage.

    There cannot be more stages than layers, with the embedding and the output head counted as
    pipeline_parallel_first_stage_less_layers and pipeline_parallel_last_stage_less_layers; neither
    may count as more layers than one stage holds. Use fewer stages, or lower counts.
    """
    section = run.parallelism
    if section.pipeline_parallel_degree == 1 or section.module_fqns_per_model_part is not None:
        return
    fault = find_layer_split_problem(
        count_pipeline_stages(run), run.model.layer_count(), get_end_layer_costs(section)
    )
    if fault is not None:
        yield RuleViolation(
            fault,
            (DEGREE, SCHEDULE, PER_STAGE, *WEIGHTS, *LAYERS),
            hint="use fewer stages, or count embedding and head less",
        )


@rule("parts-cover-model")
def parts_cover_model(run: Recipe) -> Iterator[RuleViolation]:
    """Require module_fqns_per_model_part to cover the whole model.

    Each module (tok_embeddings, layers.0 and so on, norm, output) is in exactly one part, and no
    part is empty.
    """
    parts = run.parallelism.module_fqns_per_model_part
    if run.parallelism.pipeline_parallel_degree > 1 and parts is not None:
        yield from find_cover_violations(parts, run.model.module_names(), PARTS, noun="part")


@rule("parts-follow-order")
def parts_follow_order(run: Recipe) -> Iterator[RuleViolation]:
    """Require module_fqns_per_model_part to follow the order of the model.

    Activations go from each part to the next: the parts hold the modules in the model's order, the
    embedding first and the output head last. Within a part the order does not matter.
    """
    parts = run.parallelism.module_fqns_per_model_part
    if run.parallelism.pipeline_parallel_degree == 1 or parts is None:
        return
    place = {name: index for index, name in enumerate(run.model.module_names())}
    before: str | None = None
    for index, part in enumerate(parts):
        known = [name for name in part if name in place]
        early = (
            None
            if before is None
            else next((name for name in known if place[name] < place[before]), None)
        )
        if early is not None:
            places = ((*PARTS, index, part.index(early)), *LAYERS)
            yield RuleViolation(
                f"'{early}' is in a later part than '{before}', which needs its output",
                places,
                hint="move it to an earlier part",
            )
        before = max(
            [*known, *([] if before is None else [before])], key=place.__getitem__, default=None
        )


@rule("microbatches-divide")
def microbatches_divide(run: Recipe) -> Iterator[RuleViolation]:
    """Require local_batch_size to be divisible by the pipeline microbatch size.

    A pipeline splits the sequences of a forward pass into microbatches: training.local_batch_size
    must be a multiple of pipeline_parallel_microbatch_size.
    """
    batch_size, size = (
        run.training.local_batch_size,
        run.parallelism.pipeline_parallel_microbatch_size,
    )
    if run.parallelism.pipeline_parallel_degree > 1 and batch_size % size:
        fitting = map(str, compute_common_divisors(batch_size))
        message = (
            f"local_batch_size {batch_size} is not divisible by "
            f"pipeline_parallel_microbatch_size {size}"
        )
        yield RuleViolation(
            message,
            (MICROBATCH, LOCAL_BATCH),
            hint=f"use a pipeline_parallel_microbatch_size of {format_word_list(fitting)}",
        )


@rule("microbatches-fill-pipeline")
def microbatches_fill_pipeline(run: Recipe) -> Iterator[RuleViolation]:
    """Require enough microbatches for the pipeline schedule.

    A forward pass has training.local_batch_size / pipeline_parallel_microbatch_size microbatches.
    The schedules 1F1B and DualPipeV need one for each stage; Interleaved1F1B and
    InterleavedZeroBubble need equal rounds of about one per rank; under all others fewer
    microbatches than stages leave ranks idle (a warning). Raise local_batch_size.
    """
    section, schedule = run.parallelism, find_pipeline_schedule(run.parallelism)
    batch_size, size = run.training.local_batch_size, section.pipeline_parallel_microbatch_size
    if schedule is None or batch_size % size:
        return
    ranks, stages, count, shape = (
        section.pipeline_parallel_degree,
        count_pipeline_stages(run),
        batch_size // size,
        PIPELINE_SCHEDULES[schedule],
    )
    places = (LOCAL_BATCH, MICROBATCH, DEGREE, SCHEDULE)
    microbatches = f"{count} microbatch{'es' if count > 1 else ''}"
    if shape.needs_microbatch_per_stage and count < stages:
        verb = "are" if count > 1 else "is"
        message = (
            f"schedule {schedule} needs {stages} microbatches, one per stage, but there "
            f"{verb} {count}"
        )
        yield RuleViolation(message, places, hint=suggest_batch_size(run, stages * size))
    elif shape.needs_equal_rounds and not can_split_into_rounds(count, ranks):
        message = (
            f"schedule {schedule} cannot split {microbatches} into {count // ranks} equal "
            f"rounds on {ranks} ranks"
        )
        yield RuleViolation(
            message,
            places,
            hint=f"set training.local_batch_size to {-(-count // ranks) * ranks * size}",
        )
    elif count < stages:
        message = f"{microbatches} cannot keep {stages} pipeline stages busy"
        hint = suggest_batch_size(run, stages * size)
        yield RuleViolation(message, places, hint=hint, severity="warning")


def suggest_batch_size(run: Recipe, least: int) -> str:
    """Return a hint about the batch of a pass, with a global batch that is a multiple of it."""
    hint = f"set training.local_batch_size to {least} or more"
    total = run.training.global_batch_size
    if not isinstance(total, int) or total % least == 0:
        return hint
    return f"{hint}; a written training.global_batch_size is a multiple of it"


@rule("split-backward-keeps-weights")
def split_backward_keeps_weights(run: Recipe) -> Iterator[RuleViolation]:
    """Require weights to stay gathered under schedules that split the backward pass.

    The schedules InterleavedZeroBubble, ZBVZeroBubble and DualPipeV lose gradients silently if
    weights are resharded after the forward pass: fsdp_reshard_after_forward must not be `always`.
    `default` keeps them in every pipeline.
    """
    schedule = find_pipeline_schedule(run.parallelism)
    if (
        schedule is not None
        and PIPELINE_SCHEDULES[schedule].has_split_backward
        and run.parallelism.fsdp_reshard_after_forward == "always"
    ):
        message = (
            f"schedule {schedule} loses gradients if weights are resharded after the forward pass"
        )
        yield RuleViolation(
            message,
            (get_parallelism_path("fsdp_reshard_after_forward"), SCHEDULE, DEGREE),
            hint="use default or never",
        )


@rule("overlap-keeps-activations")
def overlap_keeps_activations(run: Recipe) -> Iterator[RuleViolation]:
    """Require activation_checkpoint: none for overlapped expert communication.

    DualPipeV runs the expert communication of one pass during the computation of another pass,
    which cannot recompute activations: use activation_checkpoint: none, or switch
    pipeline_parallel_expert_parallel_overlap off.
    """
    name = run.activation_checkpoint.name
    if should_overlap_passes(run.parallelism) and name != "none":
        message = (
            f"activation_checkpoint '{name}' does not support "
            "expert-parallel overlap with DualPipeV"
        )
        places = (
            ("activation_checkpoint",),
            SCHEDULE,
            get_parallelism_path("expert_parallel_degree"),
            OVERLAP,
        )
        yield RuleViolation(
            message,
            places,
            hint=(
                "use activation_checkpoint: none, or "
                "pipeline_parallel_expert_parallel_overlap: false"
            ),
        )


@rule("overlap-stands-alone")
def overlap_stands_alone(run: Recipe) -> Iterator[RuleViolation]:
    """Reject tensor and context parallelism and compilation with overlapped passes.

    If DualPipeV runs two passes at once, tensor or context parallelism would communicate in both of
    them over the same ranks, in an order that differs from rank to rank, and PyTorch's compiler
    runs in one thread at a time. Switch one of the two off.
    """
    if not should_overlap_passes(run.parallelism):
        return
    degrees = ("tensor_parallel_degree", "context_parallel_degree")
    clashes = [get_parallelism_path(name) for name in degrees if getattr(run.parallelism, name) > 1]
    if run.compile.enable:
        clashes.append(("compile", "enable"))
    for path in clashes:
        message = f"{format_path(path)} does not support expert-parallel overlap with DualPipeV"
        hint = "set pipeline_parallel_expert_parallel_overlap: false"
        yield RuleViolation(
            message,
            (path, SCHEDULE, get_parallelism_path("expert_parallel_degree"), OVERLAP),
            hint=hint,
        )
