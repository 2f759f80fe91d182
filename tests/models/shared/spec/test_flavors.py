"""Spelling a model section out: flavors, overrides, custom models, and what is refused."""

import subprocess
import sys

import pytest

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.spec.flavors import load_flavors, resolve_model_sizes

SIZES = {"vocab_size": 96, "dim": 64, "n_layers": 2, "n_heads": 4}


def spelled(**fields):
    return resolve_model_sizes(Llama3Config.model_validate(fields))


def problems_of(**fields):
    with pytest.raises(ProblemsFound) as found:
        spelled(**fields)
    return found.value.problems


# D, L, H, K, V, multiplier, multiple_of, width, back end, mask, tied
TABLE = {
    "debugmodel": (256, 6, 16, 16, 2048, None, 256, 768, "sdpa", "causal", False),
    "debugmodel_flex_attn": (256, 6, 16, 16, 2048, None, 256, 768, "flex", "block_causal", False),
    "debugmodel_varlen_attn": (
        256,
        6,
        16,
        16,
        2048,
        None,
        256,
        768,
        "varlen",
        "block_causal",
        False,
    ),
    "1B": (2048, 16, 32, 8, 128256, 1.5, 1024, 8192, "sdpa", "causal", True),
    "3B": (3072, 28, 24, 8, 128256, 1.0, 1024, 8192, "sdpa", "causal", True),
    "8B": (4096, 32, 32, 8, 128256, 1.3, 1024, 14336, "sdpa", "causal", False),
    "8B_flex": (4096, 32, 32, 8, 128256, 1.3, 1024, 14336, "flex", "block_causal", False),
    "8B_varlen": (4096, 32, 32, 8, 128256, 1.3, 1024, 14336, "varlen", "block_causal", False),
    "70B": (8192, 80, 64, 8, 128256, 1.3, 4096, 28672, "sdpa", "causal", False),
    "405B": (16384, 126, 128, 8, 128256, 1.2, 4096, 53248, "sdpa", "causal", False),
}


def test_the_flavors_are_those_of_the_table():
    assert list(load_flavors("llama3")) == list(TABLE)


@pytest.mark.parametrize("flavor", TABLE)
def test_a_flavor_has_the_sizes_of_the_table(flavor):
    sizes = spelled(flavor=flavor)
    feed_forward, attention = sizes["feed_forward"], sizes["attention"]
    assert TABLE[flavor] == (
        *(sizes[field] for field in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size")),
        *(feed_forward[field] for field in ("ffn_dim_multiplier", "multiple_of", "hidden_dim")),
        attention["backend"],
        attention["mask"],
        sizes["tie_word_embeddings"],
    )
    scaling = {
        "name": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert sizes["rope"] == {"theta": 500000.0, "scaling": scaling}
    assert (sizes["norm_eps"], sizes["max_seq_len"], sizes["head_dim"]) == (
        1e-5,
        131072,
        sizes["dim"] // sizes["n_heads"],
    )


@pytest.mark.parametrize("flavor", TABLE)
def test_what_is_spelled_out_is_the_dump_of_a_config_and_stays_as_it_is(flavor):
    sizes = spelled(flavor=flavor)
    config = Llama3Config.model_validate(sizes)
    assert dump_config(config) == sizes
    assert list(dump_config(config)) == list(sizes)
    assert resolve_model_sizes(config) == sizes


def test_written_fields_override_the_flavor():
    sizes = spelled(
        flavor="8B",
        n_layers=4,
        tie_word_embeddings=True,
        rope={"scaling": None},
        feed_forward={"multiple_of": 256},
    )
    assert (sizes["n_layers"], sizes["tie_word_embeddings"], sizes["rope"]) == (
        4,
        True,
        {"theta": 500000.0, "scaling": None},
    )
    assert sizes["feed_forward"] == {
        "hidden_dim": 14336,
        "multiple_of": 256,
        "ffn_dim_multiplier": 1.3,
    }
    assert sizes["dim"] == 4096


def test_what_follows_from_dim_and_heads_follows_an_override():
    sizes = spelled(flavor="debugmodel", dim=512, n_heads=8)
    assert (sizes["head_dim"], sizes["n_kv_heads"], sizes["feed_forward"]["hidden_dim"]) == (
        64,
        8,
        1536,
    )
    assert sizes["init"]["output_std"] == 512**-0.5


def test_a_written_null_is_not_open():
    assert (
        spelled(flavor="8B", feed_forward={"ffn_dim_multiplier": None})["feed_forward"][
            "hidden_dim"
        ]
        == 11264
    )


def test_a_scaling_replaces_the_flavors_as_a_whole():
    scaling = spelled(flavor="debugmodel", rope={"scaling": {"name": "llama3", "factor": 32.0}})[
        "rope"
    ]["scaling"]
    assert (scaling["factor"], scaling["original_max_position_embeddings"]) == (32.0, 8192)


def test_an_unknown_flavor_is_a_problem_with_a_suggestion():
    (problem,) = problems_of(flavor="debugmodle")
    assert (problem.code, problem.path, problem.suggestion) == (
        "unknown-name",
        ("model", "flavor"),
        "debugmodel",
    )
    (problem,) = problems_of(flavor="8b")
    assert problem.suggestion == "8B"


def test_a_flavor_is_a_label_once_everything_is_written():
    sizes = {**spelled(flavor="debugmodel"), "flavor": "a name nobody knows"}
    assert spelled(**sizes) == sizes


def test_a_custom_model_needs_its_sizes_and_takes_the_rest_from_the_family():
    sizes = spelled(**SIZES)
    assert (
        sizes["flavor"],
        sizes["n_kv_heads"],
        sizes["head_dim"],
        sizes["feed_forward"]["hidden_dim"],
    ) == (None, 4, 16, 256)
    assert (sizes["norm_eps"], sizes["rope"]["theta"], sizes["attention"]["backend"]) == (
        1e-5,
        500000.0,
        "sdpa",
    )


def test_all_missing_sizes_are_told_together():
    (problem,) = problems_of(dim=64)
    assert (problem.code, problem.path) == ("missing-key", ("model", "vocab_size"))
    assert problem.message == "a custom llama3 model needs vocab_size, n_layers and n_heads"


def test_sizes_that_exclude_each_other_are_problems_together():
    problems = problems_of(**{**SIZES, "vocab_size": "auto"}, head_dim=15, n_kv_heads=3)
    assert [problem.path[1] for problem in problems] == ["head_dim", "n_kv_heads", "vocab_size"]
    (problem,) = problems_of(**{**SIZES, "n_heads": 6})
    assert (problem.code, problem.message) == ("conflict", "dim 64 is not divisible by n_heads 6")
    (problem,) = problems_of(**SIZES, rope={"scaling": {"name": "llama3", "low_freq_factor": 5.0}})
    assert problem.path == ("model", "rope", "scaling", "high_freq_factor")


def test_nothing_here_imports_torch():
    program = (
        "import sys; import titanrun.models.shared.spec.flavors, "
        "titanrun.models.shared.spec.flops, titanrun.models.llama3.config;"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
