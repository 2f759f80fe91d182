"""Search for layouts of a run that fit the memory: FSDP alone, then those that send least."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import TypeAlias

from titanrun.components.losses.config import LossConfig
from titanrun.config.base import change_fields
from titanrun.distributed.config import (
    ActivationCheckpointConfig,
    FullActivationCheckpointConfig,
    NoActivationCheckpointConfig,
    SelectiveActivationCheckpointConfig,
)
from titanrun.distributed.spec.parallel_dims import ParallelDims, compute_common_divisors
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.plan.activations import compute_layer_activations
from titanrun.recipe.plan.communication import (
    LARGE_BUBBLE,
    estimate_pipeline_bubble,
    estimate_traffic,
)
from titanrun.recipe.plan.devices import GIB, Device
from titanrun.recipe.plan.memory_estimate import estimate_memory, sum_bytes
from titanrun.recipe.plan.plan_layout import LayerActivations, PlanLayout
from titanrun.recipe.plan.split_sizes import MeasuredModel, split_sizes
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve_loss import choose_loss

# share of the memory that stays free in a proposed layout
SPARE_SHARE = 0.1
MAX_PROPOSALS = 5
# a larger one saves little communication
MAX_LOCAL_BATCH_SIZE = 64
# cheapest first: each recomputes more than the one before
RECOMPUTATIONS: dict[str, type[ActivationCheckpointConfig]] = {
    "none": NoActivationCheckpointConfig,
    "selective": SelectiveActivationCheckpointConfig,
    "full": FullActivationCheckpointConfig,
}
DEGREE_FIELDS = {
    "pp": "pipeline_parallel_degree",
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "tp": "tensor_parallel_degree",
    "ep": "expert_parallel_degree",
    "etp": "expert_tensor_parallel_degree",
}
# axes whose degrees the recipe's other settings may exclude
PROBED_AXES = ("pp", "cp", "tp", "ep")
IsAllowedFn: TypeAlias = Callable[[Sequence[str], int], bool]


@dataclass(frozen=True, slots=True)
class LayoutSearch:
    """What is searched.

    Args:
        run: Resolved recipe.
        measured: Sizes of the model's parts on one rank.
        ranks: Number of ranks.
        device: Accelerator of each rank.
        has_fixed_batch: Whether the recipe fixes the global batch. Otherwise that of the resolved
            run on these ranks is kept.
        is_allowed: Returns whether the recipe with these overrides satisfies all rules on a number
            of ranks.
        loss: Loss as it is written, whose chunks may follow from the tokens of a pass.
        teacher: Model of the loss's teacher.
    """

    run: Recipe
    measured: MeasuredModel
    ranks: int
    device: Device
    has_fixed_batch: bool
    is_allowed: IsAllowedFn
    loss: LossConfig
    teacher: ModelConfig | None = None
    activations: dict[tuple[int, bool, str], LayerActivations] = field(default_factory=dict)
    """Activations of a layer that were computed before: those of a large model take long."""
    modules: list[str] = field(default_factory=list)
    """Modules that pipeline stages hold."""

    @property
    def memory_limit(self) -> float:
        """Bytes that a proposed layout may need."""
        return (1 - SPARE_SHARE) * self.device.memory_gib * GIB


@dataclass(frozen=True, slots=True)
class LayoutProposal:
    """Layout that fits, with what it needs and sends."""

    layout: PlanLayout
    memory_bytes: int
    bytes_per_token: float
    overrides: tuple[str, ...]

    @property
    def rank_key(self) -> tuple[bool, float, int, int, int]:
        """Order: FSDP alone, whose traffic overlaps with products; then fewest bytes a token.

        Of equal ones largest local batch, least recomputation and memory.
        """
        run, dims = self.layout.run, self.layout.parallel_dims
        return (
            dims.dp_shard < dims.world_size or dims.ep > 1,
            self.bytes_per_token,
            -run.training.local_batch_size,
            list(RECOMPUTATIONS).index(run.activation_checkpoint.name),
            self.memory_bytes,
        )


def search_layouts(search: LayoutSearch) -> list[LayoutProposal]:
    """Return the best layouts that fit with memory to spare and satisfy all rules, best first."""
    fitting = sorted(
        (found for dims in iter_parallel_dims(search) for found in iter_fitting(search, dims)),
        key=lambda proposal: proposal.rank_key,
    )
    chosen: list[LayoutProposal] = []
    seen: set[ParallelDims] = set()
    for proposal in fitting:
        dims = proposal.layout.parallel_dims
        if dims not in seen and search.is_allowed(proposal.overrides, search.ranks):
            seen.add(dims)
            chosen.append(proposal)
        if len(chosen) == MAX_PROPOSALS:
            break
    return chosen


def find_nearest_layout(search: LayoutSearch) -> LayoutProposal | None:
    """Return the layout that needs least memory, with full recomputation; None if rules allow none.

    It is what to look at where no layout fits.
    """
    found: list[LayoutProposal] = []
    for dims in iter_parallel_dims(search):
        for local in islice(iter_local_batch_sizes(search, dims), 1):
            layout = build_layout(search, dims, local, "full")
            found.append(propose(search, layout, sum_bytes(estimate_memory(layout, search.device))))
    found.sort(key=lambda proposal: proposal.memory_bytes)
    return next((one for one in found if search.is_allowed(one.overrides, search.ranks)), None)


def iter_parallel_dims(search: LayoutSearch) -> Iterator[ParallelDims]:
    """Yield the parallel dimensions of all ranks that no single degree excludes."""
    degrees = {axis: list(find_allowed_degrees(search, axis)) for axis in PROBED_AXES}
    for pp, cp, tp in product(degrees["pp"], degrees["cp"], degrees["tp"]):
        data_ranks, rest = divmod(search.ranks, pp * cp * tp)
        if rest:
            continue
        for shard, ep in product(compute_common_divisors(data_ranks), degrees["ep"]):
            dims = ParallelDims(pp, data_ranks // shard, shard, cp, tp, ep, 1)
            if dims.efsdp_size is not None:
                yield dims


def find_allowed_degrees(search: LayoutSearch, axis: str) -> Iterator[int]:
    """Yield the degrees of an axis that satisfy all rules on as many ranks, 1 first."""
    yield 1
    sizes = {"pp": search.run.model.layer_count(), "ep": search.run.model.count_routed_experts()}
    for degree in compute_common_divisors(search.ranks)[1:]:
        if degree > sizes.get(axis, degree):
            return
        # ranks of the axis ep are those of others
        shard = degree if axis == "ep" else 1
        dims = ParallelDims(**{"dp_shard": shard, axis: degree})
        local = degree * get_microbatch_size(search.run) if axis == "pp" else 1
        # the global batch of all ranks says nothing about fewer
        batch = ("training.global_batch_size=auto", f"training.local_batch_size={local}")
        overrides = [*list_degree_overrides(search.run, dims), *batch]
        if search.is_allowed(overrides, degree):
            yield degree


def get_microbatch_size(run: Recipe) -> int:
    """Return the sequences of a pipeline's microbatch."""
    return run.parallelism.pipeline_parallel_microbatch_size


def iter_fitting(search: LayoutSearch, dims: ParallelDims) -> Iterator[LayoutProposal]:
    """Yield, for each kind of recomputation, the largest local batch that fits.

    Pipelines of which a plan says that their ranks are idle for long are left out.
    """
    sizes = list(iter_local_batch_sizes(search, dims))
    for name in reversed(RECOMPUTATIONS):
        best: LayoutProposal | None = None
        for local in sizes:
            layout = build_layout(search, dims, local, name)
            if estimate_pipeline_bubble(layout) > LARGE_BUBBLE:
                continue
            need = sum_bytes(estimate_memory(layout, search.device))
            if need > search.memory_limit:
                break
            best = propose(search, layout, need)
        if best is None:
            # less recomputation needs more memory
            return
        yield best


def propose(search: LayoutSearch, layout: PlanLayout, memory_bytes: int) -> LayoutProposal:
    """Return the proposal of a layout that fits."""
    overrides = tuple(list_overrides(search, layout))
    return LayoutProposal(layout, memory_bytes, compute_bytes_per_token(layout), overrides)


def iter_local_batch_sizes(search: LayoutSearch, dims: ParallelDims) -> Iterator[int]:
    """Yield the powers of 2 that divide the global batch, smallest first."""
    batch = int(search.run.training.global_batch_size)
    local = 1
    while local <= MAX_LOCAL_BATCH_SIZE:
        if batch % (local * dims.dp_size) == 0 and local >= dims.pp:
            yield local
        local *= 2


def build_layout(
    search: LayoutSearch, dims: ParallelDims, local: int, recomputation: str
) -> PlanLayout:
    """Return a layout of the run on all ranks."""
    run = search.run
    degrees = {field: getattr(dims, axis) for axis, field in DEGREE_FIELDS.items()}
    is_same = run.activation_checkpoint.name == recomputation
    changed = change_fields(
        run,
        parallelism=change_fields(run.parallelism, **degrees),
        training=change_fields(run.training, local_batch_size=local),
        activation_checkpoint=run.activation_checkpoint
        if is_same
        else RECOMPUTATIONS[recomputation](),
    )
    changed = change_fields(changed, loss=choose_loss(search.loss, changed))
    embedding, *layers, head = split_sizes(search.measured, dims)
    if not search.modules:
        search.modules.extend(run.model.module_names())
    layout = PlanLayout(
        changed, dims, embedding, layers, head, search.teacher, modules=search.modules
    )
    key = (dims.tp, dims.ep > 1, recomputation)
    if key not in search.activations:
        search.activations[key] = compute_layer_activations(layout)
    return replace(layout, layer_activations=search.activations[key])


def compute_bytes_per_token(layout: PlanLayout) -> float:
    """Return the bytes that all ranks send in a step, divided by its tokens."""
    tokens = int(layout.run.training.global_batch_size) * layout.run.training.seq_len
    sent = sum(entry.bytes for entry in estimate_traffic(layout))
    return sent * layout.parallel_dims.world_size / tokens


def list_overrides(search: LayoutSearch, layout: PlanLayout) -> list[str]:
    """Return the overrides by which the recipe has a layout."""
    run, chosen = layout.run, layout.run.activation_checkpoint.name
    overrides = list_degree_overrides(search.run, layout.parallel_dims)
    overrides.append(f"training.local_batch_size={run.training.local_batch_size}")
    if not search.has_fixed_batch:
        overrides.append(f"training.global_batch_size={run.training.global_batch_size}")
    if chosen != search.run.activation_checkpoint.name:
        overrides.append(f"activation_checkpoint={chosen}")
    return overrides


def list_degree_overrides(run: Recipe, dims: ParallelDims) -> list[str]:
    """Return the overrides of degrees: that of the shards, and those which the run lacks."""
    return [
        f"parallelism.{field}={getattr(dims, axis)}"
        for axis, field in DEGREE_FIELDS.items()
        if axis == "dp_shard" or getattr(run.parallelism, field) != getattr(dims, axis)
    ]
