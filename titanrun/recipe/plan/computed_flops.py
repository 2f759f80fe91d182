"""Floating-point operations that a run computes per token.

They are those of `flops_per_token`, by which training measures its MFU, except beside frozen
weights. These have no gradients, which are a third of the operations of a matrix.
"""

from titanrun.models.shared.spec.flops import flops_per_token
from titanrun.recipe.plan.plan_layout import PlanLayout
from titanrun.recipe.recipe import find_lora_converter
from titanrun.recipe.rules.adapters import has_expert_adapters


def compute_flops_per_token(layout: PlanLayout) -> int:
    """Return the floating-point operations of a forward and backward pass per token.

    Of the six per parameter of `flops_per_token`, a frozen one has two in the forward pass, and two
    for the gradient of its input. Layers below all adapters have no backward pass. The operations
    of attention are not those of weights: two thirds are in the backward pass. Recomputed
    activations do not count.
    """
    run = layout.run
    whole = flops_per_token(run.model, run.training.seq_len)
    if find_lora_converter(run) is None:
        return whole
    matrices = flops_per_token(run.model, 0)
    attention = whole - matrices
    head = 6 * run.model.output_dim() * run.model.model_dim() * (1 + run.model.mtp_depth())
    share = layout.count_backward_layers() / len(layout.layers)
    backward = (head + share * (matrices - head)) / 3 + share * attention * 2 / 3
    return round(whole / 3 + backward + 6 * count_active_adapter_elements(layout))


def count_active_adapter_elements(layout: PlanLayout) -> float:
    """Count the elements of adapters that one token uses.

    If experts have adapters, most of the elements are theirs: a token uses the same share of them
    as of the experts.
    """
    parts = (layout.embedding, *layout.layers, layout.head)
    count, model = sum(part.total_trainable for part in parts), layout.run.model
    converter, moe = find_lora_converter(layout.run), getattr(model, "moe", None)
    if converter is None or moe is None or not has_expert_adapters(layout.run, converter):
        return count
    return count * int(moe.top_k) / model.count_routed_experts()
