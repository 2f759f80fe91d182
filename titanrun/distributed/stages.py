"""Pipeline stages: what each schedule asks for, which layers a stage holds, and which rank holds a stage."""

from dataclasses import dataclass


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
