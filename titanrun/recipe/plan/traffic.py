"""Bytes that one rank sends along each mesh axis in one optimizer step, by ring collectives: (n - 1) / n of the data, twice to reduce
it everywhere; and how much of a step a pipeline stands still.
"""

from dataclasses import dataclass

from titanrun.distributed.config import SelectiveActivationCheckpointConfig
from titanrun.distributed.stages import SCHEDULES
from titanrun.recipe.plan.layout import Layout

# collectives over the stream in one layer: gather and scatter around attention and feed-forward, in both passes
STREAM_COLLECTIVES = 8
# and again the two gathers and two scatters of the first pass, where layers are computed twice; by operation only the gathers
STREAM_COLLECTIVES_AGAIN = 4


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one axis carries."""

    axis: str
    bytes: int
    what: str


def ring(bytes_: float, ranks: int) -> int:
    """What one rank sends of a collective that gathers or scatters `bytes_`."""
    return round(bytes_ * (ranks - 1) / ranks)


def traffic(layout: Layout) -> list[Traffic]:
    """The axes that have more than one rank."""
    found = [*of_weights(layout), *of_activations(layout)]
    return [entry for entry in found if entry.bytes]


def of_weights(layout: Layout) -> list[Traffic]:
    """Weights gathered and gradients summed, for the fullest pipeline rank."""
    degrees = layout.degrees
    gathered = max(sum(part.gathered for part in parts) for parts in layout.stages())
    kept = max(sum(part.kept for part in parts) for parts in layout.stages())
    policy = layout.run.parallelism.fsdp_reshard_after_forward
    stays = policy == "never" or (policy == "default" and degrees.pipeline > 1)
    gathers = 1 if stays else 2
    shards = gathered * (gathers * layout.compute_bytes + 4) * layout.passes
    return [
        Traffic(
            "fsdp",
            ring(shards, degrees.fsdp),
            f"weights gathered {gathers}x and gradients scattered, in each pass",
        ),
        Traffic(
            "dp_replicate",
            2 * ring(kept * 4 * layout.passes, degrees.replicate),
            "gradients summed over copies",
        ),
    ]


def of_activations(layout: Layout) -> list[Traffic]:
    """Activations between the ranks that split layers, rows, stages or experts."""
    degrees, run = layout.degrees, layout.run
    tokens, each, dim = (
        layout.tokens_per_pass * layout.passes,
        layout.compute_bytes,
        layout.run.model.stream_width(),
    )
    layers = -(-len(layout.layers) // degrees.pipeline)
    again = STREAM_COLLECTIVES_AGAIN * recomputed_share(layout)
    stream = tokens * dim * each
    moe = getattr(run.model, "moe", None)
    routed = 0 if moe is None else tokens // degrees.tensor * int(moe.top_k) * dim * each
    keys_and_values = tokens * degrees.context * run.model.key_value_width() * each
    return [
        Traffic(
            "tp",
            round(ring(stream * (STREAM_COLLECTIVES + again), degrees.tensor) * layers),
            f"the stream, {layers} layers",
        ),
        Traffic(
            "cp",
            ring(keys_and_values * 3, degrees.context) * layers,
            "keys and values, and their gradients",
        ),
        between_stages(layout, stream),
        Traffic(
            "ep",
            ring(routed * 4, degrees.expert) * layers,
            "slots to their experts and back, in both passes",
        ),
    ]


def between_stages(layout: Layout, stream: int) -> Traffic:
    """What pipeline ranks hand on; the ends also add up the gradients of a matrix of which both have a copy, once a step."""
    words = "the stream to the next stage, its gradient back"
    if layout.degrees.pipeline == 1:
        return Traffic("pp", 0, words)
    if any(map(layout.lacks_embedding, layout.used())):
        return Traffic(
            "pp",
            2 * stream + layout.embedding.kept * layout.storage_bytes,
            f"{words}, and the ends' shared matrix",
        )
    return Traffic("pp", 2 * stream, words)


def recomputed_share(layout: Layout) -> float:
    """Share of the collectives of the first pass that the second one repeats."""
    config = layout.run.activation_checkpoint
    if isinstance(config, SelectiveActivationCheckpointConfig):
        # scattered sums are kept
        return 1 / config.every if config.every else 1 / 2
    return float(config.name == "full")


def bubble(layout: Layout) -> float:
    """Share of a step that a pipeline rank waits: (p - 1) / (v m + p - 1) for p ranks, v stages a rank, m microbatches (Narayanan et
    al., https://arxiv.org/abs/2104.04473); a third of it where backward passes are split (Qi et al., https://arxiv.org/abs/2401.10241).
    """
    ranks = layout.degrees.pipeline
    if ranks == 1:
        return 0.0
    shape = SCHEDULES.get(layout.run.parallelism.pipeline_parallel_schedule)
    waits = (ranks - 1) / (layout.stages_per_rank * layout.microbatches + ranks - 1)
    return waits / 3 if shape and shape.splits_backward else waits
