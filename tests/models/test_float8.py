"""Every family trains with its linear layers in float8: emulated on the CPU, close to the run
without and not the same."""

import pytest

from tests.distributed.ranks import alone
from tests.distributed.test_layouts import DECODER, DEEPSEEK, FLUX, GPT_OSS, LLAMA4, MISTRAL

SHORT = ("training.steps=2", "lr_scheduler.warmup_steps=1", "validation.enable=false")
SIZES = "dim: 64, n_heads: 4, n_kv_heads: 2, n_layers: 2"
FAMILIES = {
    "llama3": (
        f"model={{name: llama3, flavor: debugmodel, {SIZES}, feed_forward: {{hidden_dim: 128}}}}",
    ),
    "llama4": LLAMA4,
    "qwen3": (f"model={{name: qwen3, flavor: debugmodel, {SIZES}}}",),
    "qwen3_moe": (
        f"model={{name: qwen3, flavor: debugmodel_moe, {SIZES}, moe: {{num_experts: 4, top_k: 2, "
        f"hidden_dim: 128}}}}",
    ),
    "deepseek_v3": DEEPSEEK,
    "gpt_oss": GPT_OSS,
    "flux": FLUX,
    "decoder": DECODER,
    "transformers": MISTRAL,
}
DENSE = {"llama3", "qwen3", "flux", "transformers"}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_in_float8_as_without_it(family: str) -> None:
    base = (*FAMILIES[family], *SHORT)
    left = "[output]" if family in DENSE else "[output, router.gate]"
    plain, converted = (
        alone(base),
        alone((*base, f"converters=[{{name: float8_linear, emulate: true, filter_fqns: {left}}}]")),
    )
    losses, expected = ([line["loss"] for line in run.numbers] for run in (converted, plain))
    assert losses != expected
    assert losses == pytest.approx(expected, rel=0.02)
