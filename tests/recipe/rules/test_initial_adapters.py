"""Adapters of a first run are merged before a second one compares with them."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.read_recipe import compose_recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.resolving.stage_sequence import build_stage_sequence, find_stage_problems

HEAD = """version: 1
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: tiny
"""
CHATS = "training: {dataset: tiny_chat, seq_len: 64, steps: 2}\nlr_scheduler: {warmup_steps: 0}\n"
PAIRS = "training: {dataset: tiny_pairs, seq_len: 64, steps: 2}\nlr_scheduler: {warmup_steps: 0}\n"
LORA, QLORA = "converters: [lora]\n", "converters: [qlora]\n"
DPO, ORPO = "loss: dpo\n", "loss: orpo\n"
RULE = "adapters-are-merged-first"


def find_rules(folder: Path, first: str, second: str, *overrides: str) -> list[str | None]:
    (folder / "first.yaml").write_text(HEAD + first)
    run = resolve_recipe(str(folder / "first.yaml"), environment={})
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "resolved.yaml").write_text(run.text)
    text = f"{HEAD}{second}checkpoint: {{initial_load_path: {folder / 'run'}}}\n"
    (folder / "second.yaml").write_text(text)
    try:
        resolved = resolve_recipe(
            str(folder / "second.yaml"), overrides, environment={}, should_check_inputs=True
        )
    except ProblemsFound as found:
        return [problem.rule for problem in found.problems if problem.severity == "error"]
    assert not [problem for problem in resolved.warnings if problem.rule == RULE]
    return []


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        (CHATS + LORA, PAIRS + LORA + DPO, True),
        (CHATS + QLORA, PAIRS + LORA + DPO, True),
        # no place for them
        (CHATS + LORA, PAIRS + DPO, True),
        (CHATS + LORA, PAIRS + ORPO, True),
        # all weights were trained: they are the reference
        (CHATS, PAIRS + LORA + DPO, False),
        (CHATS, PAIRS + DPO, False),
        # nothing is compared with a reference
        (CHATS + LORA, PAIRS + LORA + ORPO, False),
        # the first one had the same reference
        (PAIRS + LORA + DPO, PAIRS + LORA + DPO, False),
    ],
)
def test_adapters_of_another_run_would_be_lost_in_a_reference(
    first: str, second: str, is_refused: bool, tmp_path: Path
) -> None:
    assert (RULE in find_rules(tmp_path, first, second)) == is_refused


def test_a_policy_without_its_adapters_is_no_reference_for_what_was_trained(tmp_path: Path) -> None:
    policy = (
        "kind: rl\ntraining: {dataset: lookup_task, seq_len: 64, steps: 2}\n"
        "lr_scheduler: {warmup_steps: 0}\nrl: {rewards: [exact_match], "
        "sampling: {max_new_tokens: 8}, reference: adapter_off, "
        "algorithm: {name: grpo, kl: {coef: 0.1}}}\n"
    )
    assert RULE in find_rules(tmp_path, CHATS + LORA, policy + LORA)
    with_state = "checkpoint.initial_load_model_only=false"
    assert RULE in find_rules(tmp_path, CHATS + LORA, policy + LORA, with_state)
    assert RULE not in find_rules(tmp_path, policy + LORA, policy + LORA, with_state)
    frozen = policy.replace("adapter_off", "frozen_copy")
    assert RULE not in find_rules(tmp_path, CHATS + LORA, frozen + LORA)


def test_a_stage_is_told_before_the_one_that_it_starts_from_is_trained(tmp_path: Path) -> None:
    file = tmp_path / "stages.yaml"
    file.write_text(
        HEAD + "lr_scheduler: {warmup_steps: 0}\ncheckpoint: {enable: true}\nstages:\n"
        "  - id: sft\n    training: {dataset: tiny_chat, seq_len: 64, steps: 2}\n"
        "    converters: [lora]\n"
        "  - id: dpo\n    training: {dataset: tiny_pairs, seq_len: 64, steps: 2}\n"
        "    loss: dpo\n    converters: [lora]\n"
    )
    runs = [resolve_recipe(f"{file}#{stage}", environment={}) for stage in ("sft", "dpo")]
    stages = build_stage_sequence(["sft", "dpo"], runs, compose_recipe(str(file)))
    (problem,) = find_stage_problems(stages)
    assert problem.rule == RULE
    assert "base model of stage 'sft'" in problem.message


@pytest.mark.parametrize("setting", ["", "checkpoint.initial_load_in_hf=true"])
def test_adapters_of_peft_alone_are_no_start(setting: str, tmp_path: Path) -> None:
    folder = tmp_path / "dora-peft"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (tmp_path / "mine.yaml").write_text(HEAD + CHATS + LORA)
    overrides = [f"checkpoint.initial_load_path={folder}", *([setting] if setting else [])]
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe(
            str(tmp_path / "mine.yaml"), overrides, environment={}, should_check_inputs=True
        )
    (problem,) = caught.value.problems
    assert (problem.rule, problem.path) == (
        "adapters-have-a-model",
        ("checkpoint", "initial_load_path"),
    )
    assert f"titanrun checkpoint import {folder} RECIPE out --from peft" in str(problem.hint)
    (folder / "config.json").write_text("{}")
    save_file({}, folder / "model.safetensors")
    if setting:  # a model with adapters beside it
        resolve_recipe(
            str(tmp_path / "mine.yaml"), overrides, environment={}, should_check_inputs=True
        )
