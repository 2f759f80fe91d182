"""What the rules say of a layout, building it says too: random layouts on ranks that are not
there."""

from pathlib import Path
from random import Random

import pytest

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.spec.pipeline_stages import PIPELINE_SCHEDULES
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.dry_build import dry_build

DRAWN = 300
DRAWN_BY_DEFAULT = 30
DEGREES = (1, 1, 1, 1, 2, 2, 3, 4)


def drawn(seed: int) -> tuple[list[str], int]:
    """Overrides and a number of ranks, which fit each other most of the time."""
    dice = Random(seed)
    names = (
        "data_parallel_replicate",
        "data_parallel_shard",
        "context_parallel",
        "tensor_parallel",
        "pipeline_parallel",
    )
    degrees = {name: dice.choice(DEGREES) for name in names}
    ranks = 1
    for degree in degrees.values():
        ranks *= degree
    has_experts = dice.random() < 0.4
    heads = dice.choice([4, 6, 8])
    sizes = (
        f"vocab_size: 96, dim: 48, n_layers: {dice.choice([1, 2, 3, 8])}, n_heads: {heads}, "
        f"n_kv_heads: {dice.choice([heads, 2])}"
    )
    if has_experts:
        experts = (
            "num_experts: 4, top_k: 2, hidden_dim: 32, num_shared_experts: 0, score_func: "
            "softmax, route_norm: false, route_scale: 1.0"
        )
        rest = (
            "gate_bias: false, score_before_experts: false, num_expert_groups: null, "
            "num_limited_groups: null, load_balance_coeff: null"
        )
        model = (
            f"model={{name: qwen3, {sizes}, head_dim: 8, feed_forward: {{hidden_dim: 64}}, "
            f"moe: {{{experts}, {rest}}}}}"
        )
    else:
        model = f"model={{name: llama3, {sizes}, head_dim: 8, feed_forward: {{hidden_dim: 64}}}}"
    overrides = [
        model,
        *(f"parallelism.{name}_degree={degree}" for name, degree in degrees.items()),
    ]
    overrides.append(
        f"parallelism.pipeline_parallel_schedule={dice.choice(list(PIPELINE_SCHEDULES))}"
    )
    if has_experts:
        overrides.append(f"parallelism.expert_parallel_degree={dice.choice([1, 2, 3])}")
        if dice.random() < 0.5:
            overrides[0] = latent(dice, heads)
    present = ranks if dice.random() < 0.9 else ranks + 1
    if dice.random() < 0.3:
        overrides.append("model.tie_word_embeddings=true")
    return overrides, present


def latent(dice: Random, heads: int) -> str:
    """A model of deepseek_v3, of which any layers may be dense."""
    layers = dice.choice([1, 2, 3, 8])
    attention = f"n_heads: {heads}, q_lora_rank: {dice.choice(['null', 10])}, kv_lora_rank: 12"
    widths = "qk_nope_head_dim: 8, qk_rope_head_dim: 4, v_head_dim: 6"
    experts = (
        f"{{num_experts: 4, top_k: 2, hidden_dim: 32, num_shared_experts: {dice.choice([0, 1])}}}"
    )
    sizes = (
        f"vocab_size: 96, dim: 48, n_layers: {layers}, n_dense_layers: {dice.randint(0, layers)}, "
        f"feed_forward: {{hidden_dim: 64}}"
    )
    return f"model={{name: deepseek_v3, {sizes}, {attention}, {widths}, moe: {experts}}}"


def agree(seed: int, recipe: Path) -> str:
    """`built` or `refused` by both. Fails where rules and building differ."""
    overrides, ranks = drawn(seed)
    try:
        run = resolve_recipe(str(recipe), overrides, environment={}, ranks=ranks).run
    except ProblemsFound as found:
        rules = {problem.rule for problem in found.problems}
        assert None not in rules, f"{seed}: {found}"
        return "refused"
    try:
        dry_build(run, world_size=ranks)
    except ProblemsFound as found:
        raise AssertionError(
            f"seed {seed}: the rules accept what cannot be built: {overrides} on {ranks} ranks: "
            f"{found}"
        ) from found
    return "built"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    dataset = "{name: tokens, path: rows.npy}"
    path.write_text(
        f"version: 1\nmodel: llama3\ntraining: "
        f"{{dataset: {dataset}, seq_len: 48, local_batch_size: 8, "
        f"mixed_precision_param: float32}}\n"
    )
    return path


def test_what_the_rules_accept_can_be_built(recipe: Path) -> None:
    outcomes = [agree(seed, recipe) for seed in range(DRAWN_BY_DEFAULT)]
    assert {"built", "refused"} == set(outcomes)


@pytest.mark.slow
def test_what_the_rules_accept_can_be_built_in_many_draws(recipe: Path) -> None:
    outcomes = [agree(seed, recipe) for seed in range(DRAWN_BY_DEFAULT, DRAWN_BY_DEFAULT + DRAWN)]
    assert min(outcomes.count("built"), outcomes.count("refused")) > DRAWN // 10


@pytest.mark.parametrize(
    ("overrides", "ranks", "rule"),
    [
        (["parallelism.tensor_parallel_degree=2"], 3, "degrees-fill-ranks"),
        (["parallelism.pipeline_parallel_degree=8"], 8, "layers-fill-stages"),
    ],
    ids=str,
)
def test_what_the_rules_refuse_cannot_be_built(
    overrides: list[str], ranks: int, rule: str, recipe: Path
) -> None:
    model = (
        "model={name: llama3, vocab_size: 96, dim: 48, n_layers: 2, n_heads: 4, head_dim: 8, "
        "feed_forward: {hidden_dim: 64}}"
    )
    with pytest.raises(ProblemsFound) as refused:
        resolve_recipe(str(recipe), [model, *overrides], environment={}, ranks=ranks)
    assert rule in {problem.rule for problem in refused.value.problems}
    # the same layout past the rules, from a recipe that was resolved for one rank
    run = resolve_recipe(str(recipe), [model], environment={}).run
    data = dump_config(run)
    for override in overrides:
        path, _, degree = override.partition("=")
        data["parallelism"][path.partition(".")[2]] = int(degree)
    with pytest.raises((ProblemsFound, AssertionError)):
        dry_build(Recipe.model_validate(data), world_size=ranks)
