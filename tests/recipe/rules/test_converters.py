"""Which converters may stand beside each other."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """\
version: 1
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64}
converters: [%s]
"""
FP8, FP4 = "{name: float8_linear, %s}", "{name: nvfp4_linear, %s}"


@pytest.mark.parametrize(
    ("converters", "is_refused"),
    [
        (["nvfp4_linear", "fp32_lm_head"], True),
        ([FP4 % "fqns: [output]", "fp32_lm_head"], True),
        ([FP4 % "fqns: [feed_forward, output]", "fp32_lm_head"], True),
        ([FP4 % "fqns: [feed_forward]", "fp32_lm_head"], False),
        (["fp32_lm_head", "nvfp4_linear"], False),
        (["float8_linear", "fp32_lm_head"], True),
        ([FP8 % "filter_fqns: [output]", "fp32_lm_head"], False),
        ([FP8 % "filter_fqns: [attention]", "fp32_lm_head"], True),
        # which modules it leaves out is known when the model is built
        ([FP8 % "filter_fqns: [auto_filter_small_kn]", "fp32_lm_head"], False),
        (["float8_linear", "qat"], True),
        ([FP8 % "filter_fqns: [attention]", "qat"], False),
        ([FP8 % "filter_fqns: [attention]", "{name: qat, filter_fqns: [attention]}"], True),
    ],
    ids=str,
)
def test_a_converter_that_finds_no_module_left_is_refused(
    converters: list[str], is_refused: bool, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE % ", ".join(converters), encoding="utf-8")
    try:
        found = resolve_recipe(str(tmp_path / "recipe.yaml"), environment={}).warnings
    except ProblemsFound as error:
        found = error.problems
    told = [problem for problem in found if "leaves no module for" in problem.message]
    assert len(told) == is_refused
