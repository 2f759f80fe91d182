"""Words of other programs get the setting of their section; every setting named in help exists."""

import re
from pathlib import Path

import pytest

from titanrun.cli import explain
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.editing.section_words import SECTION_WORDS, format_section_word
from titanrun.recipe.migrate.program_hints import TRL_TARGETS
from titanrun.recipe.resolving.resolve import resolve_recipe

SETTING = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")
WORDS = [(path, word) for path, words in SECTION_WORDS.items() for word in words]
POLICY = """
version: 1
kind: rl
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: characters
training: {dataset: {name: string_task, operation: copy, length: 3}, seq_len: 128}
rl:
  rewards: [exact_match]
  algorithm: {name: grpo, ALGORITHM}
  rollout: {ROLLOUT}
  sampling: {SAMPLING}
"""


@pytest.mark.parametrize("setting", TRL_TARGETS.values())
def test_settings_for_keys_of_trl_exist(setting: str) -> None:
    assert explain.run(["-q", setting]) == 0


@pytest.mark.parametrize(("path", "word"), WORDS)
def test_settings_for_words_of_a_section_exist(path: tuple[str, ...], word: str) -> None:
    data: dict[str, object] = {word: 4}
    for key in reversed(path):
        data = {key: data}
    hint = format_section_word((*path, word), data)
    assert hint
    for setting in SETTING.findall(hint):
        assert explain.run(["-q", setting]) == 0


def write(tmp_path: Path, **parts: str) -> Path:
    text = POLICY
    for part, written in parts.items():
        text = text.replace(part, written)
    file = tmp_path / "recipe.yaml"
    file.write_text(re.sub(r",? ?(ALGORITHM|ROLLOUT|SAMPLING)", "", text), encoding="utf-8")
    return file


def test_words_of_policy_optimization_are_settings_of_their_section(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        ALGORITHM="beta: 0.04, epsilon: 0.2, epsilon_high: 0.28",
        ROLLOUT="num_generations: 4",
        SAMPLING="max_tokens: 8",
    )
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(str(file), environment={})
    assert [problem.hint for problem in found.value.problems] == [
        "write rl.algorithm.kl: {coef: 0.04}",
        "write rl.algorithm.clip_low: 0.2 and rl.algorithm.clip_high: 0.2",
        "write rl.algorithm.clip_high: 0.28",
        "write rl.rollout.samples_per_prompt: 4",
        "write rl.sampling.max_new_tokens: 8",
    ]
    file = write(
        tmp_path,
        ALGORITHM="kl: {coef: 0.04}, clip_low: 0.2, clip_high: 0.28",
        ROLLOUT="samples_per_prompt: 4",
        SAMPLING="max_new_tokens: 8",
    )
    file.write_text(file.read_text() + "  reference: frozen_copy\n", encoding="utf-8")
    assert resolve_recipe(str(file), environment={}).run.rl.algorithm.clip_high == 0.28
