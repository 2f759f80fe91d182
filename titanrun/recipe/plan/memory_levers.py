"""Settings that reduce the memory of a run, with what each saves."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from titanrun.components.losses.config import ChunkedCrossEntropyConfig, CrossEntropyConfig
from titanrun.components.optimizers.config import AdamW8bitConfig, AdamWConfig
from titanrun.config.base import change_fields
from titanrun.config.serialize import to_flow_yaml
from titanrun.distributed.config import (
    FullActivationCheckpointConfig,
    SelectiveActivationCheckpointConfig,
)
from titanrun.recipe.plan.devices import Device
from titanrun.recipe.plan.memory_estimate import estimate_memory, sum_bytes
from titanrun.recipe.plan.plan_layout import ModuleSize, PlanLayout
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.resolve_loss import choose_loss_chunks

ADAMW_FIELDS = ("lr", "weight_decay", "beta1", "beta2", "eps")
# nf4: 4 bits a weight, and an fp32 scale of each block of 64
NF4_BYTES = 4 / 8 + 4 / 64


@dataclass(frozen=True, slots=True)
class Lever:
    """Setting that changes what a rank keeps.

    Args:
        setting: What to write, without quotes.
        cost: Rough factor of a step's time, or of other disadvantages. It only orders the levers.
        layout: The run with the setting.
    """

    setting: str
    cost: float
    layout: PlanLayout


@dataclass(frozen=True, slots=True)
class MemorySaving:
    """Setting with the bytes of the fullest rank that it saves."""

    setting: str
    bytes: int


def find_memory_savings(layout: PlanLayout, device: Device) -> list[MemorySaving]:
    """Return all settings that save memory, by saving over cost, the best first."""
    need = sum_bytes(estimate_memory(layout, device))
    found = [
        (lever, need - sum_bytes(estimate_memory(lever.layout, device)))
        for lever in iter_levers(layout)
    ]
    # what saves nothing costs its disadvantage only
    useful = [(lever, saved) for lever, saved in found if saved > 0]
    useful.sort(key=lambda entry: -entry[1] / entry[0].cost)
    return [MemorySaving(lever.setting, saved) for lever, saved in useful]


def iter_levers(layout: PlanLayout) -> Iterator[Lever]:
    """Yield the settings that the run has not got yet."""
    run = layout.run
    if run.activation_checkpoint.name == "none":
        # recomputes about half of the forward pass
        selective = SelectiveActivationCheckpointConfig()
        yield change_run(layout, "activation_checkpoint: selective", 1.15, selective)
    if run.activation_checkpoint.name != "full":
        # a second forward pass is a third of a step
        full = FullActivationCheckpointConfig()
        yield change_run(layout, "activation_checkpoint: full", 1.33, full)
    # a pipeline needs a microbatch for each of its ranks
    least = layout.parallel_dims.pp * run.parallelism.pipeline_parallel_microbatch_size
    if run.training.local_batch_size > least:
        training = change_fields(run.training, local_batch_size=least)
        changed = change_fields(run, training=training)
        yield Lever(f"local_batch_size: {least}", 1.2, replace(layout, run=changed))
    if type(run.loss) is CrossEntropyConfig:
        loss = ChunkedCrossEntropyConfig(num_chunks=choose_loss_chunks(run))
        changed = change_fields(run, loss=loss)
        yield Lever(f"loss: {loss.name}", 1.05, replace(layout, run=changed))
    if type(run.optimizer) is AdamWConfig:
        small, kept = AdamW8bitConfig(), get_small_states(run.optimizer)
        changed = change_fields(run, optimizer=change_fields(small, **kept))
        # the name alone would give the values of this run up for those of the variant
        setting = to_flow_yaml({"name": small.name, **kept}) if kept else small.name
        yield Lever(f"optimizer: {setting}", 1.1, replace(layout, run=changed))
    if can_quantize_base(run):
        yield Lever("converters: [{name: qlora}]", 1.5, quantize_base(layout))


def get_small_states(optimizer: AdamWConfig) -> dict[str, float]:
    """Return the values of AdamW that its variant with states in 8 bits has other defaults for."""
    small = AdamW8bitConfig()
    values = {name: getattr(optimizer, name) for name in ADAMW_FIELDS}
    return {name: value for name, value in values.items() if value != getattr(small, name)}


def change_run(
    layout: PlanLayout,
    setting: str,
    cost: float,
    chosen: SelectiveActivationCheckpointConfig | FullActivationCheckpointConfig,
) -> Lever:
    """Return the lever of another activation checkpointing."""
    run = change_fields(layout.run, activation_checkpoint=chosen)
    return Lever(setting, cost, replace(layout, run=run))


def can_quantize_base(run: Recipe) -> bool:
    """Return whether adapters over weights in 4 bits may take the place of what is trained.

    Only a model that already knows something is fine-tuned by adapters.
    """
    found = find_lora_converter(run)
    return run.kind == "sft" if found is None else found.name == "lora"


def quantize_base(layout: PlanLayout) -> PlanLayout:
    """Return the layout with frozen layers in 4 bits, and only adapters trained.

    Embedding and head stay as they are, and are frozen. The few elements of adapters that a run
    without them would get are not counted.
    """
    compute = layout.compute_bytes

    def quantize(part: ModuleSize, *, width: float) -> ModuleSize:
        has_adapters = part.total_trainable < part.total
        trained = part.local_trainable if has_adapters else 0
        # frozen weights beside adapters are in the compute dtype already
        before = compute if has_adapters else layout.storage_bytes
        return replace(
            part,
            local=trained + round((part.local - trained) * width / before),
            local_trainable=trained,
            total_trainable=part.total_trainable if has_adapters else 0,
            copied=trained,
        )

    return replace(
        layout,
        embedding=quantize(layout.embedding, width=compute),
        layers=[quantize(part, width=NF4_BYTES) for part in layout.layers],
        head=quantize(layout.head, width=compute),
    )
