"""`show --minimal`: as little as resolves to the same run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shipped import RUN_RECIPES
from titanrun.config.base import dump_config
from titanrun.config.interpolate import escape_references
from titanrun.config.problems import ProblemsFound
from titanrun.config.serialize import to_yaml
from titanrun.recipe.editing.minimize import minimize_recipe
from titanrun.recipe.resolving.provenance import list_data_leaves
from titanrun.recipe.resolving.resolve import resolve_recipe

ROOT = Path(__file__).parents[3]
RECIPES = RUN_RECIPES
CUSTOM = [
    "model={name: llama3, vocab_size: 4096, dim: 64, n_layers: 2, n_heads: 4, feed_forward: "
    "{multiple_of: 8}}",
    "tokenizer=tiny",
]
FEWER_LAYERS = ["activation_checkpoint=full", "training.global_batch_size=16", "model.n_layers=2"]
CHANGES: list[list[str]] = [
    [],
    ["description=costs $${5}, twice", "lr_scheduler.warmup_steps=12", "training.steps=1000"],
    ["metrics.trackers=[{name: tensorboard, folder: tb}, tensorboard]", "loss=cross_entropy"],
    FEWER_LAYERS,
    CUSTOM,
]
# what these say about layouts, experts and conversations contradicts so small a model, which the
# last test holds
CONTRADICTIONS = [
    ("deepseek_v3_671b.yaml", FEWER_LAYERS),
    ("deepseek_v3_671b.yaml", CUSTOM),
    ("deepseek_v3_16b.yaml", CUSTOM),
    ("llama3_sft_debug.yaml", CUSTOM),
    # labelled replies and pairs go with their own losses, and attend within a conversation
    ("llama3_kto_debug.yaml", CHANGES[2]),
    ("llama3_orpo_debug.yaml", CHANGES[2]),
    ("llama3_orpo_debug.yaml", CUSTOM),
    *((f"prefer_qwen3_4b_{name}.yaml", CHANGES[2]) for name in ("dpo_lora", "orpo")),
    *((f"prefer_qwen3_4b_{name}.yaml", CUSTOM) for name in ("dpo_lora", "orpo")),
    ("long_documents_32k.yaml", CUSTOM),
    # its head gives scores, which need its loss
    ("llama3_reward_debug.yaml", CHANGES[2]),
    ("llama3_reward_debug.yaml", CUSTOM),
    ("llama4_17bx128e.yaml", CUSTOM),
    ("llama4_17bx16e.yaml", CUSTOM),
    ("decoder_deepseek_v3_debug.yaml", FEWER_LAYERS),
    # four heads for eight tensor-parallel ranks
    *((f"llama3_{size}.yaml", CUSTOM) for size in ("70b", "405b")),
    *(
        (f"{name}.yaml", CUSTOM)
        for name in (
            "llama3_8b_sft",
            "llama3_8b_sft_lora",
            "llama3_8b_qlora_sft",
            "llama3_qlora_sft_debug",
            "llama3_distill_debug",
            "distill_qwen3_8b_to_0.6b",
        )
    ),
    *(
        (f"{name}.yaml", CUSTOM)
        for name in ("qwen3_8b_sft", "qwen3_8b_sft_lora", "tool_calls_qwen3")
    ),
    # pictures have another loss, and their models other sizes
    *(
        (f"flux_{name}.yaml", changes)
        for name in ("debug", "dev", "schnell")
        for changes in (CHANGES[2], FEWER_LAYERS, CUSTOM)
    ),
]


def list_cases() -> Iterator[object]:
    """Each recipe as it is, and with one of the changes that it bears, in turn."""
    for number, path in enumerate(RECIPES):
        yield pytest.param(path, CHANGES[0], id=path.name)
        in_turn = [
            CHANGES[1 + (number + more) % (len(CHANGES) - 1)] for more in range(len(CHANGES))
        ]
        borne = [changes for changes in in_turn if (path.name, changes) not in CONTRADICTIONS]
        yield pytest.param(path, borne[0], id=f"{path.name}-{borne[0]}")


@pytest.mark.parametrize(("path", "changes"), [*list_cases()])
def test_the_minimal_recipe_resolves_to_the_same_bytes(
    path: Path, changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    resolved = resolve_recipe(str(path), changes, environment={})
    text = to_yaml(escape_references(minimize_recipe(resolved.run)))
    (tmp_path / "short.yaml").write_text(text, encoding="utf-8")
    assert resolve_recipe(str(tmp_path / "short.yaml"), environment={}).text == resolved.text
    # what was saved is the same run, which has one minimal form
    (tmp_path / "resolved.yaml").write_text(resolved.text, encoding="utf-8")
    again = resolve_recipe(str(tmp_path / "resolved.yaml"), environment={})
    assert again.run == resolved.run and again.text == resolved.text


def test_a_zero_keeps_its_sign(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\n"
    )
    run = resolve_recipe(
        str(tmp_path / "recipe.yaml"),
        ["optimizer.weight_decay=-0.0", "loss.label_smoothing=-0.0"],
        environment={},
    )
    (tmp_path / "recipe.yaml").write_text(to_yaml(escape_references(minimize_recipe(run.recipe))))
    assert (
        resolve_recipe(str(tmp_path / "recipe.yaml"), environment={}).text == run.text
        and "label_smoothing: -0.0" in run.text
    )


def test_nothing_that_follows_by_itself_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    resolved = resolve_recipe("recipes/llama3_debug.yaml", CHANGES[2], environment={})
    short = minimize_recipe(resolved.run)
    assert short["metrics"]["trackers"] == [{"name": "tensorboard", "folder": "tb"}, "tensorboard"]
    assert short["model"] == {"name": "llama3", "flavor": "debugmodel"}
    assert short["training"]["dataset"] == "tiny"
    assert short["optimizer"] == {"lr": 0.002}
    assert not {"loss", "debug", "launch"} & set(short)
    assert len(list_data_leaves(short)) < len(list_data_leaves(dump_config(resolved.run))) / 4


@pytest.mark.parametrize(("name", "changes"), CONTRADICTIONS)
def test_a_model_too_small_for_a_recipe_is_refused(
    name: str, changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ProblemsFound):
        resolve_recipe(f"recipes/{name}", changes, environment={})
