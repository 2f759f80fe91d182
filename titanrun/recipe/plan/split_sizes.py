"""Sizes of a model's parts on any layout, from their sizes on a single rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.models.shared.config import ModelConfig
from titanrun.recipe.plan.plan_layout import ModuleSize

# matrices that tensor-parallel ranks keep whole: routers, and the compression of latent attention
WHOLE_NAMES = (".router.", ".wkv_a.", ".wq_a.")
EXPERTS = ".experts."
EMBEDDING_FRONT, LAYER_FRONT = "tok_embeddings.", "layers."


@dataclass(frozen=True, slots=True)
class SplitShares:
    """Shares of a part's elements that tensor-parallel ranks split, and that are experts'."""

    split: float
    experts: float


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """Sizes of embedding, layers and head on a single rank, with how ranks split each.

    Args:
        sizes: Embedding, each layer, and head.
        shares: The shares of the same parts.
    """

    sizes: tuple[ModuleSize, ...]
    shares: tuple[SplitShares, ...]


def measure_shares(model: ModelConfig, sizes: Sequence[ModuleSize]) -> MeasuredModel:
    """Return the measured parts (embedding, layers, head) with how ranks split each."""
    counts = [[0, 0, 0] for _ in sizes]
    for name, shape in model.parameter_shapes().items():
        is_expert = EXPERTS in name
        is_split = len(shape) > 1 and not any(each in name for each in WHOLE_NAMES)
        kind = 1 if is_expert else 0 if is_split else 2
        counts[find_part(name, len(sizes))][kind] += prod(shape)
    shares = []
    for split, experts, whole in counts:
        total = max(1, split + experts + whole)
        shares.append(SplitShares(split / total, experts / total))
    return MeasuredModel(tuple(sizes), tuple(shares))


def find_part(name: str, count: int) -> int:
    """Return the position of the part with a parameter: embedding, layers, head."""
    if name.startswith(EMBEDDING_FRONT):
        return 0
    index = name.removeprefix(LAYER_FRONT).partition(".")[0]
    is_layer = name.startswith(LAYER_FRONT) and index.isdigit() and int(index) + 2 < count
    return int(index) + 1 if is_layer else count - 1


@lru_cache(maxsize=256)
def split_sizes(measured: MeasuredModel, dims: ParallelDims) -> tuple[ModuleSize, ...]:
    """Return the sizes of embedding, layers and head on a rank of a layout.

    Every stage of a pipeline has whole layers, and replicas the same sizes. A shard that is padded
    counts without its padding.
    """
    entries = list(zip(measured.sizes, measured.shares, strict=True))
    # parts are told apart by identity: the ends are never the same as a layer
    known = {entry: split_size(*entry, dims) for entry in dict.fromkeys(entries[1:-1])}
    layers = [known[entry] for entry in entries[1:-1]]
    return (split_size(*entries[0], dims), *layers, split_size(*entries[-1], dims))


def split_size(whole: ModuleSize, shares: SplitShares, dims: ParallelDims) -> ModuleSize:
    """Return the size of one part on a rank of a layout."""
    whole_share = 1 - shares.split - shares.experts
    dense = shares.split / dims.tp + whole_share
    kept = dense / dims.fsdp_size + shares.experts / (dims.fsdp_size * dims.tp)
    gathered = dense + shares.experts / dims.expert_group_size
    # adapters are small dense matrices
    is_whole = whole.total_trainable == whole.total
    trained = kept if is_whole else 1 / dims.fsdp_size
    return ModuleSize(
        total=whole.total,
        local=ceil(whole.local * kept),
        gathered=ceil(whole.gathered * gathered),
        total_trainable=whole.total_trainable,
        local_trainable=ceil(whole.local_trainable * trained),
        copied=ceil(whole.copied * kept),
        gathered_trainable=ceil(whole.gathered_trainable * (gathered if is_whole else 1)),
        unsharded=whole.unsharded,
    )
