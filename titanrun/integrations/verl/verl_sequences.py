"""Access to verl's batches: tensors and settings by name, jagged or padded sequences.

Neither verl nor tensordict is imported: a TensorDict is recognized by its methods, and a plain dict
works too.

Shapes: B sequences, L the longest of them, X all their tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import problem_error

VerlBatch = Any


def get_batch_setting(data: VerlBatch, key: str, default: Any = None) -> Any:
    """Return a value without tensordict's wrapper, or `default` if it is absent."""
    found = data.get(key, default)
    if isinstance(found, Tensor):
        return found.item() if found.ndim == 0 else found
    return found.data if type(found).__name__ == "NonTensorData" else found


def set_batch_settings(data: VerlBatch, **settings: Any) -> None:
    """Add values to a batch in the same way as verl's own engines."""
    for key, value in settings.items():
        if hasattr(data, "set_non_tensor"):
            data.set_non_tensor(key, value)
        else:
            data[key] = value


def get_sequences(data: VerlBatch, key: str = "input_ids") -> list[Tensor]:
    """Return the values of each sequence under a key, without padding.

    `attention_mask` marks padding.

    Raises:
        ProblemsFound: the batch lacks the key, or padded values have no mask.
    """
    value: Tensor | None = data.get(key, None)
    if value is None:
        raise problem_error("usage", f"the batch has no {key}")
    if value.is_nested:
        return list(value.unbind())
    if data.get("attention_mask", None) is None:
        raise problem_error(
            "usage",
            f"{key} is padded, but the batch has no attention_mask",
            hint="add attention_mask, or use jagged sequences",
        )
    return [row[mask.bool()] for row, mask in zip(value, data["attention_mask"], strict=True)]


def count_loss_tokens(data: VerlBatch) -> int:
    """Count the tokens of a batch's loss_mask.

    With PPO it is as wide as the responses, not as the sequences, and 0 in their padding.

    Raises:
        ProblemsFound: the batch has no loss_mask.
    """
    mask: Tensor | None = data.get("loss_mask", None)
    if mask is None:
        raise problem_error("usage", "the batch has no loss_mask")
    return int((mask.values() if mask.is_nested else mask).sum())


def is_jagged(data: VerlBatch) -> bool:
    """Return whether sequences are concatenated without padding."""
    return bool(data["input_ids"].is_nested)


def restore_batch_layout(values: Sequence[Tensor], data: VerlBatch) -> Tensor:
    """Convert values per token to the layout of the batch: jagged, or [B, L] padded with 0."""
    if is_jagged(data):
        return build_jagged_tensor(values)
    mask_BL = data["attention_mask"].bool()
    flat_X = torch.cat(list(values))
    return torch.zeros(mask_BL.shape, dtype=flat_X.dtype, device=flat_X.device).masked_scatter(
        mask_BL.to(flat_X.device), flat_X
    )


def build_jagged_tensor(values: Sequence[Tensor]) -> Tensor:
    """Build a differentiable jagged tensor of sequences with different lengths."""
    offsets = torch.tensor([0, *(len(value) for value in values)], device=values[0].device).cumsum(
        0
    )
    jagged: Tensor = torch.nested.nested_tensor_from_jagged(torch.cat(list(values)), offsets)
    return jagged


def select_sequences(data: VerlBatch, indices: Sequence[int]) -> VerlBatch:
    """Return the batch of some sequences, with all settings of the whole batch."""
    count, rows, others = len(data["input_ids"]), {}, {}
    for key in data.keys():  # noqa: SIM118 (iterating a TensorDict yields rows)
        value = data.get(key)
        if isinstance(value, Tensor) and value.ndim > 0 and value.size(0) == count:
            rows[key] = select_tensor_rows(value, indices)
        elif type(value).__name__ == "NonTensorStack":
            # one value per sequence that is no tensor, such as the uid of its prompt
            rows[key] = value[list(indices)]
        else:
            others[key] = get_batch_setting(data, key)
    selected = (
        type(data)(rows) if isinstance(data, dict) else type(data)(rows, batch_size=[len(indices)])
    )
    set_batch_settings(selected, **others)
    return selected


def select_tensor_rows(value: Tensor, indices: Sequence[int]) -> Tensor:
    """Return some rows of a tensor, jagged or not."""
    if not value.is_nested:
        return value[list(indices)]
    parts = value.unbind()
    return torch.nested.as_nested_tensor([parts[row] for row in indices], layout=torch.jagged)


def move_batch(data: VerlBatch, device: torch.device) -> VerlBatch:
    """Return the batch with its tensors on the device."""
    if not isinstance(data, dict):
        return data.to(device)
    return {
        key: value.to(device) if isinstance(value, Tensor) else value for key, value in data.items()
    }
