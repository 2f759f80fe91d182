"""Pipeline stages: what each schedule asks for, which layers a stage holds, and which rank holds a stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from titanrun.distributed.config import ParallelismConfig


@dataclass(frozen=True, slots=True)
class ScheduleShape:
    """What a pipeline schedule asks of stages and microbatches, by the checks of torch.distributed.pipelining.

    `full`: no fewer microbatches than stages; `in_rounds`: the microbatches fall into equal rounds of about one a rank.
    """

    single: bool = False
    v_shaped: bool = False
    splits_backward: bool = False
    full: bool = False
    in_rounds: bool = False

    @property
    def stages_per_rank(self) -> int:
        """One for single-stage schedules, two for the others."""
        return 1 if self.single else 2


SCHEDULES = {
    "1F1B": ScheduleShape(single=True, full=True),
    "GPipe": ScheduleShape(single=True),
    "Interleaved1F1B": ScheduleShape(in_rounds=True),
    "LoopedBFS": ScheduleShape(),
    "InterleavedZeroBubble": ScheduleShape(splits_backward=True, in_rounds=True),
    "ZBVZeroBubble": ScheduleShape(v_shaped=True, splits_backward=True),
    "DualPipeV": ScheduleShape(v_shaped=True, splits_backward=True, full=True),
}


@dataclass(frozen=True, slots=True)
class Weights:
    """What the embedding, and the norm with the output head, cost in layers."""

    first: int = 1
    last: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """How a model goes through a pipeline.

    Args:
        stages: the modules of each stage by name.
        schedule: the name of the order; what a file orders instead.
        file: the CSV file that holds the order, if it is not a named one.
        rows: of a microbatch.
    """

    stages: tuple[tuple[str, ...], ...]
    schedule: str
    file: str | None
    rows: int


def plan_pipeline(section: ParallelismConfig, modules: Sequence[str]) -> PipelinePlan:
    """The pipeline of a recipe whose rules hold, for a model with these modules in its order."""
    return PipelinePlan(
        stages=section.module_fqns_per_model_part or stage_modules(section, modules),
        schedule=section.pipeline_parallel_schedule,
        file=section.pipeline_parallel_schedule_csv,
        rows=section.pipeline_parallel_microbatch_size,
    )


def stage_modules(
    section: ParallelismConfig, modules: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """The modules of each stage where the layers are split by count; what stands before and after the layers is at the ends."""
    layers = [name for name in modules if name.startswith("layers.")]
    first, end = modules.index(layers[0]), modules.index(layers[-1]) + 1
    ranges = split_layers(stage_count(section, len(layers)), len(layers), weights_of(section))
    stages = [[layers[index] for index in held] for held in ranges]
    stages[0] = [*modules[:first], *stages[0]]
    stages[-1] += modules[end:]
    return tuple(map(tuple, stages))


def weights_of(section: ParallelismConfig) -> Weights:
    """What the embedding and the head count as."""
    return Weights(
        section.pipeline_parallel_first_stage_less_layers,
        section.pipeline_parallel_last_stage_less_layers,
    )


def stage_count(section: ParallelismConfig, layers: int) -> int:
    """How many stages the pipeline has: as listed, else by layers a stage, else as few as the schedule takes."""
    if section.module_fqns_per_model_part is not None:
        return len(section.module_fqns_per_model_part)
    if section.pipeline_parallel_layers_per_stage is not None:
        return stages_for(
            layers, weights_of(section), layers_per_stage=section.pipeline_parallel_layers_per_stage
        )
    shape = (
        ScheduleShape()
        if section.pipeline_parallel_schedule_csv is not None
        else SCHEDULES[section.pipeline_parallel_schedule]
    )
    return shape.stages_per_rank * section.pipeline_parallel_degree


def overlaps_passes(section: ParallelismConfig) -> bool:
    """Whether a forward and a backward pass run at once, one computing while the other's tokens travel between experts."""
    is_pair = (
        section.pipeline_parallel_schedule == "DualPipeV"
        and section.pipeline_parallel_schedule_csv is None
    )
    has_both = section.pipeline_parallel_degree > 1 and section.expert_parallel_degree > 1
    return is_pair and has_both and section.pipeline_parallel_expert_parallel_overlap


def units_per_stage(stages: int, layers: int, weights: Weights) -> list[int]:
    """Layers and weights of each stage, the earlier stages taking what is left over."""
    each, left = divmod(layers + weights.first + weights.last, stages)
    return [each + (stage < left) for stage in range(stages)]


def split_fault(stages: int, layers: int, weights: Weights) -> str | None:
    """Why the layers cannot be split into so many stages; None where they can."""
    total = layers + weights.first + weights.last
    if stages == 1:
        return None
    if stages > total:
        return f"{stages} pipeline stages need {stages} layers, and there are {layers} (embedding and head count as {total - layers})"
    for end, weight in (("first", weights.first), ("last", weights.last)):
        if weight > total // stages:
            return f"the {end} of {stages} stages takes {total // stages} layers, and its own part counts as {weight}"
    return None


def split_layers(stages: int, layers: int, weights: Weights) -> list[range]:
    """The layers of each stage; the first stage also has the embedding, the last one the norm and the output head."""
    assert split_fault(stages, layers, weights) is None, "a rule refuses this split"
    if stages == 1:
        return [range(layers)]
    counts = units_per_stage(stages, layers, weights)
    counts[0] -= weights.first
    counts[-1] -= weights.last
    starts = [sum(counts[:stage]) for stage in range(stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


def stages_for(layers: int, weights: Weights, *, layers_per_stage: int) -> int:
    """How many stages hold at most `layers_per_stage` layers and weights each."""
    return -(-(layers + weights.first + weights.last) // layers_per_stage)


def stages_of_rank(rank: int, ranks: int, stages: int, *, v_shaped: bool) -> tuple[int, ...]:
    """The stages of one pipeline rank: every `ranks`-th one, or one from each end."""
    return (rank, stages - 1 - rank) if v_shaped else tuple(range(rank, stages, ranks))


def rounds_fit(microbatches: int, ranks: int) -> bool:
    """Whether the microbatches fall into equal rounds, as many as there are whole sets of one microbatch a rank."""
    return microbatches % max(1, microbatches // ranks) == 0
