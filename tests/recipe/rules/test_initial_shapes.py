"""Shapes of the weights that a run starts from, compared before it starts."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from titanrun.components.checkpoints.spec.manifest import Manifest, format_manifest
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training: {dataset: tiny, seq_len: 64, steps: 2}
lr_scheduler: {warmup_steps: 0}
"""
RANK_4 = "converters=[{name: lora, rank: 4}]"
RANK_8 = "converters=[{name: lora, rank: 8}]"


def save_checkpoint(*overrides: str, has_base: bool = True, rank: int | None = None) -> None:
    """Write what a run of these settings leaves, without its tensors."""
    resolved = resolve_recipe("mine.yaml", overrides, environment={})
    shapes = dict(resolved.run.model.parameter_shapes()) if has_base else {}
    if rank is not None:
        shapes["layers.0.attention.wq.lora_a"] = (rank, 256)
        shapes["layers.0.attention.wq.lora_b"] = (256, rank)
    step = Path("runs/first/checkpoint/step-2")
    step.mkdir(parents=True)
    manifest = Manifest(
        step=2,
        holds="everything",
        layout={"ranks": 1},
        versions={},
        recipe="x",
        saved_at="",
        tensors={f"model.{name}": f"float32{list(shape)}" for name, shape in shapes.items()}
        | {"optimizer.0.exp_avg": "float32[3]"},
        files={},
    )
    (step / "manifest.json").write_text(format_manifest(manifest))
    for folder in (step, step.parent.parent):
        (folder / "resolved.yaml").write_text(resolved.text)


def find_problems(*overrides: str, start: str = "runs/first") -> list[Problem]:
    settings = [*overrides, f"checkpoint.initial_load_path={start}"]
    try:
        resolve_recipe("mine.yaml", settings, environment={}, should_check_inputs=True)
    except ProblemsFound as error:
        return list(error.problems)
    return []


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RECIPE)


@pytest.mark.parametrize("start", ["", "/checkpoint", "/checkpoint/step-2"])
def test_adapters_of_another_rank_are_told(start: str) -> None:
    save_checkpoint(RANK_4, rank=4)
    [problem] = find_problems(RANK_8, start=f"runs/first{start}")
    assert problem.rule == "initial-adapters-fit"
    assert problem.message == (f"rank is 8, but the adapters in 'runs/first{start}' have rank 4")
    merge = f"titanrun checkpoint export runs/first{start} "
    assert str(problem.hint).startswith(f"write rank: 4, or merge them: {merge}")
    assert find_problems(RANK_4, start=f"runs/first{start}") == []


def test_weights_without_adapters_take_any_rank() -> None:
    # a checkpoint that was imported by a recipe with adapters has none yet
    save_checkpoint(RANK_4)
    assert find_problems(RANK_8) == []


def test_a_checkpoint_of_adapters_only_has_a_rank() -> None:
    save_checkpoint(RANK_4, has_base=False, rank=4)
    [problem] = find_problems(RANK_8)
    assert "write rank: 4" in str(problem.hint)
    assert find_problems(RANK_4) == []


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model.n_layers=2"], "model.n_layers 6 (here 2)"),
        (["model.n_layers=7"], "model.n_layers 6 (here 7)"),
        (["model.vocab_size=4096"], "model.vocab_size 2048 (here 4096)"),
        (["model={name: qwen3, flavor: debugmodel}"], "model.name llama3 (here qwen3)"),
    ],
)
def test_a_model_of_another_size_is_told(overrides: list[str], told: str) -> None:
    save_checkpoint()
    [problem] = find_problems(*overrides)
    assert problem.rule == "initial-weights-fit"
    assert problem.message == f"the model in 'runs/first' has other weights than this run: {told}"
    assert "write the model section of runs/first/checkpoint/step-2/" in str(problem.hint)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model.rope.theta=1000"],
        ["model.tie_word_embeddings=true"],  # the head is not read
        ["checkpoint.allow_extra=true", "model.n_layers=2"],
    ],
)
def test_a_model_of_the_same_shapes_is_taken(overrides: list[str]) -> None:
    save_checkpoint()
    assert find_problems(*overrides) == []


def test_a_damaged_manifest_is_left_to_the_run() -> None:
    save_checkpoint()
    Path("runs/first/checkpoint/step-2/manifest.json").write_text("{}")
    assert find_problems("model.n_layers=2") == []


SIZES = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 2048}
OF_FOLDER = (
    *("model.hf_assets_path=small", "checkpoint.initial_load_in_hf=true"),
    "checkpoint.initial_load_model_only=true",
)


@pytest.mark.parametrize(
    ("changed", "hidden_dim", "told"),
    [
        ({}, 192, None),
        ({"dim": 32}, 192, "model.dim 64 (here 32)"),
        ({"vocab_size": 4096}, 192, "model.vocab_size 2048 (here 4096)"),
        ({}, 128, "layers.0.feed_forward.w1.weight is [192, 64] there, [128, 64] here"),
    ],
)
def test_the_sizes_of_a_folder_of_transformers_are_compared(
    changed: dict[str, int], hidden_dim: int, told: str | None
) -> None:
    Path("small").mkdir()
    config = Path(__file__).parents[2] / "problems/initial-folder-fits/models/small/config.json"
    Path("small/config.json").write_bytes(config.read_bytes())
    save_file({}, "small/model.safetensors")
    sizes = [f"model.{name}={value}" for name, value in {**SIZES, **changed}.items()]
    feed_forward = f"model.feed_forward={{hidden_dim: {hidden_dim}, ffn_dim_multiplier: null}}"
    found = find_problems(*sizes, feed_forward, *OF_FOLDER, start="small")
    assert [problem.rule for problem in found] == ["initial-folder-fits"] * (told is not None)
    assert not found or found[0].message.endswith(f"has other sizes than this run: {told}")


def test_auto_takes_the_sizes_of_the_folder() -> None:
    Path("small").mkdir()
    config = Path(__file__).parents[2] / "problems/initial-folder-fits/models/small/config.json"
    Path("small/config.json").write_bytes(config.read_bytes())
    save_file({}, "small/model.safetensors")
    assert find_problems("model.flavor=auto", *OF_FOLDER, start="small") == []


def test_a_folder_of_another_family_is_told_for_every_flavor() -> None:
    Path("small").mkdir()
    config = Path(__file__).parents[2] / "problems/initial-folder-fits/models/small/config.json"
    Path("small/config.json").write_bytes(config.read_bytes())
    save_file({}, "small/model.safetensors")
    named = {"hf_assets_path": "small", "flavor": "debugmodel"}
    [problem] = find_problems(f"model={named | {'name': 'qwen3'}}", *OF_FOLDER[1:], start="small")
    assert problem.rule == "initial-folder-fits"
    assert problem.message == "'small' holds a model of type llama, not of qwen3"
    assert problem.hint == "write model.name: llama3 with model.flavor: auto"
    told = named | {"name": "llama3", "flavor": "auto"}
    assert find_problems(f"model={told}", *OF_FOLDER[1:], start="small") == []
