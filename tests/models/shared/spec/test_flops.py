"""Parameters and operations against worked numbers and against the model itself."""

import pytest
import torch

from titanrun.models.llama3.model import Llama3
from titanrun.models.shared.config import compute_swiglu_hidden_dim
from titanrun.models.shared.spec.flops import (
    count_embedding_parameters,
    count_parameters,
    flops_per_token,
)


@pytest.mark.parametrize(
    ("flavor", "parameters", "seq_len", "flops"),
    [
        ("debugmodel", 6_163_712, 2048, 71_585_280),
        ("8B", 8_030_261_248, 8192, 57_914_449_920),
        ("70B", 70_553_706_496, 8192, 481_442_709_504),
        ("405B", 405_853_388_800, 8192, 2_625_449_459_712),
    ],
)
def test_counts_equal_the_worked_numbers(llama3, flavor, parameters, seq_len, flops):
    config = llama3(flavor)
    assert count_parameters(config) == parameters
    assert flops_per_token(config, seq_len) == flops


@pytest.mark.parametrize(
    ("dim", "multiplier", "multiple_of", "width"),
    [
        (256, None, 256, 768),
        (2048, 1.5, 1024, 8192),
        (3072, 1.0, 1024, 8192),
        (4096, 1.3, 1024, 14336),
        (8192, 1.3, 4096, 28672),
        (16384, 1.2, 4096, 53248),
    ],
)
def test_the_width_rule_gives_the_published_widths(dim, multiplier, multiple_of, width):
    assert compute_swiglu_hidden_dim(dim, multiplier=multiplier, multiple_of=multiple_of) == width


@pytest.mark.parametrize("flavor", ["debugmodel", "1B", "8B", "405B"])
def test_names_and_shapes_are_those_of_the_model(llama3, flavor):
    config = llama3(flavor)
    with torch.device("meta"):
        model = Llama3(config, seq_len=16)
    parameters = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert list(parameters.items()) == list(config.parameter_shapes().items())
    assert sum(parameter.numel() for parameter in model.parameters()) == count_parameters(config)


def test_a_tied_matrix_counts_once_and_is_multiplied_by_once(llama3):
    tied, untied = llama3("1B"), llama3("1B", tie_word_embeddings=False)
    matrix = count_embedding_parameters(tied)
    assert matrix == 128256 * 2048
    assert count_parameters(untied) - count_parameters(tied) == matrix
    assert flops_per_token(tied, 4096) == flops_per_token(untied, 4096)
    # the published size of Llama 3.2 1B
    assert count_parameters(tied) == 1_235_814_400


def test_an_explicit_head_width_is_counted(llama3):
    narrow, wide = llama3(head_dim=16), llama3(head_dim=32)
    assert count_parameters(wide) - count_parameters(narrow) == 2 * 4 * 64 * 64
    assert (
        flops_per_token(wide, 128) - flops_per_token(narrow, 128)
        == 6 * (2 * 4 * 64 * 64) + 6 * (2 * 4 * 32) * 128
    )
