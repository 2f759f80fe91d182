"""Small parts that tests of TorchForge's actors are made of."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MODEL = {"name": "llama3", "flavor": "debugmodel"}
TRAINING = {"local_batch_size": 2, "seq_len": 16, "steps": 8, "mixed_precision_param": "float32"}
Batch = tuple[dict[str, Tensor], dict[str, Tensor]]


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the tokens of a pass."""
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def fields(folder: Path, **sections: Any) -> dict[str, Any]:
    """Sections of the smallest model on the CPU, files in `folder`."""
    given: dict[str, Any] = {
        "job": {"dump_folder": str(folder / "out")},
        "model": MODEL,
        "training": TRAINING,
        "lr_scheduler": {"warmup_steps": 2},
        "activation_checkpoint": {"mode": "none"},
    }
    for name, section in sections.items():
        given[name] = {**given.get(name, {}), **section} if isinstance(section, dict) else section
    return given


def batch(seed: int, *, rows: int = 2, length: int = 16) -> Batch:
    """Inputs and targets of one rank."""
    ids = torch.randint(0, 2048, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return {"tokens": ids[:, :-1]}, {"labels": ids[:, 1:]}
