"""Multi-token prediction is that of the DeepSeek-V3 paper, section 2.2, computed with transformers'
layers under the published names."""

import pytest
import torch
from pydantic import ValidationError
from torch import Generator
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from transformers import DeepseekV3Config as TheirConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3RMSNorm,
    DeepseekV3RotaryEmbedding,
)

from titanrun.components.data.mtp_labels import attach_mtp_labels, stack_mtp_tokens
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig, MultiTokenCrossEntropyConfig
from titanrun.components.losses.cross_entropy import CrossEntropyLoss
from titanrun.config.base import dump_config
from titanrun.distributed.precision import get_precision
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.deepseek_v3.huggingface import (
    from_huggingface,
    to_huggingface,
    to_huggingface_config,
)
from titanrun.models.deepseek_v3.model import DeepseekV3
from titanrun.models.shared.spec.flops import (
    count_active_parameters,
    count_parameters,
    flops_per_token,
)
from titanrun.recipe.plan.memory_estimate import estimate_logits as logits_of
from titanrun.recipe.plan.plan_layout import ZERO_SIZE, PlanLayout
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.runners.forward_backward import FullModelForwardBackward
from titanrun.training.runners.mtp_forward_backward import MTPForwardBackward

DEPTH, LENGTH, SCALE = 2, 24, 0.3
EXPERTS = {"score_func": "sigmoid", "route_norm": True, "route_scale": 2.5}


@pytest.fixture(params=[{}, {"n_dense_layers": 3}], ids=["experts", "dense"])
def config(request, deepseek_v3):
    return deepseek_v3(
        **request.param,
        num_mtp_layers=DEPTH,
        moe=EXPERTS,
        latent_norm_eps=1e-6,
        init={"linear_std": 0.1},
    )


@pytest.fixture
def model(config):
    """In float64, where a wrong formula is no rounding."""
    model, generator = DeepseekV3(config, seq_len=LENGTH).double(), Generator().manual_seed(0)
    model.init_weights(generator)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
    return model


@pytest.fixture
def batch(config):
    return TokenBatch.from_sequences(
        torch.randint(config.vocab_size, (2, LENGTH + 1), generator=Generator().manual_seed(1))
    )


class Reference:
    """Section 2.2 with cut rows: depth k has no more than the first T - k tokens."""

    def __init__(self, config, state):
        self.state, self.config = state, config
        self.to_hf_name = TheirConfig(**to_huggingface_config(config, "float32"))
        self.to_hf_name._attn_implementation = "eager"

    def build_layer(self, index, x_BTD):
        layer = DeepseekV3DecoderLayer(
            self.to_hf_name, min(index, self.config.n_layers - 1)
        ).double()
        own = {
            name.removeprefix(f"model.layers.{index}."): weight
            for name, weight in self.state.items()
        }
        weights = stacked(layer.state_dict(), own)
        assert weights.keys() == layer.state_dict().keys()
        positions = torch.arange(x_BTD.size(1))[None]
        mask = torch.full((x_BTD.size(1),) * 2, float("-inf"), dtype=torch.float64).triu(1)[
            None, None
        ]
        turned = DeepseekV3RotaryEmbedding(self.to_hf_name)(x_BTD, positions)
        told = {"attention_mask": mask, "position_ids": positions, "position_embeddings": turned}
        return functional_call(layer, weights, x_BTD, told)

    def norm(self, name, x_BTD):
        norm = DeepseekV3RMSNorm(self.config.dim, eps=self.config.norm_eps).double()
        return functional_call(norm, {"weight": self.state[name]}, x_BTD)

    def losses(self, tokens_BT):
        """Sums over tokens of depth 0, 1, ... for rows [B, T + 1] of tokens t_1 to t_(T+1)."""
        inputs_BT = tokens_BT[:, :-1]
        h_BTD = self.state["model.embed_tokens.weight"][inputs_BT]
        for index in range(self.config.n_layers):
            h_BTD = self.build_layer(index, h_BTD)
        h_BTD = self.norm("model.norm.weight", h_BTD)
        found = [self.cross_entropy("lm_head.weight", h_BTD, tokens_BT[:, 1:])]
        for depth in range(1, DEPTH + 1):
            index = self.config.n_layers + depth - 1
            name = f"model.layers.{index}."
            embedded = self.state[f"{name}embed_tokens.weight"][inputs_BT[:, depth:]]
            both = [
                self.norm(f"{name}enorm.weight", embedded),
                self.norm(f"{name}hnorm.weight", h_BTD[:, : LENGTH - depth]),
            ]
            h_BTD = self.build_layer(
                index, torch.cat(both, -1) @ self.state[f"{name}eh_proj.weight"].T
            )
            h_BTD = self.norm(f"{name}shared_head.norm.weight", h_BTD)
            found.append(
                self.cross_entropy(
                    f"{name}shared_head.head.weight", h_BTD, tokens_BT[:, depth + 1 :]
                )
            )
        return found

    def cross_entropy(self, head, h_BTD, labels_BT):
        return cross_entropy(
            (h_BTD @ self.state[head].T).flatten(0, 1), labels_BT.flatten(), reduction="sum"
        )


def stacked(wanted, own):
    """Weights in transformers' layout of today, which stacks the experts that its files keep
    apart."""
    found = {name: own[name] for name in wanted if name in own}
    for name in wanted:
        if name.endswith("experts.gate_up_proj"):
            front, count = name.removesuffix("gate_up_proj"), len(wanted[name])
            parts = [
                torch.cat([own[f"{front}{e}.{part}_proj.weight"] for part in ("gate", "up")])
                for e in range(count)
            ]
            found[name] = torch.stack(parts)
        elif name.endswith("experts.down_proj"):
            front, count = name.removesuffix("down_proj"), len(wanted[name])
            found[name] = torch.stack([own[f"{front}{e}.down_proj.weight"] for e in range(count)])
    return found


def as_stored(model):
    return WorkingWeights(model, get_precision("float32", "float32"))


def passes(model, **options):
    loss = CrossEntropyLoss(MultiTokenCrossEntropyConfig(**options))
    return MTPForwardBackward(model, loss, as_stored(model), DEPTH, SCALE)


def test_losses_and_gradients_are_those_of_the_paper(config, model, batch):
    total = passes(model).forward_backward(attach_mtp_labels(batch, DEPTH), torch.tensor(1.0))
    ours = dict(model.named_parameters())
    state = {
        name: weight.detach().clone().requires_grad_()
        for name, weight in to_huggingface(config, model.state_dict()).items()
    }
    first, *further = Reference(config, state).losses(
        torch.cat([batch.tokens[:, :1], batch.labels], 1)
    )
    wanted = first + SCALE / DEPTH * sum(further)
    assert total.item() == pytest.approx(
        wanted.item(), rel=1e-6
    )  # the loss itself is computed in fp32
    wanted.backward()
    front = f"model.layers.{config.n_layers}."
    for name, theirs in (
        ("layers.3.join", f"{front}eh_proj"),
        ("layers.3.embedding_norm", f"{front}enorm"),
        ("layers.3.stream_norm", f"{front}hnorm"),
        ("layers.3.out_norm", f"{front}shared_head.norm"),
        ("layers.3.attention.wo", f"{front}self_attn.o_proj"),
        ("layers.0.attention.wo", "model.layers.0.self_attn.o_proj"),
        ("norm", "model.norm"),
    ):
        assert torch.allclose(
            ours[f"{name}.weight"].grad, state[f"{theirs}.weight"].grad, rtol=1e-5, atol=1e-6
        ), name
    for name, copied in (("tok_embeddings", "embed_tokens"), ("output", "shared_head.head")):
        own = {"tok_embeddings": "model.embed_tokens.weight", "output": "lm_head.weight"}[name]
        shared = state[own].grad + sum(
            state[f"model.layers.{config.n_layers + k}.{copied}.weight"].grad for k in range(DEPTH)
        )
        assert torch.allclose(ours[f"{name}.weight"].grad, shared, rtol=1e-5, atol=1e-6), name


def test_the_next_token_is_predicted_as_without_further_layers(deepseek_v3, config, model, batch):
    alone = DeepseekV3(without_them(config), seq_len=LENGTH).double()
    alone.load_state_dict(
        {
            name: weight
            for name, weight in model.state_dict().items()
            if int(number(name)) < config.n_layers
        }
    )
    told = attach_mtp_labels(batch, DEPTH)
    assert torch.equal(model(batch.tokens), alone(batch.tokens))
    plain = FullModelForwardBackward(
        alone, CrossEntropyLoss(CrossEntropyConfig()), as_stored(alone)
    )
    assert torch.equal(passes(model).compute_loss_sum(told), plain.compute_loss_sum(batch))
    logits = model(batch.tokens, mtp_tokens_KBT=stack_mtp_tokens(told, DEPTH))
    assert torch.allclose(logits[: len(batch.tokens)], alone(batch.tokens), atol=1e-12)


def test_a_plan_has_the_logits_of_all_depths(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: deepseek_v3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    )
    further = ["loss=multi_token_cross_entropy", "model.num_mtp_layers=2"]
    plain, told = (
        resolve_recipe(str(recipe), overrides, environment={}).run for overrides in ([], further)
    )
    plain, told = (
        logits_of(PlanLayout(run, ParallelDims(), ZERO_SIZE, [], ZERO_SIZE))
        for run in (plain, told)
    )
    assert told.bytes == 3 * plain.bytes


def without_them(config):
    return DeepseekV3Config.model_validate({**dump_config(config), "num_mtp_layers": 0})


def number(name):
    return name.split(".")[1] if name.startswith("layers.") else 0


def test_weights_come_back_from_the_published_names_also_without_further_layers(config, model):
    state = model.state_dict()
    exported = to_huggingface(config, state)
    again = from_huggingface(config, exported)
    assert all(torch.equal(again[name], weight) for name, weight in state.items())
    read = from_huggingface(without_them(config), exported)
    assert read.keys() == {name for name in state if int(number(name)) < config.n_layers}
    assert {
        "enorm.weight",
        "hnorm.weight",
        "eh_proj.weight",
        "shared_head.norm.weight",
        "shared_head.head.weight",
        "embed_tokens.weight",
    } <= {name.removeprefix("model.layers.3.") for name in exported}


def test_counts_are_those_that_deepseek_publishes(deepseek_v3):
    # README_WEIGHTS.md of the release: 11.5 B of its own, 2.4 B active with the shared 0.9 B
    # embedding and 0.9 B head
    without, config = deepseek_v3("671B"), deepseek_v3("671B", num_mtp_layers=1)
    # and without the matrix that joins, as it turns out
    ends, join = 2 * config.vocab_size * config.dim, 2 * config.dim**2
    assert round((count_parameters(config) - count_parameters(without) - join) / 1e9, 1) == 11.5
    active = count_active_parameters(config) - count_active_parameters(without)
    assert round((active + ends - join) / 1e9, 1) == 2.4
    length = 128
    attention = config.kv_dim() * length
    assert flops_per_token(config, length) - flops_per_token(without, length) == 6 * (
        active + ends // 2 + attention
    )


def test_a_mistyped_count_is_refused_before_its_layers_are_listed():
    with pytest.raises(ValidationError, match="num_mtp_layers"):
        DeepseekV3Config.model_validate({"num_mtp_layers": 100_000_000})


def test_the_shapes_are_those_of_the_model(config, model):
    assert {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    } == config.parameter_shapes()
    assert {
        name for name in model.state_dict() if name not in config.parameter_shapes()
    } == config.buffer_shapes().keys()
