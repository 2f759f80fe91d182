"""The language server, driven over its pipes as an editor drives it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from lsprotocol.converters import get_converter

from tests.lsp.client import Client
from tests.package_metadata import build_environment

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
MINIMAL = """version: 1
extends: shipped:llama3_debug.yaml
training:
  steps: 10
"""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One server for all tests, as in an editor."""
    client = Client()
    yield client
    assert client.close() == 0


def apply_edit(text: str, edits: list[dict[str, Any]]) -> str:
    """A text after edits, in UTF-16 code units as the protocol counts by default."""
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda edit: -edit["range"]["start"]["line"]):
        start, end = edit["range"]["start"], edit["range"]["end"]
        head = lines[start["line"]].encode("utf-16-le")[: start["character"] * 2]
        tail = lines[end["line"]].encode("utf-16-le")[end["character"] * 2 :]
        new = head.decode("utf-16-le") + edit["newText"] + tail.decode("utf-16-le")
        lines[start["line"] : end["line"] + 1] = new.split("\n")
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["llama3_debug.yaml", "llama3_debug.toml", "rl/char_share.yaml"])
def test_shipped_recipes_have_no_problems(client: Client, name: str) -> None:
    assert client.open(RECIPES / name) == []


BAD = [
    ("training:\n  stepz: 5\n", "unknown-key", 3, 2, 7),
    ("training:\n  steps: many\n", "wrong-type", 3, 9, 13),
    ("optimizer: adamx\n", "unknown-name", 2, 11, 16),
    ("training:\n  steps: -3\n", "out-of-range", 3, 9, 11),
    ("training:\n  steps: 5\n  steps: 6\n", "duplicate-key", 4, 2, 7),
    ("training:\n  steps: ${training.stepz}\n", "interpolation", 3, 9, 26),
    ("checkpoint:\n  interval: on\n", "wrong-type", 3, 12, 14),
    ('debug: {seed: "7"}\n', "wrong-type", 2, 14, 17),
    ("name: 'a\n", "syntax", 2, None, None),
    ("parallelism:\n  tensor_parallel_degree: 3\n", "conflict/heads-divide-over-tp", 3, None, None),
]


@pytest.mark.parametrize(("text", "code", "line", "start", "end"), BAD, ids=[b[1] for b in BAD])
def test_each_mistake_is_shown_at_its_columns(
    client: Client,
    tmp_path: Path,
    text: str,
    code: str,
    line: int,
    start: int | None,
    end: int | None,
) -> None:
    file = tmp_path / "mine.yaml"
    found = client.open(file, "version: 1\nextends: shipped:llama3_debug.yaml\n" + text)
    mine = [diagnostic for diagnostic in found if diagnostic["code"] == code]
    assert mine, found
    assert mine[0]["range"]["start"]["line"] == line
    if start is not None:
        assert mine[0]["range"]["start"]["character"] == start
        assert mine[0]["range"]["end"]["character"] == end


@pytest.mark.parametrize(("encoding", "units"), [("utf-8", 4), ("utf-16", 2), ("utf-32", 1)])
def test_columns_are_counted_in_the_unit_of_the_client(
    tmp_path: Path, encoding: str, units: int
) -> None:
    client = Client([encoding])
    assert client.capabilities["positionEncoding"] == encoding
    file = tmp_path / "mine.yaml"
    found = client.open(file, MINIMAL + 'metrics: {description: "🙂", stepz: 1}\n')
    at = [d["range"]["start"]["character"] for d in found if "stepz" in d["message"]]
    assert at == [len('metrics: {description: "') + units + len('", ')]
    client.close()


def test_the_open_text_counts_and_not_the_file(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINIMAL.replace("steps", "stepz"))
    assert client.open(file, MINIMAL) == []
    version = client.change(file, MINIMAL.replace("steps", "stepz"))
    assert [found["code"] for found in client.wait_for(file, version)] == ["unknown-key"]
    version = client.change(file, MINIMAL)
    assert client.wait_for(file, version) == []


def test_only_the_newest_of_quick_edits_is_examined(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    client.open(file, MINIMAL)
    for length in range(1, 6):
        last = client.change(file, MINIMAL + "z" * length + ": 1\n")
    assert "zzzzz" in client.wait_for(file, last)[0]["message"]


def test_problems_of_an_extended_file_go_when_it_is_repaired_in_the_editor(
    client: Client, tmp_path: Path
) -> None:
    base, file = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("version: 1\nextends: shipped:llama3_debug.yaml\ntraining: {stepz: 3}\n")
    file.write_text("version: 1\nextends: base.yaml\n")
    assert client.open(file) == []
    assert [found["code"] for found in client.diagnostics[base.as_uri()]] == ["unknown-key"]
    related = client.diagnostics[base.as_uri()][0]["relatedInformation"]
    assert related[0]["location"]["uri"] == file.as_uri()
    client.open(base, MINIMAL)
    client.notify("textDocument/didSave", {"textDocument": {"uri": base.as_uri()}})
    while client.diagnostics[base.as_uri()]:
        client.receive()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compose.yaml", "services:\n  web: {image: nginx}\n"),
        ("pyproject.toml", "[project]\nversion = '1'\n"),
        ("chart.yaml", "version: 1\nname: x\n"),
        ("notes.md", MINIMAL),
    ],
)
def test_other_files_stay_without_diagnostics(
    client: Client, tmp_path: Path, name: str, text: str
) -> None:
    client.notify(
        "textDocument/didOpen",
        {
            "textDocument": {
                "uri": (tmp_path / name).as_uri(),
                "languageId": "yaml",
                "version": 1,
                "text": text,
            }
        },
    )
    client.open(tmp_path / "mine.yaml", MINIMAL)
    assert (tmp_path / name).as_uri() not in client.diagnostics
    assert client.labels(tmp_path / name, (0, 0)) == []


def test_a_folder_of_recipes_can_be_named_in_the_settings(tmp_path: Path) -> None:
    client = Client(options={"recipes": [str(tmp_path / "parts")]})
    found = client.open(tmp_path / "parts" / "fast.yaml", "training: {stepz: 1}\n")
    assert [diagnostic["code"] for diagnostic in found] == ["unknown-key"]
    client.close()


def test_certain_corrections_and_guesses_are_offered(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = MINIMAL + 'debug: {seed: "7"}\noptimizer: {name: adamx}\n'
    client.open(file, text)
    (certain,) = client.actions(file, 4)
    assert certain["isPreferred"]
    assert apply_edit(text, certain["edit"]["changes"][file.as_uri()]) == text.replace('"7"', "7")
    (guess,) = client.actions(file, 5)
    assert apply_edit(text, guess["edit"]["changes"][file.as_uri()]) == text.replace(
        "adamx", "adam"
    )


def test_everything_certain_is_corrected_at_once(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = (
        MINIMAL + 'debug: {seed: "7"}  # 🙂\ncheckpoint: {enable: on}\nmetrics: {log_freq: "2"}\n'
    )
    client.open(file, text)
    (action,) = client.actions(file, 0, ["source.fixAll"])
    fixed = apply_edit(text, action["edit"]["changes"][file.as_uri()])
    version = client.change(file, fixed)
    assert client.wait_for(file, version) == []
    assert "# 🙂" in fixed


def test_completion_offers_keys_names_and_values_in_broken_text(
    client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    text = (
        MINIMAL
        + "optimizer:\n  name: adamw\n  \nlr_scheduler: {name: \n"
        + "converters:\n- \n- name: lora\n  \n"
    )
    client.open(file, text)
    lines = text.split("\n")
    assert {"lr", "weight_decay"} <= set(client.labels(file, (6, 2)))
    assert "name" not in client.labels(file, (6, 2))
    assert "warmup_stable_decay" in client.labels(file, (7, len(lines[7])))
    assert "float8_linear" in client.labels(file, (9, 2))
    assert "rank" in client.labels(file, (11, 2))
    assert {"training", "stages", "extends"} - set(client.labels(file, (12, 0))) == {
        "training",
        "extends",
    }


def test_completion_follows_the_component_that_is_written(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = MINIMAL + "optimizer: {name: muon, n\n"
    client.open(file, text)
    muon = set(client.labels(file, (4, len(text.split("\n")[4]))))
    assert "ns_steps" in muon or any(label.startswith("n") for label in muon)
    text = MINIMAL + "optimizer: {name: adamw, n\n"
    client.change(file, text)
    assert set(client.labels(file, (4, len(text.split("\n")[4])))) != muon


def test_completion_in_toml(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = 'version = 1\nextends = "shipped:llama3_debug.yaml"\n[optimizer]\nname = \n[train\n'
    client.open(file, text)
    assert "adamw" in client.labels(file, (3, len("name = ")))
    assert "training" in client.labels(file, (4, len("[train")))
    items = client.ask("completion", file, (3, len("name = ")))["items"]
    assert any(item["textEdit"]["newText"] == '"adamw"' for item in items)


def test_references_and_files_are_completed(client: Client, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "fast.yaml").write_text("training: {steps: 1}\n")
    file = tmp_path / "mine.yaml"
    client.open(file, MINIMAL + "x: 1\n")
    client.change(file, MINIMAL + "metrics: {description: '${tr\n")
    line = "metrics: {description: '${tr"
    assert "training.steps" in client.labels(file, (4, len(line)))
    client.change(file, "version: 1\nextends: [p\n")
    labels = client.labels(file, (1, len("extends: [p")))
    assert {"parts/fast.yaml", "shipped:llama3_debug.yaml"} <= set(labels)
    assert "mine.yaml" not in labels


def test_hover_describes_the_component_in_use(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    client.open(file, MINIMAL + "optimizer: {name: adamw, lr: 1e-3}\n")
    lr = client.ask("hover", file, (4, len("optimizer: {name: adamw, l")))["contents"]["value"]
    assert "optimizer.lr" in lr
    assert "default" in lr
    assert lr.count("accepts") == 1
    assert "value: 0.001" in lr
    name = client.ask("hover", file, (4, len("optimizer: {name: ad")))["contents"]["value"]
    assert "optimizer:adamw" in name
    assert client.ask("hover", file, (9, 0)) is None


def test_hover_shows_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HF_TOKEN", "hf_abcdefghijkl")
    client = Client()
    file = tmp_path / "mine.yaml"
    schema = json.loads((ROOT / "schemas" / "recipe.schema.json").read_text())
    assert "metrics" in schema["properties"]
    text = MINIMAL + "metrics:\n  trackers:\n  - {name: wandb, api_key: '${env:MY_HF_TOKEN}'}\n"
    found = client.open(file, text)
    column = len("  - {name: wandb, api_k")
    hover = client.ask("hover", file, (6, column))
    assert "hf_abcdefghijkl" not in json.dumps([found, hover, client.diagnostics])
    client.close()


def test_definition_leads_to_files_references_and_classes(client: Client, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(MINIMAL)
    file = tmp_path / "mine.yaml"
    text = (
        "version: 1\nextends: base.yaml\nname: run-${debug.seed}\ndebug: {seed: 3}\n"
        "optimizer: adamw\n"
    )
    client.open(file, text)
    base = client.ask("definition", file, (1, len("extends: ba")))
    assert base["uri"] == (tmp_path / "base.yaml").as_uri()
    seed = client.ask("definition", file, (2, len("name: run-${deb")))
    assert seed["uri"] == file.as_uri()
    assert seed["range"]["start"] == {"line": 3, "character": len("debug: {")}
    source = client.ask("definition", file, (4, len("optimizer: ad")))
    path = Path(source["uri"].removeprefix("file://"))
    line = path.read_text().split("\n")[source["range"]["start"]["line"]]
    assert line.startswith(("class AdamW", "@"))
    links = client.request("textDocument/documentLink", {"textDocument": {"uri": file.as_uri()}})
    assert [link["target"] for link in links] == [(tmp_path / "base.yaml").as_uri()]


def test_outline_and_values_of_auto(tmp_path: Path) -> None:
    client = Client(options={"inlayHints": True})
    file = tmp_path / "mine.yaml"
    client.open(file, MINIMAL + "  global_batch_size: auto\n")
    uri = {"textDocument": {"uri": file.as_uri()}}
    symbols = client.request("textDocument/documentSymbol", uri)
    names = {symbol["name"]: [child["name"] for child in symbol["children"]] for symbol in symbols}
    assert names["training"] == ["steps", "global_batch_size"]
    where = {"start": {"line": 0, "character": 0}, "end": {"line": 9, "character": 0}}
    hints = client.request("textDocument/inlayHint", {**uri, "range": where})
    assert [hint["position"]["line"] for hint in hints] == [4]
    assert hints[0]["label"].removeprefix("= ").isdigit()
    client.close()


def test_a_part_of_a_recipe_is_not_asked_for_what_it_leaves_out(
    client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "part.yaml"
    head = "# yaml-language-server: $schema=recipe.schema.json\n"
    found = client.open(file, head + "training: {stepz: 1}\n")
    assert [diagnostic["code"] for diagnostic in found] == ["unknown-key"]


def test_a_resolved_recipe_gets_no_edits(client: Client, tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "titanrun", "show", "llama3_debug", "--resolved"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    file = tmp_path / "resolved.yaml"
    client.open(file, shown)
    assert client.labels(file, (3, 0)) == []
    assert client.actions(file, 3) == []


def test_a_missing_package_is_a_problem_with_its_extra() -> None:
    script = (
        "import sys; sys.modules['pygls'] = None; from titanrun.cli.main import run; "
        "sys.exit(run(['lsp']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert 'pip install "titanrun[lsp]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cancelled_request_is_answered_and_the_session_goes_on(
    client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    client.open(file, MINIMAL)
    # the examination holds the examiner: the request waits, and is given up meanwhile
    client.change(file, MINIMAL + "stepz: 1\n")
    client.number += 1
    number = client.number
    place = {
        "textDocument": {"uri": file.as_uri()},
        "position": {"line": 3, "character": 4},
    }
    client.send({"id": number, "method": "textDocument/hover", "params": place})
    client.notify("$/cancelRequest", {"id": number})
    while (message := client.receive()).get("id") != number:
        pass
    # -32800 is RequestCancelled of the protocol; the answer may have been on its way already
    assert message.get("error", {}).get("code", -32800) == -32800, message
    assert "training.steps" in json.dumps(client.ask("hover", file, (3, 4)))


def test_questions_are_answered_while_edits_are_examined(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    client.open(file, MINIMAL)
    for number in range(20):
        version = client.change(file, MINIMAL + f"  seq_len: {64 + number}\n" + "x" * (number % 2))
        assert "training.steps" in json.dumps(client.ask("hover", file, (3, 4))), number
    assert [found["code"] for found in client.wait_for(file, version)] == ["syntax"]


def test_the_session_begins_with_initialize_and_ends_with_shutdown(tmp_path: Path) -> None:
    client = Client(initialize=False)
    file = tmp_path / "mine.yaml"
    # ServerNotInitialized
    assert client.find_error("textDocument/hover", client.at(file, (0, 0))) == -32002
    client.initialize()
    assert client.find_error("initialize", {"processId": None, "capabilities": {}}) == -32600
    client.open(file, MINIMAL)
    assert client.request("shutdown", None) is None
    # InvalidRequest, also for methods that the server does not know
    assert client.find_error("textDocument/hover", client.at(file, (3, 4))) == -32600
    assert client.find_error("shutdown", None) == -32600
    assert client.find_error("titanrun/unknown", None) == -32600
    # notifications are ignored: nothing is published, and what follows is still refused
    client.diagnostics.clear()
    client.change(file, MINIMAL + "stepz: 1\n")
    client.notify("textDocument/didClose", {"textDocument": {"uri": file.as_uri()}})
    time.sleep(0.5)
    assert client.find_error("textDocument/hover", client.at(file, (3, 4))) == -32600
    assert client.diagnostics == {}
    assert client.leave() == 0


UNREADABLE: list[tuple[dict[str, Any], int]] = [
    ({"method": "textDocument/hover", "params": {"textDocument": 1}}, -32602),
    ({"method": "textDocument/hover", "params": None}, -32602),
    ({"method": "textDocument/hover"}, -32602),
    ({"method": "textDocument/codeAction", "params": {"position": {"line": "two"}}}, -32602),
    ({"method": "textDocument/completion", "params": [1, 2]}, -32602),
    ({"method": "titanrun/unknown", "params": {}}, -32601),
    ({"method": "titanrun/unknown"}, -32601),
    ({"method": "shutdown", "jsonrpc": "1.0"}, -32600),
]


@pytest.mark.parametrize(("message", "code"), UNREADABLE)
def test_a_request_that_cannot_be_read_is_answered_with_an_error(
    client: Client, tmp_path: Path, message: dict[str, Any], code: int
) -> None:
    client.number += 1
    client.send({"id": client.number, **message})
    answer = client.receive()
    assert (answer["id"], answer["error"]["code"]) == (client.number, code)
    file = tmp_path / "mine.yaml"
    client.open(file, MINIMAL)
    assert "training.steps" in json.dumps(client.ask("hover", file, (3, 4)))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b'"\xff"', -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b'{"jsonrpc": "2.0", "method": 1, "id": true}', -32600),
        (b'{"id": {"a": 1}, "method": "shutdown"}', -32600),
    ],
)
def test_a_message_without_a_usable_id_is_answered_with_a_null_id(
    client: Client, tmp_path: Path, body: bytes, code: int
) -> None:
    client.write(body)
    answer = client.receive()
    assert (answer["id"], answer["error"]["code"]) == (None, code)
    file = tmp_path / "mine.yaml"
    client.open(file, MINIMAL)
    assert "training.steps" in json.dumps(client.ask("hover", file, (3, 4)))


@pytest.mark.parametrize("begin", [False, True])
def test_exit_without_shutdown_is_a_failure(begin: bool) -> None:
    assert Client(initialize=begin).leave() == 1


@pytest.mark.parametrize("has_site", [True, False])
def test_codes_link_to_the_site_that_the_metadata_names(has_site: bool, tmp_path: Path) -> None:
    address = "https://docs.test/latest"
    urls = {"Documentation": address} if has_site else {}
    client = Client(environment=build_environment(tmp_path / "packages", urls))
    file = tmp_path / "mine.yaml"
    found = client.open(file, MINIMAL + "  stepz: 5\nparallelism: {tensor_parallel_degree: 3}\n")
    assert client.close() == 0
    read = [get_converter().structure(item, types.Diagnostic) for item in found]
    links = {item.code: item.code_description and item.code_description.href for item in read}
    rules = [str(code).partition("/")[2] for code in links if code != "unknown-key"]
    assert "heads-divide-over-tp" in rules
    expected = {"unknown-key": f"{address}/reference/problem_codes.html#unknown-key"}
    expected |= {f"conflict/{rule}": f"{address}/reference/rules.html#{rule}" for rule in rules}
    assert links == (expected if has_site else dict.fromkeys(expected))
    assert all(("codeDescription" in item) == has_site for item in found)
