"""The queue of commands: who begins when, on which devices, and what outlives the server."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ui.conftest import UiProcess
from titanrun.ui.job_queue import Job, JobQueue, create_job_id, list_devices
from titanrun.ui.refusal import Refusal

QUICK = ("explain", "optimizer.lr")
MISTAKEN = ("explain", "no.such.setting")


def make_job(words: tuple[str, ...] = QUICK, *, lane: str = "queue", slots: int = 1) -> Job:
    return Job(create_job_id(), "train", words, "", (), "", lane, slots, created=time.time())


class Server:
    """A queue with what the server adds to it; a second one finds what the first has left."""

    def __init__(self, folder: Path, devices: tuple[str, ...] = ()) -> None:
        self.folder, self.devices, self.obstacle = folder, devices, None
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self.opened: list[JobQueue] = []
        self.queue = self.open()

    def open(self) -> JobQueue:
        queue = JobQueue(
            self.folder / "jobs",
            self.folder,
            self.environment,
            self.devices,
            lambda job: self.obstacle,
            lambda job: None,
        )
        self.opened.append(queue)
        return queue

    def close(self) -> None:
        """Wait for the commands of all queues."""
        for queue in self.opened:
            for process in queue.processes.values():
                process.wait(30)

    def serve(self) -> tuple[str, ...]:
        """Return a command that goes on until it is asked to end, and needs next to nothing."""
        place = self.folder / create_job_id()
        place.mkdir()
        return ("ui", str(place), "--no-browser", "--runs", str(self.folder))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path)
    yield found
    found.close()


def wait_for(queue: JobQueue | None, claim: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < end, queue
        if queue is not None:
            queue.advance()
        time.sleep(0.05)


def test_one_slot_takes_commands_in_order(server: Server) -> None:
    queue = server.queue
    jobs = [queue.add(make_job(words)) for words in (QUICK, MISTAKEN, QUICK)]
    assert [job.state for job in jobs] == ["running", "queued", "queued"]
    wait_for(queue, lambda: jobs[2].has_ended)
    assert [job.state for job in jobs] == ["done", "failed", "done"]
    assert [job.exit_code for job in jobs] == [0, 2, 0]
    assert jobs[0].ended <= jobs[1].started and jobs[1].ended <= jobs[2].started  # type: ignore[operator]


def test_what_waits_is_reordered_and_cancelled(server: Server) -> None:
    queue = server.queue
    jobs = [queue.add(make_job(server.serve()))] + [queue.add(make_job()) for _ in range(3)]
    first, second, third = (job.id for job in jobs[1:])
    queue.reorder([third, first, second])
    with pytest.raises(Refusal):
        queue.reorder([third, first])
    queue.cancel(second)
    waiting = [job.id for job in queue.jobs if job.state == "queued"]
    assert waiting == [third, first]
    # one that runs is asked to end, and the next one begins
    queue.cancel(jobs[0].id)
    wait_for(queue, lambda: jobs[1].has_ended)
    assert jobs[0].state == "cancelled" and jobs[2].state == "cancelled"
    assert jobs[3].ended <= jobs[1].started  # type: ignore[operator]


def test_a_new_server_finds_what_runs_and_what_has_ended_meanwhile(server: Server) -> None:
    runs, waits = server.queue.add(make_job(server.serve())), server.queue.add(make_job())
    again = server.open()
    again.advance()
    assert [job.state for job in again.jobs] == ["running", "queued"]
    again.cancel(runs.id)
    wait_for(again, lambda: again.find(waits.id).has_ended)
    assert again.find(waits.id).state == "done"
    # a third one learns the exit code of a command that ended while there was no server
    other = again.add(make_job(MISTAKEN))
    folder = again.get_folder(other)
    wait_for(None, (folder / "exit_code").is_file)
    third = server.open()
    wait_for(third, lambda: third.find(other.id).has_ended)
    assert (third.find(other.id).state, third.find(other.id).exit_code) == ("failed", 2)


def test_jobs_get_devices_of_their_own(tmp_path: Path) -> None:
    server = Server(tmp_path, ("4", "7", "9"))
    queue = server.queue
    assert queue.num_slots == 3
    jobs = [queue.add(make_job(server.serve(), slots=slots)) for slots in (2, 1, 2)]
    small = queue.add(make_job(slots=1))
    assert [job.devices for job in jobs] == [["4", "7"], ["9"], []]
    seen = Path(f"/proc/{jobs[0].pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=4,7" in seen
    # the last one would have room soon, but does not overtake
    queue.cancel(jobs[1].id)
    wait_for(queue, lambda: jobs[1].has_ended)
    assert (jobs[2].state, small.state) == ("queued", "queued")
    queue.cancel(jobs[0].id)
    wait_for(queue, lambda: jobs[2].state == "running" and small.has_ended)
    assert len(jobs[2].devices) == 2
    queue.cancel(jobs[2].id)
    wait_for(queue, lambda: jobs[2].has_ended)
    with pytest.raises(Refusal):
        queue.add(replace(make_job(), slots=4))
    with pytest.raises(Refusal):
        queue.set_slots(2)


def test_slots_without_accelerators_are_chosen(server: Server) -> None:
    queue = server.queue
    queue.set_slots(2)
    jobs = [queue.add(make_job(server.serve())) for _ in range(3)]
    assert [job.state for job in jobs] == ["running", "running", "queued"]
    now = queue.add(make_job(lane="now"))
    assert now.state == "running"
    for job in (jobs[2], *jobs):
        queue.cancel(job.id)
    wait_for(queue, lambda: all(job.has_ended for job in queue.jobs))
    for count in (0, 1000):
        with pytest.raises(Refusal):
            queue.set_slots(count)
    assert server.open().num_slots == 2


def test_a_command_that_would_do_something_else_is_not_started(server: Server) -> None:
    blocker = server.queue.add(make_job())
    job = server.queue.add(make_job())
    server.obstacle = "the recipe has changed"  # type: ignore[assignment]
    wait_for(server.queue, lambda: job.has_ended)
    assert (blocker.state, job.state, job.reason) == ("done", "cancelled", server.obstacle)
    assert not server.queue.get_folder(job).exists()


def test_devices_are_those_that_commands_may_use() -> None:
    assert list_devices({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_a_recipe_that_changes_while_it_waits_is_not_run(ui: UiProcess) -> None:
    def queue(target: str) -> dict[str, object]:
        request = {"command": "train", "target": target, "overrides": ["dump_folder=runs/x"]}
        shown = ui.ask("POST", "/api/jobs/preview", request).data
        answer = ui.ask("POST", "/api/jobs", {"digest": shown["digest"], "queue": True})
        assert answer.status == 200, answer.body
        return dict(answer.data)

    folder = ui.workspace / "recipes"
    text = (folder / "mine.yaml").read_text()
    # the first one fails at once, and leaves the time to change what the second one extends
    (folder / "bad.yaml").write_text(text.replace("steps: 80", "steps: 80\n  local_batch_size: 7"))
    (folder / "runs").mkdir()
    first, second = queue("recipes/mine.yaml"), queue("recipes/bad.yaml")
    part = folder / "parts" / "tiny_corpus.yaml"
    part.write_text(part.read_text() + "\n# changed\noptimizer: {weight_decay: 0.07}\n")
    assert (first["state"], second["state"]) == ("running", "queued")
    stopped = ui.ask("DELETE", f"/api/jobs/{first['id']}")
    assert stopped.status == 200
    end = time.monotonic() + 60
    found: dict[str, object] = {}
    while found.get("state") not in ("cancelled", "failed", "done") and time.monotonic() < end:
        time.sleep(0.2)
        found = ui.ask("GET", f"/api/jobs/{second['id']}").data
    assert found["state"] == "cancelled" and "has changed" in str(found["reason"])


def test_a_read_only_server_shows_the_queue_and_changes_nothing(
    start_ui: Callable[..., UiProcess],
) -> None:
    server = start_ui("--read-only")
    server.follow_link()
    assert server.ask("GET", "/api/jobs").data["jobs"] == []
    for path in ("/jobs", "/jobs/preview", "/queue/order", "/queue/slots"):
        assert server.ask("POST", f"/api{path}", {}).status in (404, 405), path
    refused = server.ask("DELETE", "/api/jobs/none")
    assert refused.status in (404, 405) and refused.body in (b"Not Found", b"Method Not Allowed")
