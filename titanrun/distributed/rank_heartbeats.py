"""Signs of life of all ranks, which tell a rank that waits from one that does not answer.

A process that was stopped, or whose machine was, cannot report that it hangs: the ranks that wait
for it do, and have to name it.
"""

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from titanrun.distributed.rank_env import RankInfo, get_environment_variables

BEAT_SECONDS = 1.0
# the time in which a rank must give a sign of life: a busy process may be late
SILENCE_SECONDS = 6.0
# the store is in the process of a rank, which may be the one that does not answer
STORE_TIMEOUT_SECONDS = 5.0
# value of a rank that ended by itself
ENDED = "ended"


class RankHeartbeats:
    """Context manager in which a thread gives signs of life of this rank.

    Args:
        store: Store of all ranks, of which a clone is used: a call of another thread may block it.
        rank_info: This rank's position.
        beat_seconds: Time between two signs.
        silence_seconds: Time after which a rank without a sign does not answer.
    """

    def __init__(
        self,
        store: dist.Store,
        rank_info: RankInfo,
        *,
        beat_seconds: float = BEAT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        # the stubs of some torch versions lack clone()
        self._shared_store: Any = store
        self._rank_info = rank_info
        self._beat_seconds = beat_seconds
        self._silence_seconds = silence_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeats", daemon=True)

    def __enter__(self) -> Self:
        # connected once: a new connection to a store that is gone is tried again for an hour
        self._store = self._shared_store.clone()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop giving signs, because this rank ends, and leave the last one."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(STORE_TIMEOUT_SECONDS)

    def find_silent_ranks(self) -> list[int]:
        """Return the other ranks that give no sign of life. This takes some seconds.

        A rank that ended by itself is not among them. Nothing is known without a store, and before
        the ranks started to give signs.
        """
        if self._thread.ident is None:
            return []
        found: list[list[int]] = []
        # a call to a store that does not answer never returns
        asking = threading.Thread(target=lambda: found.append(self._compare_signs()), daemon=True)
        asking.start()
        asking.join(self._silence_seconds + STORE_TIMEOUT_SECONDS)
        if not asking.is_alive():
            return found[0] if found else []
        host = find_store_rank()
        return [] if host in (None, self._rank_info.rank) else [0]

    def _compare_signs(self) -> list[int]:
        with suppress(dist.DistError):
            before = self._read_signs()
            time.sleep(self._silence_seconds)
            after = self._read_signs()
            return [
                rank
                for rank, sign in after.items()
                if rank != self._rank_info.rank and sign == before[rank] and sign != ENDED
            ]
        return []

    def _read_signs(self) -> dict[int, str]:
        """Return the last sign of each rank, empty for one that gave none."""
        store, keys = self._store, [build_key(rank) for rank in range(self._rank_info.world_size)]
        if store.check(keys):
            return dict(enumerate(sign.decode() for sign in store.multi_get(keys)))
        return {
            rank: store.get(key).decode() if store.check([key]) else ""
            for rank, key in enumerate(keys)
        }

    def _beat(self) -> None:
        key, count = build_key(self._rank_info.rank), 0
        # the store ends with its rank
        with suppress(dist.DistError):
            while True:
                self._store.set(key, str(count))
                count += 1
                if self._ended.wait(self._beat_seconds):
                    self._store.set(key, ENDED)
                    return


def build_key(rank: int) -> str:
    """Return the key of a rank's sign of life."""
    return f"alive/{rank}"


def find_store_rank() -> int | None:
    """Return the rank whose process holds the store. None: torchrun's agent holds it."""
    uses_agent = get_environment_variables().get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return None if uses_agent else 0


def format_silent_ranks(ranks: list[int]) -> str:
    """Format who does not answer: `rank 1 does not answer`, `ranks 1, 2 and 3 more do not ...`."""
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return (
        f"rank {shown} does not answer" if len(ranks) == 1 else f"ranks {shown}{more} do not answer"
    )
