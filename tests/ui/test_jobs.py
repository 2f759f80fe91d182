"""Commands that the page starts: only as they were shown, and never words that become options."""

import json
import re
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.ui.conftest import UiProcess, write_run
from titanrun.ui.event_stream import EventSource, parse_topics
from titanrun.ui.run_catalog import RunCatalog

ROOT = Path(__file__).parents[2]
TRAIN = {"command": "train", "target": "recipes/mine.yaml"}


def preview(ui: UiProcess, **changes: object) -> dict[str, object]:
    answer = ui.ask("POST", "/api/jobs/preview", {**TRAIN, **changes})
    assert answer.status == 200, answer.body
    return dict(answer.data)


def test_a_command_is_started_once_and_only_as_it_was_shown(ui: UiProcess) -> None:
    assert ui.ask("POST", "/api/jobs", {"digest": "made up"}).status == 409
    shown = preview(ui, overrides=["training.steps=5"])
    assert shown["shell"] == "titanrun train ./recipes/mine.yaml training.steps=5"
    recipe = ui.workspace / "recipes" / "mine.yaml"
    text = recipe.read_text()
    recipe.write_text(text.replace("steps: 80", "steps: 70"))
    assert ui.ask("POST", "/api/jobs", {"digest": shown["digest"]}).status == 409
    assert not (ui.workspace / "runs").exists()
    # a command that ends at once: it finds a mistake that the preview does not look for
    again = preview(ui, overrides=["dump_folder=recipes/mine.yaml"])
    started = ui.ask("POST", "/api/jobs", {"digest": again["digest"]})
    assert started.status == 200
    assert ui.ask("POST", "/api/jobs", {"digest": again["digest"]}).status == 409
    job = started.data
    end = time.monotonic() + 60
    while job["state"] == "running" and time.monotonic() < end:
        time.sleep(0.2)
        job = ui.ask("GET", f"/api/jobs/{job['id']}").data
    assert (job["state"], job["exit_code"]) == ("failed", 2), job
    assert "error" in job["output"]


@pytest.mark.parametrize(
    "override",
    ["--trust", "-q", "", "training.steps", "a=1\n--trust", "a=1\0", " --x=1", "=1", "--a.b=1", 5],
)
def test_what_a_user_writes_never_becomes_an_option(ui: UiProcess, override: object) -> None:
    answer = ui.ask("POST", "/api/jobs/preview", {**TRAIN, "overrides": [override]})
    assert answer.status == 400, answer.body


def test_only_known_commands_on_known_targets_are_shown(ui: UiProcess) -> None:
    for changes in (
        {"command": "runs"},
        {"command": "rm -rf"},
        {"target": "--trust"},
        {"target": "../x.yaml"},
        {"target": "/etc/passwd"},
        {"command": "resume", "target": "../.."},
        {"command": "fork", "target": "nowhere"},
        {"overrides": "training.steps=5"},
    ):
        answer = ui.ask("POST", "/api/jobs/preview", {**TRAIN, **changes})
        assert answer.status in (400, 403, 404), (changes, answer.body)


def test_code_of_a_recipe_is_shown_and_needs_consent(ui: UiProcess, tmp_path: Path) -> None:
    script = ui.workspace / "reward.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    script.chmod(0o755)
    recipe = ui.workspace / "recipes" / "code.yaml"
    recipe.write_text(
        f"version: 1\nextends: {ROOT}/recipes/rl/char_share.yaml\n"
        "rl: {rewards: [{name: command, command: [./reward.sh]}]}\n"
    )
    shown = preview(ui, target="recipes/code.yaml")
    [program] = shown["programs"]  # type: ignore[misc]
    assert program["path"] == "rl.rewards[0].command" and program["trusted"] is False
    answer = ui.ask("POST", "/api/jobs", {"digest": shown["digest"]})
    assert answer.status == 403 and answer.data["error"]["code"] == "consent", answer.body
    assert not (ui.workspace / "runs").exists() and not (tmp_path / "ran").exists()


def test_a_longer_run_is_shown_with_the_schedule_that_the_command_gives_it(ui: UiProcess) -> None:
    write_run(ui.workspace / "runs" / "short", losses=[3.0])
    for command in ("fork", "resume"):
        request = {"command": command, "target": "short", "overrides": ["training.steps=90"]}
        answer = ui.ask("POST", "/api/jobs/preview", request)
        assert (answer.status, answer.data["warnings"]) == (200, []), answer.body
        # a schedule that the user writes stays as it is written
        request["overrides"].append("lr_scheduler.total_steps=80")  # type: ignore[attr-defined]
        [warning] = ui.ask("POST", "/api/jobs/preview", request).data["warnings"]
        assert "the schedule ends at step 80, but the run at 90" in warning


def test_runs_are_listed_with_filters_and_bad_filters_are_problems(ui: UiProcess) -> None:
    runs = ui.workspace / "runs"
    write_run(runs / "a", losses=[3.0, 2.0])
    write_run(runs / "deep" / "b", losses=[3.0, "nan"], state="failed")
    data = ui.ask("GET", "/api/runs").data
    assert {one["id"] for one in data["runs"]} == {"a", "deep/b"} and data["total"] == 2
    assert not {"pid", "host", "boot_id"} & set(data["runs"][0])
    found = ui.ask("GET", "/api/runs?where=loss%3C2.5&state=finished").data
    assert [one["id"] for one in found["runs"]] == ["a"]
    bad = ui.ask("GET", "/api/runs?where=los%3C2")
    assert bad.status == 400 and bad.data["error"]["help"] == "did you mean 'loss'?"
    series = ui.ask("GET", "/api/runs/deep%2Fb/series?metrics=loss,tps,none").data["series"]
    assert (series["loss"]["y"], series["loss"]["nonfinite"]) == ([3.0, None], [2.0])
    assert set(series) == {"loss", "tps"}
    found = ui.ask("GET", "/api/runs/deep%2Fb").data["entry"]
    assert (found["id"], found["state"]) == ("deep/b", "failed")
    # a slash that is not encoded belongs to no run
    assert ui.ask("GET", "/api/runs/deep/b").status == 404
    assert ui.ask("GET", "/api/runs/deep%2Fb/checkpoints/7").data["error"]["code"] == "checkpoint"
    assert ui.ask("GET", "/api/runs/a/checkpoints/x").status == 400
    rows = ui.ask("POST", "/api/compare", {"runs": ["a", "deep/b"]}).data["rows"]
    assert {"group": "outcome", "name": "state", "values": ["finished", "failed"]} in rows
    tagged = ui.ask("POST", "/api/runs/a/tags", {"add": ["best"]})
    assert tagged.data == {"tags": ["best"]}
    assert ui.ask("POST", "/api/runs/a/tags", {"add": ["../x y"]}).status == 400
    stopped = ui.ask("POST", "/api/runs/a/stop", {})
    assert stopped.status == 400 and "no run is training" in stopped.data["error"]["message"]


def test_the_stream_tells_new_rows_and_a_new_start(ui: UiProcess) -> None:
    import http.client

    run = write_run(ui.workspace / "runs" / "a", losses=[3.0, 2.0])
    cursor = ui.ask("GET", "/api/runs/a/series?metrics=loss").data["cursor"]
    connection = http.client.HTTPConnection("127.0.0.1", ui.port, timeout=20)
    connection.request(
        "GET",
        '/api/events?topics=run:a&since={"run:a":"' + cursor + '"}',
        headers={"Cookie": ui.cookie, "X-Titanrun": ui.secret, "Origin": ui.origin},
    )
    response = connection.getresponse()

    def read_event(wanted: str) -> dict[str, object]:
        name = ""
        while True:
            line = response.readline().decode()
            if line.startswith("event: "):
                name = line[7:].strip()
            if line.startswith("data: ") and name == wanted:
                return dict(json.loads(line[6:]))

    read_event("hello")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": "nan"}\n{"step": 4, "lo')
        file.flush()
        assert read_event("run.metrics")["rows"] == [{"step": 3, "loss": "nan"}]
        file.write('ss": 1.0}\n')
    assert read_event("run.metrics")["rows"] == [{"step": 4, "loss": 1.0}]
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n')
    read_event("run.reset")
    assert read_event("run.metrics")["rows"] == [{"step": 1, "loss": 3.0}]
    connection.close()


def test_a_long_run_is_followed_without_reading_all_of_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", losses=[3.0, 2.0])
    topics = parse_topics("run:a", "")
    source = EventSource(RunCatalog(tmp_path), None, None, topics)  # type: ignore[arg-type]
    assert [name for name, _ in source.collect()] == ["run.metrics", "run.state"]
    status = json.loads((tmp_path / "a" / "status.json").read_text())
    (tmp_path / "a" / "status.json").write_text(json.dumps({**status, "step": 3}))
    topics["run:a"].checked_at = source.states["a"].checked_at = 0.0
    read = Mock()
    monkeypatch.setattr("titanrun.runs.run_summary.read_last_metrics", read)
    [(name, told)] = source.collect()
    assert (name, told["step"], told["state"]) == ("run.state", 3, "finished")
    read.assert_not_called()


def test_nothing_in_the_package_has_the_name_of_a_host_in_lists(ui: UiProcess) -> None:
    write_run(ui.workspace / "runs" / "a", losses=[1.0], host="secret-host", pid=1)
    body = ui.ask("GET", "/api/runs").body
    assert not re.search(b"secret-host", body)


def test_commands_that_only_read_have_options_within_bounds(ui: UiProcess) -> None:
    plan = {"command": "plan", "ranks": 8, "device": "h200"}
    assert preview(ui, **plan)["shell"] == (
        "titanrun plan ./recipes/mine.yaml --world-size 8 --device h200 --json"
    )
    row = preview(ui, command="data-show", row=3)
    assert row["shell"] == "titanrun data show ./recipes/mine.yaml --json --row 3"
    for changes in (
        {**plan, "ranks": 0},
        {**plan, "ranks": "8"},
        {**plan, "device": "--trust"},
        {"command": "data-show", "count": 10**9},
        {"command": "data-show", "row": -1},
        {"command": "data-stats", "target": "../x.yaml"},
    ):
        answer = ui.ask("POST", "/api/jobs/preview", {**TRAIN, **changes})
        assert answer.status in (400, 403), (changes, answer.body)
    names = {one["name"] for one in ui.ask("GET", "/api/plan-devices").data["devices"]}
    assert {"h100", "h200"} <= names


def test_histograms_count_every_value() -> None:
    from titanrun.ui.job_results import NUM_BINS, build_histogram

    for values in ([5], [1, 1, 2], list(range(1000)), [0, 10**6]):
        found = build_histogram(values)
        assert sum(found["counts"]) == len(values) and len(found["counts"]) <= NUM_BINS
        last = found["start"] + found["width"] * len(found["counts"])
        assert found["start"] == min(values) and last > max(values)
    assert build_histogram([])["counts"] == []


def test_a_conversation_is_with_checkpoints_only(ui: UiProcess) -> None:
    run = write_run(ui.workspace / "runs" / "a", losses=[1.0])
    (run / "checkpoint" / "step-2").mkdir(parents=True)
    for changes in ({"target": "a"}, {"target": "a", "step": 9}, {"target": "../..", "step": 2}):
        answer = ui.ask("POST", "/api/jobs/preview", {"command": "chat", **changes})
        assert answer.status in (400, 403, 404), (changes, answer.body)
    for request in ({"text": 5}, {"id": 1, "text": "x", "options": [{"top_p": 5}]}, {"pick": 3}):
        answer = ui.ask("POST", "/api/chat/none", {"request": request})
        assert answer.status in (400, 404)


def test_requests_of_a_conversation_are_checked() -> None:
    from titanrun.ui.chats import check_request
    from titanrun.ui.refusal import Refusal

    options = {"temperature": 0, "top_p": 0.5, "seed": 1, "max_new_tokens": 4}
    good = {"id": 1, "text": "Hi", "options": [options]}
    assert check_request({**good, "more": 1}) == good
    for bad in (
        {"text": "Hi", "options": [options]},
        {**good, "options": []},
        {**good, "options": [{**options, "seed": 1.5}]},
        {**good, "options": [{**options, "temperature": True}]},
        {**good, "options": [{**options, "max_new_tokens": 10**9}]},
        {"pick": 3},
        {"reset": True},
        {},
    ):
        with pytest.raises(Refusal):
            check_request(bad)
