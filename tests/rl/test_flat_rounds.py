"""Rounds of prompts without reward variance: few warnings, then the end of the run."""

import logging

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.rl.flat_rounds import FlatRounds


def test_only_a_longer_row_of_rounds_is_warned_of_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rounds = FlatRounds()
    # four steps, each after three or four rounds without variance, and then a longer row
    for row in (3, 4, 3, 4, 7):
        for count in range(1, row + 1):
            rounds.check(count, limit=8)
    told = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert told == [
        f"no reward variance for {count} consecutive rounds of prompts, which make no step"
        for count in (3, 6)
    ]
    with pytest.raises(ProblemsFound, match="for 8 consecutive rounds of prompts: all completions"):
        rounds.check(8, limit=8)
