"""Quorum ids that a restarted lighthouse does not repeat."""

import hashlib
from typing import Any

ID_BYTES = 7


class QuorumClient:
    """Client of torchft's manager whose quorum ids belong to one set of groups.

    A lighthouse that is started again counts its quorums from 1. A group that trains alone in
    quorum 1 would take the quorum 1 with a second group for its own, keep its process group, and
    sum nothing.

    Args:
        client: the client of the manager.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._members: tuple[int, tuple[str, ...]] | None = None
        self._quorum_id = 0

    def __getattr__(self, name: str) -> Any:
        """Return what the client itself answers."""
        return getattr(self._client, name)

    @property
    def members(self) -> tuple[str, ...]:
        """Ids of the groups in the last quorum, in their order."""
        return () if self._members is None else self._members[1]

    def _quorum(self, **arguments: Any) -> Any:
        """Ask for a quorum. Its id changes if that of the lighthouse or the groups in it change."""
        found = self._client._quorum(**arguments)
        members = (found.quorum_id, tuple(found.replica_ids))
        if members != self._members:
            # all groups of a quorum agree on these; the step separates the starts of a lighthouse
            digest = hashlib.sha256(repr((members, found.max_step)).encode()).digest()
            self._members = members
            self._quorum_id = int.from_bytes(digest[:ID_BYTES], "big")
        found.quorum_id = self._quorum_id
        return found
