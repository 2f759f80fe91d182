"""Conversations, what ends them, and the sequences that are learned from them."""

import sys
from pathlib import Path

import pytest

from tests.rl.parts import Scripted, rollouter, tokenizer
from titanrun.rl.rewards.reward_function import RewardFunction
from titanrun.rl.rollout_packing import pack_rollouts
from titanrun.rl.rollout_runner import RolloutRunner
from titanrun.rl.rollout_types import (
    Completion,
    Prompt,
    Rollout,
    RolloutGroup,
    Turn,
    build_rollout_training_samples,
    rollout_group_from_dict,
)

COUNTS = """
import json, sys
for line in sys.stdin:
    told = json.loads(line)
    turn = len(told["answers"])
    print(json.dumps({"text": str(turn), "reward": 0.5, "done": turn == 2}), flush=True)
"""


def played(talk: RolloutRunner, question: Prompt, *, turns: int = 10) -> RolloutGroup:
    group = talk.start_group(question, group_number=0, policy_version=0)
    for _ in range(turns):
        if not group.is_done:
            talk.generate_turn([group])
    talk.close()
    return group


def test_a_single_turn(tmp_path: Path) -> None:
    group = played(rollouter(tmp_path, lambda prompt: "cba"), Prompt("abc>", "cba"))
    assert [rollout.status for rollout in group.rollouts] == ["completed"] * 2
    assert group.rollouts[0].last_completion_text == "cba"


def halving(prompt: str) -> str:
    """Guesses by what it has heard: `?` then numbers with + or - behind them."""
    low, high, heard = 0, 9, prompt.removeprefix("?")
    for guess, sign in zip(heard[::2], heard[1::2], strict=True):
        low, high = (int(guess) + 1, high) if sign == "+" else (low, int(guess) - 1)
    return str((low + high) // 2)


def test_guessing_takes_several_turns(tmp_path: Path) -> None:
    group = played(rollouter(tmp_path, halving, "guess_number"), Prompt("?", "7"))
    first = group.rollouts[0]
    assert [turn.text for turn in first.turns] == ["4", "7"] and first.heard == ["+"]
    assert (first.status, first.reward) == ("completed", 1.0)


@pytest.mark.parametrize("name", ["guess_number", "tool_lookup", "calculator"])
def test_a_conversation_is_cut_off_after_its_turns(tmp_path: Path, name: str) -> None:
    answers = {"guess_number": "1", "tool_lookup": "?a", "calculator": "1+1="}
    group = played(
        rollouter(tmp_path, lambda prompt: answers[name], name, max_turns=2), Prompt("?", "7")
    )
    assert {(rollout.status, len(rollout.turns)) for rollout in group.rollouts} == {
        ("truncated_turns", 2)
    }


def test_a_tool_looks_words_up(tmp_path: Path) -> None:
    talk = rollouter(tmp_path, lambda prompt: "42" if "42" in prompt else "?b", "tool_lookup")
    first = played(talk, Prompt("b:", "a=17,b=42;42")).rollouts[0]
    assert first.heard == ["42>"] and first.reward == 1.0


def test_a_calculator_computes(tmp_path: Path) -> None:
    answers = iter(["2*(3+4)=", "1/0=", "boo=", "14"])
    first = played(
        rollouter(
            tmp_path,
            lambda prompt: next(answers),
            "calculator",
            settings={"samples_per_prompt": 1, "max_new_tokens": 12},
        ),
        Prompt("?", "14"),
    )
    assert first.rollouts[0].heard == ["14>", "!>", "!>"] and first.rollouts[0].reward == 1.0


def test_a_program_is_a_world(tmp_path: Path) -> None:
    group = played(
        rollouter(tmp_path, lambda prompt: "a", "program", command=[sys.executable, "-c", COUNTS]),
        Prompt("?", "7"),
    )
    assert [(rollout.heard, rollout.reward, rollout.status) for rollout in group.rollouts] == [
        (["1"], 1.0, "completed")
    ] * 2


@pytest.mark.parametrize("limit", ["max_turns", "step_timeout_seconds", "max_restarts"])
def test_a_program_keeps_within_its_limits(
    tmp_path: Path, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    talks = (
        "import json, sys\nfor line in sys.stdin: print(json.dumps({'text': 'x', 'done': "
        "False}), flush=True)"
    )
    sleeps = "import sys, time\nsys.stdin.readline()\ntime.sleep(60)"
    options = (
        {"max_turns": 2}
        if limit == "max_turns"
        else {"step_timeout_seconds": 0.3, "max_restarts": 1}
    )
    program = talks if limit == "max_turns" else sleeps
    talk = rollouter(
        tmp_path, lambda prompt: "a", "program", command=[sys.executable, "-c", program], **options
    )
    group = played(talk, Prompt("?", "7"))
    if limit == "max_turns":
        assert {(rollout.status, len(rollout.turns)) for rollout in group.rollouts} == {
            ("truncated_turns", 2)
        }
        return
    assert {rollout.status for rollout in group.rollouts} == {"error_environment"}
    assert "did not respond within 0.3 seconds" in caplog.text
    if limit == "max_restarts":
        assert talk.environment.programs.programs[0].starts_left == 0


def test_what_ends_a_conversation(tmp_path: Path) -> None:
    long = played(
        rollouter(tmp_path, lambda prompt: "abcdefghi", settings={"max_new_tokens": 4}),
        Prompt("?", "7"),
    )
    assert {rollout.status for rollout in long.rollouts} == {"truncated_length"} and long.rollouts[
        0
    ].last_completion_text == "abcd"
    full = played(
        rollouter(tmp_path, lambda prompt: "ab", settings={"max_tokens": 3}), Prompt("abc", "7")
    )
    assert {(rollout.status, len(rollout.turns)) for rollout in full.rollouts} == {
        ("truncated_prompt", 0)
    }
    # an environment of several turns never sees half an answer
    half = played(
        rollouter(
            tmp_path, lambda prompt: "1234567", "guess_number", settings={"max_new_tokens": 4}
        ),
        Prompt("?", "7"),
    )
    assert {(rollout.status, len(rollout.turns)) for rollout in half.rollouts} == {
        ("truncated_length", 1)
    }


def test_siblings_draw_differently_and_the_same_again(tmp_path: Path) -> None:
    seeds = []
    for _ in range(2):
        talk = rollouter(tmp_path, lambda prompt: "a", settings={"samples_per_prompt": 3})
        played(talk, Prompt("?", ""))
        assert isinstance(talk.generator, Scripted)
        seeds.append([request.seed for request in talk.generator.pending_batches])
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 3


def turn(prompt: list[int], *tokens: int) -> Turn:
    return Turn(prompt, Completion(list(tokens), [-0.5] * len(tokens), "stop", 0), "")


def test_turns_that_continue_each_other_are_one_sequence_and_an_edited_history_is_two() -> None:
    rollout = Rollout(
        0, 0, Prompt("", ""), advantage=2.0, turns=[turn([1, 2], 3, 4), turn([1, 2, 3, 4, 5], 6)]
    )
    one = build_rollout_training_samples(rollout)
    assert (
        len(one) == 1
        and one[0].tokens == [1, 2, 3, 4, 5, 6]
        and one[0].mask == [False, False, True, True, False, True]
    )
    rollout.turns[1] = turn([1, 2, 9], 6)
    two = build_rollout_training_samples(rollout)
    assert [sample.tokens for sample in two] == [[1, 2, 3, 4], [1, 2, 9, 6]]
    assert sum(sum(sample.mask) for sample in two) == sum(sum(sample.mask) for sample in one)


def test_packing_keeps_every_token_and_filling_is_a_document_of_its_own() -> None:
    rollouts = [
        Rollout(0, index, Prompt("", ""), turns=[turn([1, 2], *range(3, 4 + index))])
        for index in range(5)
    ]
    given = [sample for rollout in rollouts for sample in build_rollout_training_samples(rollout)]
    packed = pack_rollouts(
        given,
        seq_len=8,
        batch_multiple=2,
        should_pack=True,
        length_norm="token_mean",
        max_completion_tokens=4,
    )
    assert len(packed.batch.tokens) % 2 == 0 and packed.num_dropped == 0
    assert (
        packed.num_tokens
        == int(packed.batch.num_valid_tokens())
        == sum(sum(sample.mask) for sample in given)
    )
    for row in range(len(packed.batch.tokens)):
        filled = packed.batch.extra["sequences"][row] < 0
        if filled.any():
            assert packed.batch.positions is not None
            assert packed.batch.positions[row][filled].tolist() == list(range(int(filled.sum())))
    too_long = pack_rollouts(
        given,
        seq_len=4,
        batch_multiple=1,
        should_pack=True,
        length_norm="token_mean",
        max_completion_tokens=4,
    )
    assert too_long.num_dropped == 2


def test_a_group_in_a_checkpoint_is_the_same_group() -> None:
    rollout = Rollout(
        3,
        0,
        Prompt("a", "b", 7),
        turns=[Turn([1], Completion([2], [float("-inf")], "stop", 4), "x")],
        heard=["y"],
    )
    group = RolloutGroup(3, 2, [rollout])
    assert rollout_group_from_dict(group.to_dict()) == group


def test_a_rubric_is_closed_with_the_conversations(tmp_path: Path) -> None:
    talk = rollouter(tmp_path, lambda prompt: "a", rubric=RewardFunction({}))
    talk.close()
    assert tokenizer().decode(tokenizer().encode("abc 12", add_bos=True, add_eos=True)) == "abc 12"
