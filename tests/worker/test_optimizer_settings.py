"""Every setting of every optimizer reaches it: a run with another value has other losses."""

from collections.abc import Callable

import pytest

Metrics = Callable[..., list[dict[str, float]]]
ADAM, ADAMW, MUON = "optimizer=adam", "optimizer=adamw", "optimizer=muon"
SGD = "optimizer={name: sgd, momentum: 0.9}"
AVERAGED = "optimizer=schedule_free_adamw"
GROUPED = "optimizer.param_groups=[{match: ['layers.*'], lr: 0.02}]"
OTHERS = "optimizer.param_groups=[{match: ['output.*'], lr: 0.02}]"
FASTER = "optimizer.param_groups=[{match: ['layers.*'], lr: 0.04}]"
DECAYED = "optimizer.param_groups=[{match: ['layers.*'], lr: 0.02, weight_decay: 0.9}]"
# each leaf with another value than its optimizer has, then what must be so for it to be read, the
# optimizer last
LEAVES: dict[str, tuple[str, ...]] = {
    "optimizer:adam.lr": ("optimizer.lr=0.02", ADAM),
    "optimizer:adam.beta1": ("optimizer.beta1=0.5", ADAM),
    "optimizer:adam.beta2": ("optimizer.beta2=0.5", ADAM),
    "optimizer:adam.eps": ("optimizer.eps=0.01", ADAM),
    "optimizer:adam.weight_decay": ("optimizer.weight_decay=0.9", ADAM),
    "optimizer:adam.no_decay": (
        "optimizer.no_decay=[embeddings]",
        "optimizer.weight_decay=0.9",
        ADAM,
    ),
    "optimizer:adam.param_groups.match": (OTHERS, GROUPED, ADAM),
    "optimizer:adam.param_groups.lr": (FASTER, GROUPED, ADAM),
    "optimizer:adam.param_groups.weight_decay": (DECAYED, GROUPED, ADAM),
    "optimizer:adamw.state_dtype": ("optimizer.state_dtype=bfloat16", ADAMW),
    "optimizer:adamw.no_decay": (
        "optimizer.no_decay=[embeddings]",
        "optimizer.weight_decay=0.9",
        ADAMW,
    ),
    "optimizer:adamw.param_groups.match": (OTHERS, GROUPED, ADAMW),
    "optimizer:adamw.param_groups.lr": (FASTER, GROUPED, ADAMW),
    "optimizer:adamw.param_groups.weight_decay": (DECAYED, GROUPED, ADAMW),
    "optimizer:sgd.lr": ("optimizer.lr=0.02", SGD),
    "optimizer:sgd.weight_decay": ("optimizer.weight_decay=0.9", SGD),
    "optimizer:sgd.momentum": ("optimizer.momentum=0.5", SGD),
    "optimizer:sgd.dampening": ("optimizer.dampening=0.5", SGD),
    "optimizer:sgd.nesterov": ("optimizer.nesterov=true", SGD),
    "optimizer:sgd.no_decay": (
        "optimizer.no_decay=[embeddings]",
        "optimizer.weight_decay=0.9",
        SGD,
    ),
    "optimizer:sgd.param_groups.match": (OTHERS, GROUPED, SGD),
    "optimizer:sgd.param_groups.lr": (FASTER, GROUPED, SGD),
    "optimizer:sgd.param_groups.weight_decay": (DECAYED, GROUPED, SGD),
    "optimizer:muon.lr": ("optimizer.lr=0.02", MUON),
    "optimizer:muon.weight_decay": ("optimizer.weight_decay=0.9", MUON),
    "optimizer:muon.momentum": ("optimizer.momentum=0.5", MUON),
    "optimizer:muon.nesterov": ("optimizer.nesterov=false", MUON),
    "optimizer:muon.ns_steps": ("optimizer.ns_steps=2", MUON),
    "optimizer:muon.ns_dtype": ("optimizer.ns_dtype=float32", MUON),
    "optimizer:muon.adjust_lr": ("optimizer.adjust_lr=original", MUON),
    "optimizer:muon.adamw_match": ("optimizer.adamw_match=[]", MUON),
    "optimizer:muon.beta1": ("optimizer.beta1=0.5", MUON),
    "optimizer:muon.beta2": ("optimizer.beta2=0.5", MUON),
    "optimizer:muon.eps": ("optimizer.eps=0.01", MUON),
    "optimizer:muon.no_decay": (
        "optimizer.no_decay=[embeddings]",
        "optimizer.weight_decay=0.9",
        MUON,
    ),
    "optimizer:muon.param_groups.match": (OTHERS, GROUPED, MUON),
    "optimizer:muon.param_groups.lr": (FASTER, GROUPED, MUON),
    "optimizer:muon.param_groups.weight_decay": (DECAYED, GROUPED, MUON),
    "optimizer:schedule_free_adamw.lr": ("optimizer.lr=0.02", AVERAGED),
    "optimizer:schedule_free_adamw.weight_decay": ("optimizer.weight_decay=0.9", AVERAGED),
    "optimizer:schedule_free_adamw.beta1": ("optimizer.beta1=0.5", AVERAGED),
    "optimizer:schedule_free_adamw.beta2": ("optimizer.beta2=0.5", AVERAGED),
    "optimizer:schedule_free_adamw.eps": ("optimizer.eps=0.01", AVERAGED),
    "optimizer:schedule_free_adamw.weight_lr_power": ("optimizer.weight_lr_power=0.0", AVERAGED),
    "optimizer:schedule_free_adamw.no_decay": (
        "optimizer.no_decay=[embeddings]",
        "optimizer.weight_decay=0.9",
        AVERAGED,
    ),
    "optimizer:schedule_free_adamw.param_groups.match": (OTHERS, GROUPED, AVERAGED),
    "optimizer:schedule_free_adamw.param_groups.lr": (FASTER, GROUPED, AVERAGED),
    "optimizer:schedule_free_adamw.param_groups.weight_decay": (DECAYED, GROUPED, AVERAGED),
}


@pytest.mark.parametrize("leaf", LEAVES)
def test_another_value_gives_other_losses(leaf: str, metrics: Metrics) -> None:
    changed, *given = LEAVES[leaf]
    overrides = ["training.steps=6", *reversed(given)]
    others = [
        override
        for override in overrides
        if override.partition("=")[0] != changed.partition("=")[0]
    ]
    runs = [[line["loss"] for line in metrics(*given)] for given in (overrides, [*others, changed])]
    assert runs[0] != runs[1]
