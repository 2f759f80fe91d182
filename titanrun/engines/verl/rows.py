"""The batches of verl: tensors and settings by name, sequences of different lengths one after the other (jagged) or filled up.

Nothing of verl or tensordict is imported: a TensorDict is known by what it can do, and a plain dict is as good.

Shapes: B sequences, L the longest of them, X all their tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import fail

Data = Any


def setting(data: Data, key: str, default: Any = None) -> Any:
    """The value of that name as it was put in, without tensordict's wrapper; `default` where there is none."""
    found = data.get(key, default)
    if isinstance(found, Tensor):
        return found.item() if found.ndim == 0 else found
    return found.data if type(found).__name__ == "NonTensorData" else found


def with_settings(data: Data, **settings: Any) -> None:
    """Puts values into a batch, as verl's own engines do."""
    for key, value in settings.items():
        if hasattr(data, "set_non_tensor"):
            data.set_non_tensor(key, value)
        else:
            data[key] = value


def sequences(data: Data, key: str = "input_ids") -> list[Tensor]:
    """What a batch holds of each sequence under that name; of a filled-up batch what `attention_mask` says is its own.

    Raises a problem where the batch lacks one of them.
    """
    value: Tensor | None = data.get(key, None)
    if value is None:
        raise fail("usage", f"the batch has no {key}")
    if value.is_nested:
        return list(value.unbind())
    if data.get("attention_mask", None) is None:
        raise fail(
            "usage",
            f"{key} is filled up, and no attention_mask says with what",
            help="give one, or jagged sequences",
        )
    return [row[seen.bool()] for row, seen in zip(value, data["attention_mask"], strict=True)]


def is_jagged(data: Data) -> bool:
    """Whether sequences lie one after the other, without filling."""
    return bool(data["input_ids"].is_nested)


def like_given(values: Sequence[Tensor], data: Data) -> Tensor:
    """A number of each token of each sequence, laid out as the batch is: jagged, or [B, L] with 0 where it is filled up."""
    if is_jagged(data):
        return jagged(values)
    mask_BL = data["attention_mask"].bool()
    flat_X = torch.cat(list(values))
    return torch.zeros(mask_BL.shape, dtype=flat_X.dtype, device=flat_X.device).masked_scatter(
        mask_BL.to(flat_X.device), flat_X
    )


def jagged(values: Sequence[Tensor]) -> Tensor:
    """Sequences of different lengths as one jagged tensor, which gradients go through."""
    offsets = torch.tensor([0, *(len(value) for value in values)], device=values[0].device).cumsum(
        0
    )
    made: Tensor = torch.nested.nested_tensor_from_jagged(torch.cat(list(values)), offsets)
    return made


def chosen(data: Data, rows: Sequence[int]) -> Data:
    """The batch of some of the sequences, with all that is said of the whole batch."""
    count, tensors, others = len(data["input_ids"]), {}, {}
    for key in data.keys():  # noqa: SIM118 (a TensorDict is iterated by rows)
        value = data.get(key)
        if isinstance(value, Tensor) and value.ndim > 0 and value.size(0) == count:
            tensors[key] = picked(value, rows)
        else:
            others[key] = setting(data, key)
    made = (
        type(data)(tensors)
        if isinstance(data, dict)
        else type(data)(tensors, batch_size=[len(rows)])
    )
    with_settings(made, **others)
    return made


def picked(value: Tensor, rows: Sequence[int]) -> Tensor:
    """Some rows of a tensor, jagged or not."""
    if not value.is_nested:
        return value[list(rows)]
    parts = value.unbind()
    return torch.nested.as_nested_tensor([parts[row] for row in rows], layout=torch.jagged)


def moved(data: Data, device: torch.device) -> Data:
    """The batch with its tensors on the device."""
    if not isinstance(data, dict):
        return data.to(device)
    return {
        key: value.to(device) if isinstance(value, Tensor) else value for key, value in data.items()
    }
