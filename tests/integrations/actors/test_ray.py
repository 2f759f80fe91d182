"""The same loops through actors of Ray; make test-ray installs it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.actors import loops
from tests.integrations.actors.buffers import Episode, OddBuffer
from tests.rl.parts import TEXT

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="make test-ray installs it")
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with pytest.MonkeyPatch.context() as patch:
        # what ray.init would join
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # the path of a Unix socket has at most 107 bytes
        with tempfile.TemporaryDirectory(dir="/tmp") as short:
            ray.init(
                address="local",
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                _temp_dir=short,
                runtime_env={"env_vars": variables},
            )
            yield ray
            ray.shutdown()


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    return str(tmp_path / "recipe.yaml")


def test_a_loop_of_torchtitans_names_has_the_losses_of_the_plain_trainer(
    ray: Any, recipe: str, tmp_path: Path
) -> None:
    from titanrun.integrations.actors.ray import spawn

    plain = loops.open_trainer(recipe, str(tmp_path / "plain"))
    expected = loops.run_plain(plain)
    with spawn(loops.open_trainer, recipe, folder=str(tmp_path / "actor")) as actor:
        assert loops.run_handles(actor) == expected
        # Ray's own call, with Ray's own reference
        assert ray.get(actor.get_policy_version.remote(), timeout=240) == 2
        found = ray.get(actor.forward_backward.remote(loops.DATA[:1], 9), timeout=240)
    assert found == plain.forward_backward(loops.DATA[:1], 9)
    plain.close()


def test_two_ranks_have_the_losses_of_one(ray: Any, recipe: str, tmp_path: Path) -> None:
    from titanrun.integrations.actors.ray import spawn

    plain = loops.open_trainer(recipe, str(tmp_path / "plain"))
    alone = plain.forward_backward([loops.DATA], loops.NUM_TOKENS)
    plain.close()
    options = {"num_cpus": 1}
    with spawn(
        loops.open_trainer, recipe, str(tmp_path / "ranks"), 2, ranks=2, actor_options=options
    ) as actor:
        found = actor.forward_backward.call(loops.DATA, loops.NUM_TOKENS).get(timeout=240)
        assert len(found) == 2 and found.get(0) == found.get(1)
        assert found.get(0)["loss/mean"] == pytest.approx(alone["loss/mean"], rel=1e-5)
        pids = {each["pid"] for each in ray.get(actor.health.remote(), timeout=240)}
        assert len(pids) == 2 and os.getpid() not in pids


def test_the_version_is_told_beside_a_long_call(recipe: str, tmp_path: Path) -> None:
    from titanrun.integrations.actors.ray import spawn

    with spawn(loops.open_waiting_trainer, recipe, str(tmp_path)) as actor:
        loops.check_that_versions_are_told_beside_a_long_call(actor, tmp_path)


def test_an_error_reaches_the_caller_with_its_traceback_and_the_actor_lives() -> None:
    from titanrun.integrations.actors.ray import spawn

    with spawn(OddBuffer, 2, seed=0) as buffer:
        buffer.add.broadcast(Episode(5))
        with pytest.raises(ZeroDivisionError) as found:
            buffer.evict.call_one(0).get(timeout=240)
        assert "self.add(1 // curr_policy_version)" in str(found.value)
        state: Any = buffer.state_dict.route().get(timeout=240)
        assert [episode.policy_version for episode, _ in state["buffer"]] == [5]


def test_problems_of_the_constructor_reach_the_caller() -> None:
    from titanrun.config.problems import ProblemsFound
    from titanrun.integrations.actors.ray import spawn

    with pytest.raises(ProblemsFound, match="batch_size is 0, but must be at least 1"):
        spawn(OddBuffer, 0)
