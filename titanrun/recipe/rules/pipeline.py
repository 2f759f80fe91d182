"""Rules about pipeline parallelism: stages, microbatches, schedules."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.config.suggest import closest, listing
from titanrun.config.tree import path_text
from titanrun.distributed.config import ParallelismConfig
from titanrun.distributed.degrees import common_divisors
from titanrun.distributed.stages import (
    SCHEDULES,
    overlaps_passes,
    rounds_fit,
    split_fault,
    stage_count,
    weights_of,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.ranks import at

DEGREE = at("pipeline_parallel_degree")
SCHEDULE = at("pipeline_parallel_schedule")
MICROBATCH = at("pipeline_parallel_microbatch_size")
PER_STAGE = at("pipeline_parallel_layers_per_stage")
PARTS = at("module_fqns_per_model_part")
WEIGHTS = (
    at("pipeline_parallel_first_stage_less_layers"),
    at("pipeline_parallel_last_stage_less_layers"),
)
OVERLAP = at("pipeline_parallel_expert_parallel_overlap")
LOCAL_BATCH = ("training", "local_batch_size")
LAYERS = (("model", "n_layers"), ("model", "flavor"))


def named_schedule(section: ParallelismConfig) -> str | None:
    """The schedule that orders a pipeline; None without a pipeline, and where a file orders it."""
    if section.pipeline_parallel_degree == 1 or section.pipeline_parallel_schedule_csv is not None:
        return None
    return section.pipeline_parallel_schedule


def stages_in(run: Recipe) -> int:
    """How many stages the pipeline of a recipe has."""
    return stage_count(run.parallelism, run.model.layer_count())


def stages_wanted(schedule: str) -> str:
    """How many stages a rank holds under a schedule."""
    shape = SCHEDULES[schedule]
    return (
        "1 stage" if shape.single else "exactly 2 stages" if shape.v_shaped else "2 or more stages"
    )


@rule("stages-fit-schedule")
def stages_fit_schedule(run: Recipe) -> Iterator[Finding]:
    """Every pipeline rank holds the same number of stages: one under the schedules 1F1B and GPipe, exactly two under ZBVZeroBubble
    and DualPipeV, two or more under the others. The stages are the entries of module_fqns_per_model_part, or follow from
    pipeline_parallel_layers_per_stage: (layers + what embedding and head count as) / layers a stage, rounded up."""
    section, schedule = run.parallelism, named_schedule(run.parallelism)
    listed, per_stage = (
        section.module_fqns_per_model_part,
        section.pipeline_parallel_layers_per_stage,
    )
    if section.pipeline_parallel_degree == 1 or (listed is None and per_stage is None):
        return
    ranks, stages = section.pipeline_parallel_degree, stages_in(run)
    source = (PARTS,) if listed is not None else (PER_STAGE, *LAYERS, *WEIGHTS)
    each, left = divmod(stages, ranks)
    if left:
        message = f"{stages} stages cannot be dealt evenly to {ranks} pipeline ranks"
        yield Finding(
            message, (source[0], DEGREE, *source[1:]), help=f"make it a multiple of {ranks} stages"
        )
    elif schedule is not None and not stages_allowed(schedule, each):
        shape = SCHEDULES[schedule]
        fitting = [name for name in SCHEDULES if stages_allowed(name, each)]
        yield Finding(
            f"schedule {schedule} takes {stages_wanted(schedule)} a rank, and {stages} stages on {ranks} ranks are {each}",
            (SCHEDULE, source[0], DEGREE, *source[1:]),
            help=f"make it {ranks * shape.stages_per_rank} stages, or use {listing(fitting)}",
        )


def stages_allowed(schedule: str, each: int) -> bool:
    """Whether a schedule can have so many stages on each rank."""
    shape = SCHEDULES[schedule]
    return each == 1 if shape.single else each == 2 if shape.v_shaped else each >= 2


@rule("layers-fill-stages")
def layers_fill_stages(run: Recipe) -> Iterator[Finding]:
    """Every pipeline stage needs something to do: there cannot be more stages than layers, the embedding and the output head counted
    as pipeline_parallel_first_stage_less_layers and pipeline_parallel_last_stage_less_layers say; neither may count for more than one
    stage takes. Use fewer stages, or lower counts."""
    section = run.parallelism
    if section.pipeline_parallel_degree == 1 or section.module_fqns_per_model_part is not None:
        return
    fault = split_fault(stages_in(run), run.model.layer_count(), weights_of(section))
    if fault is not None:
        yield Finding(
            fault,
            (DEGREE, SCHEDULE, PER_STAGE, *WEIGHTS, *LAYERS),
            help="use fewer stages, or count embedding and head less",
        )


@rule("parts-cover-model")
def parts_cover_model(run: Recipe) -> Iterator[Finding]:
    """module_fqns_per_model_part deals out the whole model: each of its modules (tok_embeddings, layers.0 and so on, norm, output)
    stands in exactly one part, and no part is empty."""
    parts = run.parallelism.module_fqns_per_model_part
    if run.parallelism.pipeline_parallel_degree == 1 or parts is None:
        return
    modules, places = run.model.module_names(), dict[str, DataPath]()
    named = [
        ((*PARTS, index, item), name)
        for index, part in enumerate(parts)
        for item, name in enumerate(part)
    ]
    for path, name in named:
        if name in places:
            yield Finding(
                f"module '{name}' stands in two parts", (path, places[name]), help="name it once"
            )
        elif name not in modules:
            meant = None if name.startswith("layers.") else closest(name, modules)
            help = (
                f"did you mean '{meant}'?"
                if meant
                else f"its modules are {listing(modules, last='and')}"
            )
            yield Finding(f"the model has no module '{name}'", (path, *LAYERS), help=help)
            places.setdefault(meant or name, path)
        places.setdefault(name, path)
    for index, part in enumerate(parts):
        if not part:
            yield Finding(
                f"part {index} is empty", ((*PARTS, index), PARTS), help="give every stage a module"
            )
    missing = [name for name in modules if name not in places]
    if missing:
        yield Finding(
            f"no part holds {listing(missing, last='and')}",
            (PARTS, *LAYERS),
            help="name every module of the model",
        )


@rule("parts-follow-order")
def parts_follow_order(run: Recipe) -> Iterator[Finding]:
    """Activations go from each part of module_fqns_per_model_part to the next: the parts hold the modules in the model's order, the
    embedding first and the output head last. Within a part the order does not matter."""
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
            yield Finding(
                f"'{early}' comes after '{before}', which needs it",
                places,
                help="put it into an earlier part",
            )
        before = max(
            [*known, *([] if before is None else [before])], key=place.__getitem__, default=None
        )


@rule("microbatches-divide")
def microbatches_divide(run: Recipe) -> Iterator[Finding]:
    """A pipeline takes the rows of a forward pass in microbatches: training.local_batch_size must be a multiple of
    pipeline_parallel_microbatch_size."""
    rows, size = run.training.local_batch_size, run.parallelism.pipeline_parallel_microbatch_size
    if run.parallelism.pipeline_parallel_degree > 1 and rows % size:
        fitting = map(str, common_divisors(rows))
        message = f"{rows} rows cannot be split into microbatches of {size}"
        yield Finding(
            message,
            (MICROBATCH, LOCAL_BATCH),
            help=f"use a pipeline_parallel_microbatch_size of {listing(fitting)}",
        )


@rule("microbatches-fill-pipeline")
def microbatches_fill_pipeline(run: Recipe) -> Iterator[Finding]:
    """A forward pass has training.local_batch_size / pipeline_parallel_microbatch_size microbatches. The schedules 1F1B and DualPipeV
    need one for each stage; Interleaved1F1B and InterleavedZeroBubble need equal rounds of about one a rank; under all others fewer
    microbatches than stages leave ranks idle (a warning). Raise local_batch_size."""
    section, schedule = run.parallelism, named_schedule(run.parallelism)
    rows, size = run.training.local_batch_size, section.pipeline_parallel_microbatch_size
    if schedule is None or rows % size:
        return
    ranks, stages, count, shape = (
        section.pipeline_parallel_degree,
        stages_in(run),
        rows // size,
        SCHEDULES[schedule],
    )
    places = (LOCAL_BATCH, MICROBATCH, DEGREE, SCHEDULE)
    microbatches = f"{count} microbatch{'es' if count > 1 else ''}"
    if shape.full and count < stages:
        message = f"schedule {schedule} needs a microbatch for each of its {stages} stages, and there {'are' if count > 1 else 'is'} {count}"
        yield Finding(
            message, places, help=f"set training.local_batch_size to {stages * size} or more"
        )
    elif shape.in_rounds and not rounds_fit(count, ranks):
        message = f"schedule {schedule} cannot split {microbatches} into {count // ranks} equal rounds on {ranks} ranks"
        yield Finding(
            message,
            places,
            help=f"set training.local_batch_size to {-(-count // ranks) * ranks * size}",
        )
    elif count < stages:
        message = f"{microbatches} cannot keep {stages} pipeline stages busy"
        help = f"set training.local_batch_size to {stages * size} or more"
        yield Finding(message, places, help=help, severity="warning")


@rule("split-backward-keeps-weights")
def split_backward_keeps_weights(run: Recipe) -> Iterator[Finding]:
    """Schedules that split the backward pass (InterleavedZeroBubble, ZBVZeroBubble, DualPipeV) lose gradients silently where weights
    are dropped after the forward pass: fsdp_reshard_after_forward must not be `always`. `default` keeps them in every pipeline."""
    schedule = named_schedule(run.parallelism)
    if (
        schedule is not None
        and SCHEDULES[schedule].splits_backward
        and run.parallelism.fsdp_reshard_after_forward == "always"
    ):
        message = (
            f"schedule {schedule} loses gradients where weights are dropped after the forward pass"
        )
        yield Finding(
            message,
            (at("fsdp_reshard_after_forward"), SCHEDULE, DEGREE),
            help="use default, or never",
        )


@rule("overlap-keeps-activations")
def overlap_keeps_activations(run: Recipe) -> Iterator[Finding]:
    """DualPipeV runs one pass's communication between experts during another pass's computation, which cannot recompute activations:
    use activation_checkpoint: none, or switch pipeline_parallel_expert_parallel_overlap off."""
    name = run.activation_checkpoint.name
    if overlaps_passes(run.parallelism) and name != "none":
        message = f"activation checkpointing '{name}' cannot be combined with the overlap of experts and DualPipeV"
        places = (("activation_checkpoint",), SCHEDULE, at("expert_parallel_degree"), OVERLAP)
        yield Finding(
            message,
            places,
            help="use activation_checkpoint: none, or pipeline_parallel_expert_parallel_overlap: false",
        )


@rule("overlap-stands-alone")
def overlap_stands_alone(run: Recipe) -> Iterator[Finding]:
    """Where DualPipeV runs two passes at once, tensor or context parallelism would communicate in both of them over the same ranks, in
    an order that differs from rank to rank, and PyTorch's compiler works in one thread at a time. Switch one of the two off."""
    if not overlaps_passes(run.parallelism):
        return
    degrees = ("tensor_parallel_degree", "context_parallel_degree")
    clashes = [at(name) for name in degrees if getattr(run.parallelism, name) > 1]
    if run.compile.enable:
        clashes.append(("compile", "enable"))
    for path in clashes:
        message = f"{path_text(path)} cannot be combined with two passes at once, as DualPipeV runs them over experts"
        help = "set pipeline_parallel_expert_parallel_overlap: false"
        yield Finding(message, (path, SCHEDULE, at("expert_parallel_degree"), OVERLAP), help=help)
