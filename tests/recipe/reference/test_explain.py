"""Explanations of the words that titanrun prints."""

import pytest

from titanrun.recipe.reference.explain import explain_word


@pytest.mark.parametrize(
    "word", ["another-run", "conflict/run-in-use", "non-finite", "memory", "disk"]
)
def test_what_ends_a_run_is_explained(word: str) -> None:
    told = explain_word(word)
    assert told.startswith(f"error[{word}]\n")
    assert "cause" in told and "fix" in told
