"""What the editor asks: problems, values, descriptions, completions, with offsets of a browser."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ui.conftest import UiProcess
from titanrun.recipe.editing.utf16_text import Utf16Text

HEAD = "version: 1\nname: '🦙 é 漢'\nextends: [parts/tiny_corpus.yaml, parts/fp32.yaml]\n"
MODEL = "model: {name: llama3, flavor: debugmodel}\n"
PATH = "recipes/mine.yaml"


def cut_utf16(text: str, start: int, end: int) -> str:
    """Cut as JavaScript's slice does."""
    return text.encode("utf-16-le")[2 * start : 2 * end].decode("utf-16-le")


def examine(ui: UiProcess, text: str, *want: str) -> Any:
    answer = ui.ask(
        "POST", "/api/examine", {"path": PATH, "text": text, "version": 7, "want": want}
    )
    assert answer.status == 200, answer.body
    return answer.data


@given(st.text(alphabet="a\n🦙漢é", max_size=40), st.data())
def test_offsets_are_those_of_javascript(text: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(text)))
    offset = len(text[:index].encode("utf-16-le")) // 2
    positions = Utf16Text(text)
    assert (positions.to_utf16(index), positions.to_index(offset)) == (offset, index)


def test_ten_mistakes_are_found_at_the_written_words(ui: UiProcess) -> None:
    text = HEAD + (
        "model: {name: llama3, flavor: debugmodell}\n"
        "training: {'🦙': 1, step: 8, seq_len: \"64\", local_batch_size: 0}\n"
        "optimizer: {name: adamw, learning_rate: 3, lr: -1}\n"
        "checkpoint: {enable: yes}\n"
        "lr_scheduler: {decay_type: linea, decay_ratio: 7}\n"
    )
    found = {
        cut_utf16(text, one["from"], one["to"]): one["code"]
        for one in examine(ui, text)["problems"]
    }
    assert found == {
        "debugmodell": "unknown-name",
        "'🦙'": "unknown-key",
        "step": "unknown-key",
        '"64"': "wrong-type",
        "0": "out-of-range",
        "learning_rate": "unknown-key",
        "-1": "out-of-range",
        "yes": "wrong-type",
        "linea": "unknown-name",
        "7": "out-of-range",
    }


def test_corrections_are_edits_of_the_text(ui: UiProcess) -> None:
    text = HEAD + MODEL + 'training: {seq_len: "64", stteeps: 8}\n'
    [quoted, step] = examine(ui, text)["problems"]
    [certain], [guess] = quoted["actions"], step["actions"]
    assert (certain["preferred"], certain["text"]) == (True, "64")
    assert (guess["preferred"], guess["text"]) == (False, "steps")
    assert cut_utf16(text, guess["from"], guess["to"]) == "stteeps"
    fixed = ui.ask("POST", "/api/fix-all", {"path": PATH, "text": text}).data["text"]
    assert fixed == text.replace('"64"', "64")


def test_values_have_their_origins_and_the_file_on_disk_stays_as_it_is(ui: UiProcess) -> None:
    before = (ui.workspace / PATH).read_bytes()
    text = HEAD + MODEL + "optimizer: {lr: 0.5}\n"
    data = examine(ui, text, "resolved", "schedule")
    [values] = data["resolved"]
    by_path = {one["path"]: one for one in values}
    assert by_path["optimizer.lr"]["value"] == 0.5
    assert (by_path["optimizer.lr"]["file"], by_path["optimizer.lr"]["line"]) == (PATH, 5)
    assert by_path["training.dataset.name"]["file"] == "recipes/parts/tiny_corpus.yaml"
    assert by_path["optimizer.beta1"]["source"] == "default"
    [run] = data["runs"]
    assert run["tokens"] == run["steps"] * run["tokens_per_step"]
    assert max(data["schedule"][0]["y"]) == 0.5
    assert (ui.workspace / PATH).read_bytes() == before
    # the text stood for the file only while it was examined
    saved = ui.ask("GET", f"/api/file?path={PATH}").data["text"]
    assert "lr: 2.0e-3" in saved


def test_descriptions_and_completions_follow_the_component_in_use(ui: UiProcess) -> None:
    text = HEAD + MODEL + "optimizer: {name: muon, lr: 0.1}\n"
    offset = len(text[: text.index("lr: 0.1")].encode("utf-16-le")) // 2
    hover = ui.ask("POST", "/api/hover", {"path": PATH, "text": text, "offset": offset}).data
    assert hover["title"] == "optimizer.lr"
    assert cut_utf16(text, hover["from"], hover["to"]) == "lr"
    broken = HEAD + MODEL + "optimizer:\n  name: adam"
    offset = len(broken.encode("utf-16-le")) // 2
    found = ui.ask("POST", "/api/complete", {"path": PATH, "text": broken, "offset": offset}).data
    assert "adamw" in {one["label"] for one in found["options"]}
    keys = broken.replace("  name: adam", "  name: adamw\n  we")
    offset = len(keys.encode("utf-16-le")) // 2
    found = ui.ask("POST", "/api/complete", {"path": PATH, "text": keys, "offset": offset}).data
    assert "weight_decay" in {one["label"] for one in found["options"]}
    offset = text.encode("utf-16-le").index("parts/fp32".encode("utf-16-le")) // 2 + 3
    place = ui.ask("POST", "/api/definition", {"path": PATH, "text": text, "offset": offset}).data
    assert place["path"] == "recipes/parts/fp32.yaml"


def test_a_text_is_compared_with_a_shipped_recipe(ui: UiProcess) -> None:
    body = {
        "path": PATH,
        "text": (ui.workspace / PATH).read_text().replace("2.0e-3", "1.0e-3"),
        "other": "file:shipped:llama3_debug.yaml",
    }
    changes = ui.ask("POST", "/api/diff", body).data["changes"]
    assert [(one["path"], one["class"], one["resume"]) for one in changes] == [
        ("optimizer.lr", "numerics", False)
    ]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """An installed plug-in that leaves a trace when it is imported."""
    site = tmp_path / "site"
    (site / "tracer-1.dist-info").mkdir(parents=True)
    (site / "tracer-1.dist-info" / "METADATA").write_text("Name: tracer\nVersion: 1\n")
    (site / "tracer-1.dist-info" / "entry_points.txt").write_text(
        "[titanrun.plugins]\ntracer = tracer\n"
    )
    trace = tmp_path / "imported"
    (site / "tracer.py").write_text(f"PLUGIN_API = 1\nopen({str(trace)!r}, 'w').close()\n")
    return site


def test_no_plugin_is_imported_before_the_user_allows_it(
    start_ui: Callable[..., UiProcess], plugin: Path, tmp_path: Path
) -> None:
    server = start_ui(PYTHONPATH=f"{plugin}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    server.follow_link()
    text = HEAD + MODEL + "plugins: [tracer]\n"
    (server.workspace / PATH).write_text(text)
    [problem] = examine(server, text, "resolved")["problems"]
    assert "is not imported" in problem["message"]
    server.ask("POST", "/api/jobs/preview", {"command": "train", "target": PATH})
    assert not (tmp_path / "imported").exists()
    assert server.ask("POST", "/api/plugins", {"plugins": ["tracer"]}).status == 200
    assert examine(server, text)["problems"] == []
    assert (tmp_path / "imported").exists()


def test_no_answer_has_a_secret(start_ui: Callable[..., UiProcess]) -> None:
    server = start_ui(WANDB_API_KEY="key-4711-abcdef", TITANRUN_SEED="5")
    server.follow_link()
    text = HEAD + MODEL + "metrics: {trackers: [{name: wandb, api_key: '${env:WANDB_API_KEY}'}]}\n"
    (server.workspace / PATH).write_text(text)
    examine(server, text, "resolved", "schedule")
    offset = text.index("api_key") + 3
    server.ask("POST", "/api/hover", {"path": PATH, "text": text, "offset": offset})
    server.ask("POST", "/api/diff", {"path": PATH, "text": text, "other": f"file:{PATH}"})
    server.ask("POST", "/api/jobs/preview", {"command": "train", "target": PATH})
    assert len(server.seen) > 4
    assert not [body for body in server.seen if b"key-4711" in body]


def test_overrides_are_examined_with_the_text(ui: UiProcess) -> None:
    text = HEAD + MODEL + "training: {dataset: tiny, steps: 8}\n"

    def ask(*overrides: str) -> Any:
        body = {"path": PATH, "text": text, "want": ["resolved"], "overrides": overrides}
        return ui.ask("POST", "/api/examine", body)

    found = ask("training.steps=9", "optimizer.lr=0.5").data
    assert found["problems"] == [] and found["runs"][0]["steps"] == 9
    [lr] = [one for one in found["resolved"][0] if one["path"] == "optimizer.lr"]
    assert (lr["value"], lr["source"]) == (0.5, "override")
    [wrong] = ask("training.stepz=9").data["problems"]
    assert (wrong["code"], wrong["from"], wrong["is_override"]) == ("unknown-key", None, True)
    # the next examination has none of it
    assert ask().data["runs"][0]["steps"] == 8
    for bad in ("--trust", "a=1\nb=2", "training.steps"):
        assert ask(bad).status == 400, bad
