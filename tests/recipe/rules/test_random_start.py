"""Fine-tuning of a named model does not train random weights unnoticed."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

RULE = "fine-tuning-starts-from-weights"
CHATS, PAIRS = "tiny_chat", "tiny_pairs"
MIXED = "{name: mixture, sources: [{dataset: tiny}, {dataset: tiny_chat}]}"
LORA, DPO, REWARD = "converters: [lora]\n", "loss: dpo\n", "loss: reward\n"
SFT, IN_HF = "kind: sft\n", "checkpoint: {initial_load_in_hf: true}\n"
FROM_RUN = "checkpoint: {initial_load_path: runs/sft}\n"
WANTED = "checkpoint: {initial_load_path: null}\n"
NOTHING = "checkpoint: {initial_load_in_hf: false}\n"


def write_recipe(folder: Path, dataset: str, text: str, *, head: str = "lm") -> str:
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "version: 1\n"
        f"model: {{name: llama3, flavor: debugmodel, hf_assets_path: {folder / 'model'}, "
        f"head: {head}, attention: {{mask: block_causal}}}}\n"
        f"tokenizer: tiny\ntraining: {{dataset: {dataset}, seq_len: 128}}\n"
        f"optimizer: {{lr: 1.0e-5}}\n{text}"
    )
    return str(recipe)


def find_severity(recipe: str) -> str | None:
    try:
        problems = resolve_recipe(recipe, environment={}).warnings
    except ProblemsFound as found:
        problems = found.problems
    return next((problem.severity for problem in problems if problem.rule == RULE), None)


@pytest.mark.parametrize(
    ("dataset", "text", "severity"),
    [
        (CHATS, LORA, "error"),
        (PAIRS, LORA + DPO, "error"),
        (PAIRS, DPO, "warning"),
        # written: the weights of the folder are not loaded
        (CHATS, SFT + LORA + NOTHING, "error"),
        # something is loaded
        (CHATS, SFT + LORA, None),
        (CHATS, LORA + IN_HF, None),
        (CHATS, LORA + FROM_RUN, None),
        (PAIRS, DPO + IN_HF, None),
        # random weights are what the recipe asks for
        (CHATS, LORA + WANTED, None),
        (CHATS, WANTED, None),
        (CHATS, "", "warning"),
        (CHATS, SFT, None),
        # pretraining with the tokenizer of a model
        ("tiny", "", None),
        (MIXED, "", None),
    ],
)
def test_a_folder_with_weights_is_loaded_or_a_problem(
    dataset: str, text: str, severity: str | None, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    assert find_severity(write_recipe(tmp_path, dataset, text)) == severity


def test_a_reward_model_on_random_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    assert find_severity(write_recipe(tmp_path, PAIRS, REWARD, head="scalar")) == "warning"


@pytest.mark.parametrize(("kind", "severity"), [("", "warning"), (SFT, None)])
def test_a_model_that_is_not_here_yet_is_loaded_by_kind_sft(
    kind: str, severity: str | None, tmp_path: Path
) -> None:
    assert find_severity(write_recipe(tmp_path, CHATS, kind + LORA)) == severity


def test_a_folder_with_a_tokenizer_alone_has_nothing_to_load(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert find_severity(write_recipe(tmp_path, CHATS, LORA)) is None
    assert find_severity(write_recipe(tmp_path, CHATS, "")) is None


def test_a_stage_starts_from_the_weights_of_the_stage_before(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    stages = "stages: [{id: first}, {id: second, converters: [lora]}]\n"
    recipe = write_recipe(tmp_path, CHATS, stages)
    assert find_severity(f"{recipe}#second") is None
    recipe = write_recipe(tmp_path, CHATS, stages.replace("first", "first, converters: [lora]"))
    assert find_severity(f"{recipe}#first") == "error"


@pytest.mark.parametrize(
    ("dataset", "loss", "changes"),
    [
        (CHATS, DPO, ["training.dataset=tiny_pairs"]),
        (PAIRS, DPO, []),
        ("tiny", "", []),
    ],
)
def test_the_hint_of_another_kind_keeps_the_weights(
    dataset: str, loss: str, changes: list[str], tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    recipe = write_recipe(tmp_path, dataset, SFT + loss)
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(recipe, environment={})
    (problem,) = found.value.problems
    assert problem.hint is not None
    assert "kind: pretrain and checkpoint.initial_load_in_hf: true" in problem.hint
    followed = [*changes, "kind=pretrain", "checkpoint.initial_load_in_hf=true"]
    assert not resolve_recipe(recipe, followed, environment={}).warnings
