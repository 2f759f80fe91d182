"""Quorum ids of groups whose lighthouse was started again."""

from types import SimpleNamespace
from typing import Any

from titanrun.distributed.quorum_client import QuorumClient


class Client:
    """A manager's client that gives what a lighthouse would, in turn."""

    def __init__(self, *found: tuple[int, str, int]) -> None:
        self._found = iter(found)

    def _quorum(self, **_: Any) -> Any:
        quorum_id, replica_ids, max_step = next(self._found)
        return SimpleNamespace(
            quorum_id=quorum_id, replica_ids=list(replica_ids), max_step=max_step
        )

    def should_commit(self) -> str:
        return "asked"


def list_ids(*found: tuple[int, str, int]) -> list[int]:
    client = QuorumClient(Client(*found))
    return [client._quorum(step=0).quorum_id for _ in found]


def test_groups_that_stay_together_keep_their_quorum() -> None:
    assert len(set(list_ids((1, "ab", 0), (1, "ab", 1), (1, "ab", 2)))) == 1


def test_a_restarted_lighthouse_gives_a_new_quorum_with_another_group() -> None:
    alone, *together = list_ids((1, "b", 5), (1, "ab", 5), (1, "ab", 6))
    assert len(set(together)) == 1 and alone not in together
    # the group that joins has the same one
    assert list_ids((1, "ab", 5)) == together[:1]


def test_the_same_groups_after_two_restarts_do_not_meet_at_an_old_place() -> None:
    ids = list_ids((1, "ab", 0), (2, "ab", 3), (1, "ab", 6))
    assert len(set(ids)) == 3


def test_other_calls_are_those_of_the_client() -> None:
    assert QuorumClient(Client()).should_commit() == "asked"
