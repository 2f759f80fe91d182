"""Parts of a model whose weights are gathered, and cast, together.

They are known by the contract of any model: it has the attributes `tok_embeddings`, `layers`,
`norm` and `output`, which are None if a pipeline stage lacks them.
"""

from collections.abc import Sequence

from torch import nn


def get_model_parts(model: nn.Module) -> tuple[list[nn.Module], list[nn.Module], list[nn.Module]]:
    """Return embeddings, layers and head of a model, or those that a pipeline stage has.

    They are empty if a stage lacks them.
    """
    present = {name: part for name, part in model.named_children() if part is not None}
    embeddings = [present[name] for name in ("tok_embeddings",) if name in present]
    head = [present[name] for name in ("norm", "output") if name in present]
    return embeddings, list(present["layers"].children()) if "layers" in present else [], head


def build_parameter_groups(
    embeddings: list[nn.Module], layers: Sequence[nn.Module], head: list[nn.Module]
) -> list[list[nn.Module]]:
    """Group the modules that are gathered together.

    A matrix that embedding and head share must not be in two groups.
    """
    blocks = [[layer] for layer in layers]
    shared = {id(weight) for module in embeddings for weight in module.parameters()}
    if any(id(weight) in shared for module in head for weight in module.parameters()):
        return [*blocks, [*embeddings, *head]]
    heads = [[module] for module in head] if any(map(keeps_dtype, head)) else [head]
    return [group for group in (embeddings, *blocks, *heads) if group]


def keeps_dtype(module: nn.Module) -> bool:
    """Return whether a module computes in the dtype in which its weights are stored.

    Such a module ignores the compute dtype of the others.
    """
    return getattr(module, "keeps_dtype", False)
