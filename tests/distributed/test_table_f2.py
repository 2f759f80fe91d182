"""torchtitan's table of integration tests of model families: each row is a layout of
test_layouts.py, which trains as one process does."""

import re

import pytest

from tests.distributed.ranks import Case
from tests.distributed.test_layouts import LAYOUTS

# what torchtitan calls it: layout, ranks, degrees (FSDP has the other ranks), and what its settings
# say
ROWS = {
    "deepseek_v3_fsdp+ep+compile": (
        "fsdp4_ep2_deepseek_v3_compiled",
        4,
        {"expert": 2},
        ["deepseek_v3", "compile="],
    ),
    "pp_dualpipev": (
        "pp2_dualpipev_ep2_deepseek_v3",
        4,
        {"pipeline": 2, "expert": 2},
        ["deepseek_v3", "DualPipeV"],
    ),
    "deepseek_v3_pp+fsdp+tp+ep": (
        "fsdp2_tp2_pp2_looped_ep4_deepseek_v3",
        8,
        {"pipeline": 2, "tensor": 2, "expert": 4},
        ["deepseek_v3", "Interleaved1F1B"],
    ),
    "deepseek_v3_pp+fsdp+tp+ep+etp": (
        "fsdp2_tp2_pp2_looped_ep2_etp2_deepseek_v3",
        8,
        {"pipeline": 2, "tensor": 2, "expert": 2, "expert_tensor": 2},
        ["deepseek_v3", "Interleaved1F1B"],
    ),
    "deepseek_v3_flex+pp+fsdp+ep+sacop": (
        "fsdp4_pp2_ep4_deepseek_v3_flex_recomputed",
        8,
        {"pipeline": 2, "expert": 4},
        ["deepseek_v3", "flex_attn", "selective_ac_option: op"],
    ),
    "qwen3_fsdp+tp": ("fsdp2_tp2_qwen3", 4, {"tensor": 2}, ["qwen3"]),
    "qwen3_fsdp+tp+ep+etp": (
        "fsdp2_tp2_ep2_etp2",
        4,
        {"tensor": 2, "expert": 2, "expert_tensor": 2},
        ["qwen3", "moe"],
    ),
    "llama4_pp+fsdp+tp+ep+compile": (
        "llama4_fsdp2_tp2_pp2_ep4_compiled",
        8,
        {"pipeline": 2, "tensor": 2, "expert": 4},
        ["llama4", "compile="],
    ),
    "gpt_oss_fsdp+tp+ep+compile": (
        "gpt_oss_fsdp4_tp2_ep4_compiled",
        8,
        {"tensor": 2, "expert": 4},
        ["gpt_oss", "compile="],
    ),
}
DEGREE = re.compile(r"parallelism\.(\w+)_parallel(?:_shard|_replicate)?_degree=(\d+)")
CASES: dict[str, Case] = {layout.values[0].name: layout.values[0] for layout in LAYOUTS}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_a_layout_with_its_ranks_and_settings(name: str) -> None:
    layout, ranks, degrees, words = ROWS[name]
    found = CASES[layout]
    written = " ".join([*found.base, *found.overrides])
    assert found.nproc == ranks
    assert {axis: int(degree) for axis, degree in DEGREE.findall(written)} == degrees
    assert [word for word in words if word not in written] == []
