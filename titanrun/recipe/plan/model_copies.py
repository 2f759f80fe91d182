"""Memory of further models beside the trained one: frozen references and generators."""

from titanrun.models.shared.config import ModelConfig
from titanrun.models.shared.spec.flops import count_parameters
from titanrun.recipe.plan.devices import GIB, Device
from titanrun.recipe.plan.plan_layout import MemoryItem, ModuleSize, PlanLayout
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.rl.config import RlConfig
from titanrun.rl.generators.config import NativeConfig, VllmConfig


def estimate_model_copies(
    layout: PlanLayout, parts: list[ModuleSize], device: Device
) -> list[MemoryItem]:
    """Return the memory items of all models that a rank keeps beside the trained one."""
    items = []
    if has_frozen_reference(layout):
        items.append(estimate_frozen_reference(layout, parts))
    if layout.teacher is not None:
        items += estimate_teacher(layout, layout.teacher)
    if layout.run.rl is not None:
        items += estimate_generator(layout, layout.run.rl, device)
    return items


def estimate_frozen_reference(layout: PlanLayout, parts: list[ModuleSize]) -> MemoryItem:
    """Return the memory of a second model, without gradients and optimizer states.

    It has the layout of the trained model, but its weights are in the compute dtype. What FSDP
    leaves gathered after a forward pass stays so: no backward pass follows that frees it.
    """
    each, gathered = layout.compute_bytes, 0
    kept = sum(part.local for part in parts)
    cast = 0 if gathers_in_float8(layout) else count_copied_elements(layout, parts)
    texts = [
        f"{count:,} x {size} bytes"
        for count, size in ((cast, each), (kept - cast, layout.storage_bytes))
        if count
    ]
    if layout.parallel_dims.fsdp_size > 1:
        gathered = sum(part.gathered for part in parts if stays_gathered(layout, part))
    if gathered:
        texts.append(f"{gathered:,} gathered x {each} bytes")
    return MemoryItem(
        "frozen reference",
        (cast + gathered) * each + (kept - cast) * layout.storage_bytes,
        " + ".join(texts),
    )


def estimate_teacher(layout: PlanLayout, teacher: ModelConfig) -> list[MemoryItem]:
    """Return the memory of a teacher in the layout of the trained model, and of its logits.

    Its weights are in the compute dtype. As of a frozen reference, FSDP leaves the head gathered.
    """
    dims, each = layout.parallel_dims, layout.compute_bytes
    whole = count_parameters(teacher) // dims.tp
    kept = whole // dims.fsdp_size
    text, gathered = f"{kept:,} x {each} bytes", 0
    if dims.fsdp_size > 1 and layout.run.parallelism.fsdp_reshard_after_forward != "always":
        head = teacher.output_dim() * teacher.model_dim() // dims.tp
        gathered = whole if layout.keeps_weights_gathered else head
        text += f" + {gathered:,} gathered x {each} bytes"
    width, tokens = teacher.output_dim(), layout.tokens_per_forward_pass
    if not layout.run.parallelism.disable_loss_parallel:
        width //= dims.tp
    return [
        MemoryItem("teacher", (kept + gathered) * each, text),
        MemoryItem(
            "teacher's logits",
            tokens * width * each,
            f"{tokens:,} tokens x {width:,} x {each} bytes",
        ),
    ]


def count_copied_elements(layout: PlanLayout, parts: list[ModuleSize]) -> int:
    """Count the elements that a rank with whole weights copies in the compute dtype.

    An output head in fp32 has no copy. Of a model that is not trained, these elements are stored in
    the compute dtype.
    """
    keeps_head = keeps_head_in_fp32(layout.run)
    return sum(part.copied for part in parts if not (keeps_head and part is layout.head))


def gathers_in_float8(layout: PlanLayout) -> bool:
    """Return whether FSDP gathers weights in float8, which torchao rounds from fp32."""
    return layout.parallel_dims.fsdp_size > 1 and any(
        getattr(converter, "enable_fsdp_float8_all_gather", False)
        for converter in layout.run.converters
    )


def keeps_head_in_fp32(run: Recipe) -> bool:
    """Return whether the output head computes with its fp32 weight."""
    return any(converter.name == "fp32_lm_head" for converter in run.converters)


def stays_gathered(layout: PlanLayout, part: ModuleSize) -> bool:
    """Return whether FSDP leaves a part gathered after the forward pass.

    The output head is freed with policy `always` only, because the backward pass begins with it.
    """
    if layout.run.parallelism.fsdp_reshard_after_forward == "always":
        return False
    return layout.keeps_weights_gathered or part is layout.head


def has_frozen_reference(layout: PlanLayout) -> bool:
    """Return whether the run keeps a second model with the initial weights.

    With adapters a preference loss uses the trained model without them instead.
    """
    if layout.run.rl is not None:
        return layout.run.rl.reference == "frozen_copy"
    return layout.run.loss.needs_reference and find_lora_converter(layout.run) is None


def estimate_generator(layout: PlanLayout, config: RlConfig, device: Device) -> list[MemoryItem]:
    """Return the memory of the generator, and of the weights on their way to it.

    The KV cache of the native generator is not counted: it is freed before the training step.
    """
    generator = config.generator
    each = layout.compute_bytes
    if config.batch_invariant and layout.compute_bytes < layout.storage_bytes:
        # as the trainer: fp32 weights, and copies of them
        each += layout.storage_bytes
    parts = [layout.embedding, *layout.layers, layout.head]
    whole = sum(part.total for part in parts)
    items = []
    if isinstance(generator, NativeConfig):
        # tensor-parallel ranks share the generator's weights as those that they compute with
        is_split = generator.tensor_parallel
        held = sum(part.gathered for part in parts) if is_split else whole
        items.append(MemoryItem("generator", held * each, f"{held:,} x {each} bytes"))
    if isinstance(generator, VllmConfig):
        share = round(generator.memory_share * device.memory_gib * GIB)
        items.append(
            MemoryItem("generator", share, f"memory_share {generator.memory_share:g} of the device")
        )
    if config.sync.transport == "in_process":
        versions = config.sync.keep_versions
        items.append(
            MemoryItem(
                "published weights",
                versions * whole * each,
                f"keep_versions {versions} x {whole:,} x {each} bytes",
            )
        )
    return items
