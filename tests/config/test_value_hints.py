"""Messages about values that name the value to write."""

from pathlib import Path

import pytest

from titanrun.config.problems import Problem
from titanrun.recipe.reference.explain import explain_word
from titanrun.recipe.resolving.validation_levels import validate_file

RECIPE = """\
version: 1
kind: rl
model: {name: llama3, flavor: debugmodel}
tokenizer: characters
training: {dataset: string_task, steps: 4}
rl: {rewards: [exact_match]}
"""


def find_problem(folder: Path, *overrides: str) -> Problem:
    file = folder / "mine.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    told = validate_file(str(file), list(overrides), level="rules", environment={}).problems
    (found,) = [problem for problem in told if problem.code in ("unknown-name", "wrong-type")]
    return found


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python reward.py", "[python, reward.py]"),
        ("python 'my rewards.py' --scale 2", '[python, "my rewards.py", "--scale", "2"]'),
        ("score", "[score]"),
    ],
)
def test_a_command_in_one_text_is_split_into_words(
    command: str, words: str, tmp_path: Path
) -> None:
    found = find_problem(tmp_path, f"rl.rewards=[{{name: command, command: {command}}}]")
    assert found.hint == f"write {words}"


ENTRIES = [
    ("converters={name: lora, rank: 16}", "[{name: lora, rank: 16}]"),
    ("converters={lora: {r: 8, lora_alpha: 4, bias: none}}", "[{name: lora, rank: 8, alpha: 4}]"),
    ("converters={name: qlora, target_modules: [q_proj]}", "[{name: qlora, target_modules: [wq]}]"),
    ("converters={lora: true}", "[{name: lora}]"),
    ("converters={float8_linear: true, fp32_lm_head: {}}", "[float8_linear, {name: fp32_lm_head}]"),
    ("converters={emulate: true}", "[{name: float8_linear, emulate: true}]"),
    ("converters={}", "[]"),
    ("metrics.trackers={wandb: {project: mine}}", "[{name: wandb, project: mine}]"),
    (
        "validation.further={id: code, dataset: {name: text, path: x}}",
        "[{id: code, dataset: {name: text, path: x}}]",
    ),
]


@pytest.mark.parametrize(("override", "written"), ENTRIES)
def test_a_mapping_in_the_place_of_a_list_is_told_its_entry(
    override: str, written: str, tmp_path: Path
) -> None:
    found = find_problem(tmp_path, override)
    assert (found.message, found.hint) == ("expected a list, got a mapping", f"write {written}")
    again = validate_file(
        str(tmp_path / "mine.yaml"),
        [f"{override.partition('=')[0]}={written}"],
        level="schema",
        environment={},
    )
    assert [problem.message for problem in again.problems] == []


def test_a_mapping_with_a_secret_is_not_repeated(tmp_path: Path) -> None:
    found = find_problem(tmp_path, "metrics.trackers={wandb: {api_key: abcdefgh}}")
    assert found.hint == "write a list: put brackets around the mapping"


def test_a_command_with_an_open_quotation_mark_is_not_split(tmp_path: Path) -> None:
    found = find_problem(tmp_path, "rl.rewards=[{name: command, command: it's}]")
    assert found.hint == "write [it's]"


@pytest.mark.parametrize(
    ("override", "written", "component"),
    [
        (
            "rl.rewards=[reward.py]",
            "{name: command, command: [python, reward.py]}",
            "reward:command",
        ),
        (
            "rl.rewards=[{name: score/it.sh}]",
            "{name: command, command: [sh, score/it.sh]}",
            "reward:command",
        ),
        (
            "rl.environment=world.py",
            "{name: program, command: [python, world.py]}",
            "environment:program",
        ),
    ],
)
def test_a_script_in_the_place_of_a_component_is_run_by_a_command(
    override: str, written: str, component: str, tmp_path: Path
) -> None:
    about = f"titanrun explain {component} shows what it reads and writes"
    assert find_problem(tmp_path, override).hint == f"write {written}; {about}"
    assert '"reward": 0' in explain_word(component)


def test_a_value_in_the_place_of_a_section_is_told_its_keys(tmp_path: Path) -> None:
    found = find_problem(tmp_path, "loss={name: distillation, teacher_logprobs: taught}")
    place = "loss.teacher_logprobs.KEY=VALUE"
    assert found.hint == f"set its keys: {place}; keys: path and top_k"


def test_ppo_is_told_the_algorithm_without_a_critic(tmp_path: Path) -> None:
    found = find_problem(tmp_path, "rl.algorithm=ppo")
    assert (found.hint or "").startswith("PPO with a critic is not available: write grpo")
    assert found.suggestion is None


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("training.steps=true", "write a number, such as 10000; the default is auto"),
        ("lr_scheduler.warmup_ratio=on", "write a number, such as 0.03"),
        ("validation.holdout=true", "write a number, such as 0.05"),
        ("training.local_batch_size=false", "write a number; the default is 8"),
        ("checkpoint.interval=true", "write a number; the default is 500"),
        ("training.max_norm=false", "write null"),
    ],
)
def test_a_switch_in_the_place_of_a_number_is_told_a_number(
    override: str, hint: str, tmp_path: Path
) -> None:
    assert find_problem(tmp_path, override).hint == hint
