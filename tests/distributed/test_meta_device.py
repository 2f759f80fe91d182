import torch
from torch import nn

from titanrun.distributed.meta_device import SkipInit, init_on_meta_device


def test_models_are_built_without_memory() -> None:
    with init_on_meta_device():
        model = nn.Sequential(
            nn.Embedding(1 << 40, 1 << 10), nn.Linear(1 << 10, 1 << 40), nn.RMSNorm(8)
        )
    assert all(parameter.is_meta for parameter in model.parameters())


def test_layers_draw_no_weights_there_and_do_elsewhere() -> None:
    weight = torch.zeros(8)
    with SkipInit():
        assert nn.init.normal_(weight) is weight
        assert nn.init.uniform_(tensor=weight) is weight
    assert not weight.any()
    nn.init.normal_(weight)
    assert weight.all()
