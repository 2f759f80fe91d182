"""The same loops through actors of Monarch; make test-monarch installs it."""

import os
from pathlib import Path

import pytest

from tests.integrations.actors import loops
from tests.integrations.actors.buffers import Episode, OddBuffer
from tests.rl.parts import TEXT

pytestmark = [pytest.mark.monarch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def has_monarch() -> None:
    pytest.importorskip("monarch", reason="make test-monarch installs it")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    return str(tmp_path / "recipe.yaml")


@pytest.mark.timeout(900)
def test_a_loop_of_torchtitans_names_has_the_losses_of_the_plain_trainer(
    recipe: str, tmp_path: Path
) -> None:
    from titanrun.integrations.actors.monarch import spawn

    plain = loops.open_trainer(recipe, str(tmp_path / "plain"))
    expected = loops.run_plain(plain)
    plain.close()
    with spawn(loops.open_trainer, recipe, folder=str(tmp_path / "actor")) as actor:
        assert loops.run_handles(actor) == expected
        actor.close.call_one().get(timeout=240)
    saved = (tmp_path / "actor" / "saved").glob("step-*")
    assert sorted(path.name for path in saved) == ["step-1", "step-2"]


@pytest.mark.timeout(900)
def test_two_ranks_have_the_losses_of_one(recipe: str, tmp_path: Path) -> None:
    from titanrun.integrations.actors.monarch import spawn

    plain = loops.open_trainer(recipe, str(tmp_path / "plain"))
    alone = plain.forward_backward([loops.DATA], loops.NUM_TOKENS)
    plain.close()
    with spawn(loops.open_trainer, recipe, str(tmp_path / "ranks"), 2, ranks=2) as actor:
        found = actor.forward_backward.call(loops.DATA, loops.NUM_TOKENS).get(timeout=240)
        assert len(list(found.items())) == 2 and found.get(0) == found.item(gpus=1)
        assert found.get(0)["loss/mean"] == pytest.approx(alone["loss/mean"], rel=1e-5)
        pids = {each["pid"] for _, each in actor.health.call().get(timeout=240).items()}
        assert len(pids) == 2 and os.getpid() not in pids
        actor.close.call().get(timeout=240)


@pytest.mark.timeout(900)
def test_the_version_is_told_beside_a_long_call(recipe: str, tmp_path: Path) -> None:
    from titanrun.integrations.actors.monarch import spawn

    with spawn(loops.open_waiting_trainer, recipe, str(tmp_path)) as actor:
        loops.check_that_versions_are_told_beside_a_long_call(actor, tmp_path)


@pytest.mark.timeout(900)
def test_an_error_reaches_the_caller_with_its_traceback_and_the_actor_lives() -> None:
    from monarch.actor import ActorError

    from titanrun.integrations.actors.monarch import spawn

    with spawn(OddBuffer, 2, seed=0) as buffer:
        buffer.add.broadcast(Episode(5))
        with pytest.raises(ActorError, match=r"self\.add\(1 // curr_policy_version\)"):
            buffer.evict.call_one(0).get(timeout=240)
        state = buffer.state_dict.call_one().get(timeout=240)
        assert [episode.policy_version for episode, _ in state["buffer"]] == [5]


@pytest.mark.timeout(900)
def test_problems_of_the_constructor_reach_the_caller() -> None:
    from monarch.actor import ActorError

    from titanrun.integrations.actors.monarch import spawn

    with pytest.raises(ActorError, match="batch_size is 0, but must be at least 1"):
        spawn(OddBuffer, 0)
