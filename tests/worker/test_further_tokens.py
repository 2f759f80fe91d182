"""A run that learns to predict several tokens learns what its recipe says."""

from collections.abc import Callable

import pytest

Metrics = Callable[..., list[dict[str, float]]]
SIZES = (
    "dim: 32, n_layers: 1, n_heads: 2, n_dense_layers: 1, kv_lora_rank: 16, qk_nope_head_dim: 8, "
    "qk_rope_head_dim: 8, v_head_dim: 8"
)
MODEL = (
    f"model={{name: deepseek_v3, flavor: debugmodel, vocab_size: 64, {SIZES}, "
    f"feed_forward: {{hidden_dim: 48}}, num_mtp_layers: %d}}"
)
ROWS = ("training.steps=2",)
LOSS = "loss={name: multi_token_cross_entropy%s}"
SETTINGS = {
    "num_mtp_layers": (MODEL % 2, LOSS % ""),
    "mtp_scale": (MODEL % 1, LOSS % ", mtp_scale: 0.1"),
    "label_smoothing": (MODEL % 1, LOSS % ", label_smoothing: 0.1"),
    "z_loss": (MODEL % 1, LOSS % ", z_loss: 0.01"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_another_value_gives_other_losses(setting: str, metrics: Metrics) -> None:
    before, after = metrics(MODEL % 1, LOSS % "", *ROWS), metrics(*SETTINGS[setting], *ROWS)
    assert before[0]["loss"] != after[0]["loss"]


def test_the_loss_is_that_of_all_depths(metrics: Metrics) -> None:
    first = metrics(MODEL % 2, LOSS % "", *ROWS)[0]
    next_token, second, third = (first[f"multi_token/loss_{place}"] for place in (1, 2, 3))
    # rows have 16 tokens, of which the last k know no token k places on; each depth is divided by
    # 16
    assert first["loss"] == pytest.approx(
        next_token + 0.15 * (second * 15 + third * 14) / 16, rel=1e-5
    )
    alone = metrics(MODEL % 0, "loss=cross_entropy", *ROWS)[0]
    assert next_token == pytest.approx(alone["loss"], rel=1e-6)
