"""Counters of progress."""

from titanrun.training.train_state import TrainState


def test_a_run_begins_at_nothing_and_goes_on_from_what_was_saved() -> None:
    assert TrainState().to_dict() == {"step": 0, "tokens_seen": 0}
    state = TrainState()
    state.load_dict(TrainState(step=3, tokens_seen=500).to_dict())
    assert (state.step, state.tokens_seen) == (3, 500)
