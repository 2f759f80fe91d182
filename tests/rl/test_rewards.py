"""What answers are worth, by text and by programs."""

import sys
from pathlib import Path

import pytest

from tests.rl.parts import reward, said
from titanrun.config.problems import ProblemsFound
from titanrun.rl.config import RlConfig
from titanrun.rl.rewards.reward_function import RewardFunction
from titanrun.worker.build.build_rollouts import build_reward_function

ECHO = (
    "import sys, json\nfor line in sys.stdin: print(json.dumps({'reward': "
    "len(json.loads(line)['answer'])}), flush=True)"
)
NO_WEIGHT = [
    {"name": "char_accuracy", "weight": 0.0},
    {"name": "command", "command": [sys.executable, "-c", ECHO], "weight": 0.0},
    {"name": "environment", "weight": 0.0},
    {"name": "length_penalty", "weight": 0.0},
    {"name": "numeric_close", "weight": 0.0},
    {"name": "regex", "weight": 0.0},
    {"name": "similarity", "weight": 0.0},
]


@pytest.mark.parametrize(
    ("name", "options", "answer", "expected", "worth"),
    [
        ("exact_match", {}, " cba ", "cba", 1.0),
        ("exact_match", {}, "cb", "cba", 0.0),
        ("char_accuracy", {}, "cbb", "cba", 2 / 3),
        ("char_accuracy", {}, "cbaa", "cba", 3 / 4),
        ("char_share", {"characters": "e"}, "eexe", "", 0.75),
        ("char_share", {"characters": "ex"}, "eexe", "", 1.0),
        ("char_share", {}, "", "", 0.0),
        ("similarity", {}, "abc", "abd", 2 * 2 / 6),
        ("regex", {"pattern": "<.*>"}, "<a\nb>", "", 1.0),
        ("regex", {"pattern": "<.*>"}, "<ab> ", "", 0.0),
        ("numeric_close", {}, "it is 12.5", "12.5", 1.0),
        ("numeric_close", {}, "12", "12.5", 0.0),
        ("numeric_close", {"tolerance": 0.5}, "12", "12.5", 1.0),
        ("numeric_close", {}, "none", "12.5", 0.0),
        ("length_penalty", {"free": 2, "span": 4}, "abcde", "", -1.0),
        ("length_penalty", {"free": 6, "span": 4}, "abcde", "", 0.0),
        ("length_penalty", {"free": 2, "span": 8}, "abcde", "", -0.5),
    ],
)
def test_a_reward_of_a_text(
    tmp_path: Path, name: str, options: dict, answer: str, expected: str, worth: float
) -> None:
    assert reward(tmp_path, name, **options).score([said(answer, expected=expected)]) == [
        pytest.approx(worth)
    ]


def test_the_environments_reward_is_what_it_gave(tmp_path: Path) -> None:
    assert reward(tmp_path, "environment").score([said("a", gained=0.75)]) == [0.75]


def test_a_pattern_that_is_none_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound, match="invalid regular expression"):
        reward(tmp_path, "regex", pattern="(")


def test_a_program_is_asked_line_by_line(tmp_path: Path) -> None:
    program = reward(tmp_path, "command", command=[sys.executable, "-c", ECHO])
    assert program.score([said("abc"), said("a")]) == [3.0, 1.0]
    program.close()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("sys.stdin.readline(); sys.exit(3)", "exit code 3"),
        ("sys.stdin.readline(); time.sleep(60)", "did not respond within 0.5 seconds"),
    ],
    ids=["dies", "hangs"],
)
def test_a_program_that_fails_is_started_again(
    tmp_path: Path, body: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    command = [sys.executable, "-c", f"import sys, time; print('why', file=sys.stderr); {body}"]
    program = reward(tmp_path, "command", command=command, timeout_seconds=0.5, max_restarts=1)
    assert program.score([said("abc"), said("a")]) == [None, None]
    assert told in caplog.text
    with pytest.raises(ProblemsFound, match="failed too often"):
        program.score([said("abc")])
    if told == "exit code 3":
        assert "why" in (tmp_path / "reward.log").read_text()


@pytest.mark.parametrize(
    "line", ["rubbish", "[1]", '{"reward": "much"}', '{"reward": NaN}', '{"reward": true}', "{}"]
)
def test_rubbish_is_no_reward_and_no_reason_to_stop(tmp_path: Path, line: str) -> None:
    rubbish = f"import sys\nfor _ in sys.stdin: print({line!r}, flush=True)"
    rubric = RewardFunction(
        {
            "command": (
                reward(
                    tmp_path, "command", command=[sys.executable, "-c", rubbish], max_restarts=0
                ),
                1.0,
            )
        }
    )
    rollouts = [said("abc"), said("abc")]
    rubric.score(rollouts)
    rubric.close()
    assert [(rollout.reward, rollout.status) for rollout in rollouts] == [
        (None, "error_reward")
    ] * 2


def test_a_program_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound, match="cannot be started"):
        reward(tmp_path, "command", command=["/nowhere/at/all"]).score([said("a")])


def test_a_rubric_is_the_weighted_mean(tmp_path: Path) -> None:
    config = {
        "rewards": [
            {"name": "exact_match", "weight": 3.0},
            {"name": "char_share", "characters": "e", "weight": 1.0},
            *NO_WEIGHT,
        ],
    }
    right, wrong = said("ee", expected="ee"), said("eb", expected="ee")
    rubric = build_reward_function(RlConfig.model_validate(config), tmp_path)
    rubric.score([right, wrong])
    rubric.close()
    assert (right.reward, wrong.reward) == (1.0, pytest.approx(0.125))
    assert wrong.parts["exact_match"] == 0.0 and wrong.parts["char_share"] == 0.5


def test_answers_that_were_cut_off_and_worlds_that_failed_have_rewards_of_their_own(
    tmp_path: Path,
) -> None:
    cut, failed, usual = said("e"), said("e"), said("e")
    cut.status, failed.status, usual.status = "truncated_length", "error_environment", "completed"
    parts = {"one": (reward(tmp_path, "char_share", characters="e"), 1.0)}
    RewardFunction(parts, truncation_reward=-2.0, error_reward=-3.0).score([cut, failed, usual])
    assert [rollout.reward for rollout in (cut, failed, usual)] == [-2.0, -3.0, 1.0]
    RewardFunction(parts).score([cut, failed])
    assert [rollout.reward for rollout in (cut, failed)] == [1.0, None]
