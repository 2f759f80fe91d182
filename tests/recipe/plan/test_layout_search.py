"""`plan --search`: layouts that fit, by the arithmetic of plans."""

from argparse import Namespace
from math import prod
from pathlib import Path

import pytest

from titanrun.cli.plan_remedies import find_remedies
from titanrun.cli.plan_search import format_nearest
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.recipe.plan.communication import LARGE_BUBBLE, estimate_pipeline_bubble
from titanrun.recipe.plan.devices import DEVICES, GIB
from titanrun.recipe.plan.layout_search import (
    DEGREE_FIELDS,
    LayoutProposal,
    LayoutSearch,
    find_nearest_layout,
    search_layouts,
)
from titanrun.recipe.plan.memory_estimate import estimate_memory, sum_bytes
from titanrun.recipe.plan.memory_levers import find_memory_savings
from titanrun.recipe.plan.plan_layout import ModuleSize, PlanLayout
from titanrun.recipe.plan.plan_report import plan_to_dict
from titanrun.recipe.plan.split_sizes import MeasuredModel, find_part, measure_shares, split_sizes
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe

# the rate of the recipe stays
EIGHT_BITS = ["optimizer.name=adamw_8bit", "optimizer.lr=0.0003"]
RECIPES = Path(__file__).parents[3] / "recipes"


def count_sizes(run: Recipe) -> MeasuredModel:
    """What a rank with the whole model keeps, counted from the shapes of its parameters."""
    counts = [0] * (run.model.layer_count() + 2)
    for name, shape in run.model.parameter_shapes().items():
        counts[find_part(name, len(counts))] += prod(shape)
    return measure_shares(run.model, [ModuleSize(*[count] * 7) for count in counts])


def search(name: str, ranks: int, *overrides: str) -> tuple[Resolved, list[LayoutProposal]]:
    resolved, asked = prepare(name, ranks, *overrides)
    return resolved, search_layouts(asked)


def prepare(name: str, ranks: int, *overrides: str) -> tuple[Resolved, LayoutSearch]:
    file = str(RECIPES / name)
    resolved = resolve_recipe(file, overrides, environment={}, ranks=ranks)

    def is_allowed(further, count):
        try:
            resolve_recipe(file, [*overrides, *further], environment={}, ranks=count)
        except ProblemsFound:
            return False
        return True

    asked = LayoutSearch(
        resolved.run,
        count_sizes(resolved.run),
        ranks,
        DEVICES["h100"],
        has_fixed_batch=resolved.recipe.training.global_batch_size != "auto",
        is_allowed=is_allowed,
        loss=resolved.recipe.loss,
    )
    return resolved, asked


@pytest.mark.parametrize(
    ("name", "ranks", "words"),
    [
        ("llama3_8b.yaml", 8, []),
        ("llama3_70b.yaml", 64, ["training.global_batch_size=64"]),
        # whose loss depends on the degree of the pipeline
        ("llama3_70b.yaml", 64, ["training.global_batch_size=64", "loss=auto"]),
        ("deepseek_v3_16b.yaml", 16, ["training.global_batch_size=64"]),
    ],
)
def test_what_is_proposed_resolves_and_fits_with_a_tenth_to_spare(
    name: str, ranks: int, words: list[str]
) -> None:
    before, found = search(name, ranks, *words)
    assert 1 <= len(found) <= 5
    assert [each.rank_key for each in found] == sorted(each.rank_key for each in found)
    for proposal in found:
        run = resolve_recipe(
            str(RECIPES / name), [*words, *proposal.overrides], environment={}, ranks=ranks
        ).run
        # the recipe with these overrides is the layout that was estimated
        assert run.parallelism == proposal.layout.run.parallelism
        assert run.training == proposal.layout.run.training
        assert run.loss == proposal.layout.run.loss
        assert run.activation_checkpoint.name == proposal.layout.run.activation_checkpoint.name
        assert run.training.global_batch_size == before.run.training.global_batch_size
        assert proposal.layout.parallel_dims.world_size == ranks
        sizes = split_sizes(count_sizes(run), proposal.layout.parallel_dims)
        again = PlanLayout(run, proposal.layout.parallel_dims, sizes[0], sizes[1:-1], sizes[-1])
        assert sum_bytes(estimate_memory(again, DEVICES["h100"])) == proposal.memory_bytes
        assert proposal.memory_bytes <= 0.9 * DEVICES["h100"].memory_gib * GIB
        assert estimate_pipeline_bubble(again) <= LARGE_BUBBLE


def test_fsdp_alone_is_proposed_first() -> None:
    first, *others = search("llama3_8b.yaml", 8)[1]
    assert first.layout.parallel_dims.dp_shard == 8
    sent = [each.bytes_per_token for each in others]
    assert sent == sorted(sent) and sent[0] < first.bytes_per_token


def test_where_nothing_fits_the_nearest_layout_is_found() -> None:
    _, asked = prepare("llama3_405b.yaml", 8)
    assert search_layouts(asked) == []
    nearest = find_nearest_layout(asked)
    assert nearest is not None and nearest.memory_bytes > asked.memory_limit
    assert nearest.layout.run.activation_checkpoint.name == "full"
    assert asked.is_allowed(nearest.overrides, 8)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ([], [["--world-size", "2"]]),
        # the tokens of one sequence do not fit, the weights do
        (
            [
                "model.flavor=debugmodel",
                "model.dim=2048",
                "model.n_layers=64",
                "training.seq_len=131072",
            ],
            [["--world-size", "2"], ["training.seq_len=65536"], EIGHT_BITS],
        ),
    ],
)
def test_changes_with_which_a_layout_fits_are_told(
    words: list[str], changes: list[list[str]]
) -> None:
    _, asked = prepare("llama3_8b.yaml", 1, *words)
    assert search_layouts(asked) == []
    options = Namespace(recipe=str(RECIPES / "llama3_8b.yaml"), device="h100", quiet=True)
    found = [*find_remedies(options, words, asked)]
    assert [change.list_words(1) for change in found] == changes
    for change in found:
        assert search_layouts(prepare("llama3_8b.yaml", change.ranks, *change.apply(words))[1])
    told = "\n".join(format_nearest(find_nearest_layout(asked), found, "it", asked))
    assert "with one of these changes a layout fits:" in told
    assert "combine them" in "\n".join(format_nearest(None, [], "it", asked))


def test_a_single_rank_is_proposed_what_it_has() -> None:
    _, found = search("llama3_debug.yaml", 1)
    assert {getattr(found[0].layout.parallel_dims, axis) for axis in DEGREE_FIELDS} == {1}
    # the global batch of the recipe in one pass
    assert "training.local_batch_size=8" in found[0].overrides
    assert found[0].bytes_per_token == 0


def test_each_setting_saves_what_the_plan_with_it_needs_less() -> None:
    file = str(RECIPES / "llama3_8b.yaml")

    def lay_out(*overrides: str) -> PlanLayout:
        run = resolve_recipe(file, overrides, environment={}, ranks=1).run
        sizes = count_sizes(run).sizes
        return PlanLayout(run, ParallelDims(), sizes[0], sizes[1:-1], sizes[-1])

    device = DEVICES["h100"]
    base = lay_out("training.local_batch_size=4", "loss=cross_entropy")
    need = sum_bytes(estimate_memory(base, device))
    found = {each.setting: each.bytes for each in find_memory_savings(base, device)}
    expected = {
        "activation_checkpoint: full": "activation_checkpoint=full",
        "local_batch_size: 1": "training.local_batch_size=1",
        "loss: chunked_cross_entropy": "loss=chunked_cross_entropy",
        # the learning rate stays that of the recipe
        "optimizer: {name: adamw_8bit, lr: 0.0003}": "optimizer={name: adamw_8bit, lr: 0.0003}",
    }
    assert set(expected) <= set(found)
    for setting, override in expected.items():
        batch = [] if "batch" in setting else ["training.local_batch_size=4"]
        loss = [] if "loss" in setting else ["loss=cross_entropy"]
        other = lay_out("training.global_batch_size=4", *batch, *loss, override)
        assert found[setting] == need - sum_bytes(estimate_memory(other, device)), setting
    data = plan_to_dict(base, device)
    assert [each["setting"] for each in data["savings"]] == list(found)
    assert data["savings"][0]["setting"] in data["warnings"][0]


@pytest.mark.parametrize(
    ("overrides", "counted", "fits"),
    [
        (["optimizer.state_dtype=weights"], 144.5e9, False),
        ([], 112.4e9, True),
        (["optimizer={name: adamw_8bit}"], 96.4e9, True),
        (["training.dtype=bfloat16"], 64.2e9, True),
    ],
    ids=["18_bytes", "14_bytes", "12_bytes", "8_bytes"],
)
def test_of_8b_on_one_h200_what_parameters_take_and_whether_it_fits(
    overrides: list[str], counted: float, fits: bool
) -> None:
    """The figures are those of 8.03e9 parameters at so many bytes each, worked out by hand."""
    file = str(RECIPES / "hopper/llama3_8b.yaml")
    run = resolve_recipe(file, overrides, environment={}, ranks=1).run
    sizes = count_sizes(run).sizes
    layout = PlanLayout(run, ParallelDims(), sizes[0], sizes[1:-1], sizes[-1])
    said = plan_to_dict(layout, DEVICES["h200"])
    names = ("weights", "working copies", "gradients", "optimizer states")
    found = sum(item["bytes"] for item in said["memory"] if item["name"] in names)
    if "training.dtype=bfloat16" not in overrides:
        # gradients of the largest part in bf16, until they are added up
        found -= max(size.local_trainable for size in sizes) * 2
    assert found == pytest.approx(counted, rel=0.005)
    assert said["fits"] is fits
