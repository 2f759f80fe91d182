"""All ranks get the job of the first one."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from titanrun.distributed.rank_env import RankInfo
from titanrun.worker.worker_job import WorkerJob, rendezvous


def test_ranks_name_the_run_as_given_and_others_where_the_first_one_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = Path("runs/first/resolved.yaml")
    given.parent.mkdir(parents=True)
    given.write_text("version: 1\n")
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]

    def join(rank: int) -> WorkerJob:
        descriptor = listening.detach() if rank == 0 else -1  # only the first rank reads it
        place = RankInfo(rank=rank, world_size=3, store_socket=descriptor, store_port=port)
        return rendezvous((given, given, None)[rank], place)

    with ThreadPoolExecutor(3) as ranks:
        jobs = list(ranks.map(join, range(3)))
    assert [job.resolved_path for job in jobs] == [given, given, given.absolute()]
    assert {job.resolved_text for job in jobs} == {"version: 1\n"}
