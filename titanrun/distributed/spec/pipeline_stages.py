"""Pipeline stages: requirements of each schedule, layers of a stage, ranks of stages."""

from collections.abc import Sequence
from dataclasses import dataclass

from titanrun.distributed.config import ParallelismConfig


@dataclass(frozen=True, slots=True)
class ScheduleTraits:
    """Requirements of a schedule, as torch.distributed.pipelining checks them.

    `needs_microbatch_per_stage`: at least as many microbatches as stages. `needs_equal_rounds`: the
    microbatches form equal rounds of about one per rank.
    """

    is_single_stage: bool = False
    is_v_shaped: bool = False
    has_split_backward: bool = False
    needs_microbatch_per_stage: bool = False
    needs_equal_rounds: bool = False

    @property
    def stages_per_rank(self) -> int:
        """One for single-stage schedules, two for the others."""
        return 1 if self.is_single_stage else 2


PIPELINE_SCHEDULES = {
    "1F1B": ScheduleTraits(is_single_stage=True, needs_microbatch_per_stage=True),
    "GPipe": ScheduleTraits(is_single_stage=True),
    "Interleaved1F1B": ScheduleTraits(needs_equal_rounds=True),
    "LoopedBFS": ScheduleTraits(),
    "InterleavedZeroBubble": ScheduleTraits(has_split_backward=True, needs_equal_rounds=True),
    "ZBVZeroBubble": ScheduleTraits(is_v_shaped=True, has_split_backward=True),
    "DualPipeV": ScheduleTraits(
        is_v_shaped=True, has_split_backward=True, needs_microbatch_per_stage=True
    ),
}


@dataclass(frozen=True, slots=True)
class EndLayerCosts:
    """Cost in layers of the embedding, and of the final norm with the output head."""

    first: int = 1
    last: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """Stages and schedule of a pipeline.

    Args:
        stages: names of the modules of each stage.
        schedule: name of the schedule, ignored if there is a file.
        schedule_csv: CSV file with a custom schedule, if any.
        microbatch_size: sequences of a microbatch.
    """

    stages: tuple[tuple[str, ...], ...]
    schedule: str
    schedule_csv: str | None
    microbatch_size: int


def plan_pipeline(section: ParallelismConfig, modules: Sequence[str]) -> PipelinePlan:
    """Return the pipeline plan of a valid recipe for a model with these modules in order."""
    return PipelinePlan(
        stages=section.module_fqns_per_model_part or assign_stage_modules(section, modules),
        schedule=section.pipeline_parallel_schedule,
        schedule_csv=section.pipeline_parallel_schedule_csv,
        microbatch_size=section.pipeline_parallel_microbatch_size,
    )


def assign_stage_modules(
    section: ParallelismConfig, modules: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Assign modules to stages by splitting the layers by count.

    Modules before the layers are in the first stage, modules after them in the last.
    """
    num_layers = sum(map(is_layer, modules))
    return split_modules(
        modules, compute_num_stages(section, num_layers), get_end_layer_costs(section)
    )


def split_modules(
    modules: Sequence[str], num_parts: int, end_costs: EndLayerCosts
) -> tuple[tuple[str, ...], ...]:
    """Split a model into parts of about equal numbers of layers, in its order."""
    layers = [name for name in modules if is_layer(name)]
    first, end = modules.index(layers[0]), modules.index(layers[-1]) + 1
    ranges = split_layers_into_stages(num_parts, len(layers), end_costs)
    parts = [[layers[index] for index in held] for held in ranges]
    parts[0] = [*modules[:first], *parts[0]]
    parts[-1] += modules[end:]
    return tuple(map(tuple, parts))


def is_layer(module: str) -> bool:
    """Return whether a module is one of the model's layers."""
    return module.startswith("layers.")


def get_end_layer_costs(section: ParallelismConfig) -> EndLayerCosts:
    """Return the costs of the embedding and the head."""
    return EndLayerCosts(
        section.pipeline_parallel_first_stage_less_layers,
        section.pipeline_parallel_last_stage_less_layers,
    )


def compute_num_stages(section: ParallelismConfig, num_layers: int) -> int:
    """Return the number of pipeline stages.

    It is the length of the list of stages if there is one, else follows from the layers per stage,
    else is the smallest number that the schedule allows.
    """
    if section.module_fqns_per_model_part is not None:
        return len(section.module_fqns_per_model_part)
    if section.pipeline_parallel_layers_per_stage is not None:
        return compute_num_stages_for_layers(
            num_layers,
            get_end_layer_costs(section),
            layers_per_stage=section.pipeline_parallel_layers_per_stage,
        )
    shape = (
        ScheduleTraits()
        if section.pipeline_parallel_schedule_csv is not None
        else PIPELINE_SCHEDULES[section.pipeline_parallel_schedule]
    )
    return shape.stages_per_rank * section.pipeline_parallel_degree


def should_overlap_passes(section: ParallelismConfig) -> bool:
    """Return whether forward and backward passes run concurrently.

    One pass computes while the tokens of the other travel between experts.
    """
    is_pair = (
        section.pipeline_parallel_schedule == "DualPipeV"
        and section.pipeline_parallel_schedule_csv is None
    )
    has_both = section.pipeline_parallel_degree > 1 and section.expert_parallel_degree > 1
    return is_pair and has_both and section.pipeline_parallel_expert_parallel_overlap


def compute_units_per_stage(
    num_stages: int, num_layers: int, end_costs: EndLayerCosts
) -> list[int]:
    """Return the cost of each stage in layers. Earlier stages take the remainder."""
    each, left = divmod(num_layers + end_costs.first + end_costs.last, num_stages)
    return [each + (stage < left) for stage in range(num_stages)]


def find_layer_split_problem(
    num_stages: int,
    num_layers: int,
    end_costs: EndLayerCosts,
    noun: str = "pipeline stages",
) -> str | None:
    """Return why the layers cannot be split into `num_stages`, or None if they can."""
    total = num_layers + end_costs.first + end_costs.last
    if num_stages == 1:
        return None
    if num_stages > total:
        return (
            f"{num_stages} {noun} need {num_stages} layers, but there are "
            f"{num_layers} (embedding and head count as {total - num_layers})"
        )
    for end, weight in (("first", end_costs.first), ("last", end_costs.last)):
        if weight > total // num_stages:
            return (
                f"the {end} of {num_stages} {noun.split()[-1]} takes {total // num_stages} layers, "
                f"but its embedding or head counts as {weight}"
            )
    return None


def split_layers_into_stages(
    num_stages: int, num_layers: int, end_costs: EndLayerCosts
) -> list[range]:
    """Return the layers of each stage.

    The first stage also has the embedding, the last one the norm and the output head.
    """
    assert find_layer_split_problem(num_stages, num_layers, end_costs) is None, (
        "a rule rejects this split"
    )
    if num_stages == 1:
        return [range(num_layers)]
    counts = compute_units_per_stage(num_stages, num_layers, end_costs)
    counts[0] -= end_costs.first
    counts[-1] -= end_costs.last
    starts = [sum(counts[:stage]) for stage in range(num_stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


def compute_num_stages_for_layers(
    num_layers: int, end_costs: EndLayerCosts, *, layers_per_stage: int
) -> int:
    """Return the number of stages of at most `layers_per_stage` layers, including end costs."""
    return -(-(num_layers + end_costs.first + end_costs.last) // layers_per_stage)


def get_stages_for_rank(
    pp_rank: int, pp_size: int, num_stages: int, *, is_v_shaped: bool
) -> tuple[int, ...]:
    """Return the stages of a pipeline rank: every `pp_size`-th, or one from each end."""
    return (
        (pp_rank, num_stages - 1 - pp_rank)
        if is_v_shaped
        else tuple(range(pp_rank, num_stages, pp_size))
    )


def can_split_into_rounds(num_microbatches: int, pp_size: int) -> bool:
    """Return whether the microbatches form equal rounds.

    There are as many rounds as whole sets of one microbatch per rank.
    """
    return num_microbatches % max(1, num_microbatches // pp_size) == 0
