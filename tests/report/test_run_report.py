"""`titanrun report`: one page about a run, from its files, that a browser shows."""

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from titanrun.cli import report
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import RunDirectory, write_recipe_files
from titanrun.report import html_page, private_facts
from titanrun.report.run_report import build_run_report as build_page
from titanrun.report.settings import format_recorded_source
from titanrun.runs.log_problems import collect_log_problems

DEBUG = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")
LOG = """2026-01-01 10:00:00,123 INFO all is well
2026-01-01 10:00:05,123 WARNING loss 9.1 at step 7 is a spike
2026-01-01 10:00:09,123 WARNING loss 9.4 at step 9 is a spike
2026-01-01 10:00:10,123 ERROR <script>alert("no")</script>
"""
# elements that have no end
VOID = {"meta", "wbr"}


def build_run_report(runs: list[Path], **options: bool) -> str:
    """The page, without the places where a long name may break."""
    return build_page(runs, **options).replace("<wbr>", "")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory as a run leaves it, without its checkpoints."""
    folder = tmp_path / "run"
    resolved = resolve_recipe(DEBUG, ["optimizer.lr=0.003"], environment={})
    write_recipe_files(RunDirectory(folder, "new"), resolved, ["titanrun", "train"])
    start = {
        "time": "2026-01-01T10:00:00+00:00",
        "argv": ["titanrun", "train", "<b>"],
        "environment": {"packages": {"torch": "2.13.0"}},
    }
    (folder / "run.json").write_text(
        json.dumps({"name": "a <name>", "starts": [{**start, "machine": {"device": "cpu"}}]})
    )
    (folder / "status.json").write_text(json.dumps({"state": "finished", "step": 3}))
    lines = [
        {"step": step, "loss": 9.0 - step, "lr": 1e-3, "tokens_seen": step} for step in (1, 2, 3)
    ]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "lo'
    )
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.log").write_text(LOG)
    return folder


class Balanced(HTMLParser):
    """Keeps which elements are open, and all that would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [
            str(value)
            for name, value in attrs
            if name in ("src", "href") and not str(value).startswith("#")
        ]
        self.ids += [str(value) for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """`<rect/>` opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_shows_what_the_files_say(run: Path) -> None:
    text = build_run_report([run])
    page = Balanced()
    page.feed(text)
    assert (page.open, page.loads) == ([], [])
    assert "<script" not in text and "&lt;script&gt;alert" in text and "a &lt;name&gt;" in text
    assert text.count("<svg") == 2
    assert "llama3 debugmodel trained for 3 steps, 3 tokens" in text
    assert "from 8.0000 to 6.0000" in text
    written = re.search(
        r"<td class=\"code\">optimizer.lr</td><td class=\"code\">0.003</td><td "
        r"class=\"code\">([^<]*)</td>",
        text,
    )
    assert written is not None and written[1] == "override"
    assert "lr_scheduler.decay_type" in text.split("default settings</summary>")[1]


def test_a_problem_is_named_once_with_how_often_it_came(run: Path) -> None:
    found = collect_log_problems(run)
    assert [(met.time, met.level, met.count) for met in found] == [
        ("2026-01-01 10:00:05", "warning", 2),
        ("2026-01-01 10:00:10", "error", 1),
    ]
    assert found[0].log == "rank-0" and found[0].text == "loss 9.1 at step 7 is a spike"


def test_origins_are_places_or_who_decided() -> None:
    place = {"file": "a.yaml", "line": 3, "column": 5}
    assert format_recorded_source({"source": "file", **place}) == "a.yaml:3:5"
    assert format_recorded_source({"source": "decided"}) == "decided"


def test_half_a_run_has_a_page_too_and_what_is_no_run_is_a_problem(
    run: Path, tmp_path: Path
) -> None:
    for name in ("metrics.jsonl", "resolved.yaml", "resolved.sources.json", "status.json"):
        (run / name).unlink()
    text = build_run_report([run])
    assert "no step was logged" in text and "it cannot be read" in text
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProblemsFound, match="is not a run directory"):
        report.run([str(tmp_path / "empty")])
    with pytest.raises(ProblemsFound, match="cannot write"):
        report.run([str(run), "-o", str(tmp_path / "nowhere" / "report.html")])
    assert report.run([str(run)]) == 0
    assert (run / "report.html").read_text().replace("<wbr>", "") == text


def write_run(folder: Path, *overrides: str, **record: Any) -> Path:
    resolved = resolve_recipe(DEBUG, [f"dump_folder={folder}", *overrides], environment={})
    write_recipe_files(RunDirectory(folder, "new"), resolved, ["titanrun", "train"])
    start = {
        "time": "2026-01-01T10:00:00+00:00",
        "argv": ["titanrun", "train", f"{folder.parent}/my.yaml", f"dump_folder={folder}"],
        "cwd": "/home/alice/secret-project",
        "environment": {
            "host": "node-17.internal",
            "user": "alice",
            "packages": {"secret-package": "1.0"},
        },
        "machine": {"device": "cpu"},
    }
    known = {"name": folder.name, "starts": [start], **record}
    (folder / "run.json").write_text(json.dumps(known))
    (folder / "status.json").write_text(
        json.dumps({"state": "finished", "step": 30, "host": "node-17.internal", "boot_id": "b-1"})
    )
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.log").write_text(
        f"2026-01-01 10:00:05,123 WARNING cannot read {folder}/data/a.txt on node-17.internal, nor "
        "/home/alice/secret-project/b.txt, see https://example.org/help/me\n"
    )
    (folder / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"step": step, "loss": 9.0 - step / 10, "time/step_seconds": 0.5}) + "\n"
            for step in range(1, 31)
        )
    )
    return folder


HIDDEN = ("node-17", "alice", "secret-project", "secret-package", "b-1", "/tmp/")


def test_a_page_does_not_say_where_the_run_was_unless_asked(tmp_path: Path) -> None:
    data = "training.dataset={name: text, path: /home/alice/data/*.txt}"
    run = write_run(tmp_path / "mine", data, "validation.enable=false")
    text = build_run_report([run], has_log=True)
    assert [word for word in HIDDEN if word in text] == []
    assert str(tmp_path) not in text
    # what helps a reader stays
    for word in ("data/a.txt", "…/b.txt", "https://example.org/help/me", "…/my.yaml", "…/*.txt"):
        assert word in text, word
    whole = build_run_report([run], has_paths=True, has_log=True)
    for word in ("node-17.internal", "/home/alice/secret-project", "secret-package", str(tmp_path)):
        assert word in whole, word
    assert "rank-0.log" in text and "rank-0.log" not in build_run_report([run])


def test_paths_of_addresses_and_relative_ones_are_no_absolute_paths() -> None:
    redact = private_facts.build_redaction(Path("/runs/mine"), ["big", "localhost"])
    for text in ("hf://datasets/a/b", "s3://bucket/key/x", "a/b/c", "1/2", "8 of 10 /s", "~/x/y"):
        assert redact(text) == text
    assert redact("x=/runs/mine/a/b, /runs/mine-too/c") == "x=a/b, …/c"
    assert redact("big bigger localhost") == "(host) bigger localhost"


def test_several_runs_begin_with_what_differs(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, f"optimizer.lr={rate}", name="same")
        for name, rate in (("slow", 0.001), ("fast", 0.01))
    ]
    text = build_run_report(runs)
    assert [word for word in HIDDEN if word in text] == []
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", text)
    assert headings == ["Differences", "Curves", "slow", "fast"]
    row = re.search(r"optimizer.lr</td><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td>", text)
    assert row is not None and row.groups() == ("0.001", "0.01")
    assert text.count("<svg") == 2 and text.count("<polyline") == 4


def test_both_losses_of_a_run_have_its_color(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, name=name) for name in ("slow", "fast")]
    for run in runs:
        rows = [{"step": step, "loss": 4.0, "validation/loss": 5.0} for step in (1, 2)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawing = build_run_report(runs).partition("</svg>")[0]
    looks = re.findall(r'<polyline class="(s\d)"( stroke-dasharray)?', drawing)
    dashed = " stroke-dasharray"
    assert looks == [("s1", ""), ("s1", dashed), ("s2", ""), ("s2", dashed)]


def test_names_of_runs_are_text_wherever_they_stand(tmp_path: Path) -> None:
    hostile = '"><img src=x onerror=alert(1)><a href="'
    runs = [write_run(tmp_path / name, name=f"{hostile}{name}") for name in ("one", "two")]
    page = Balanced()
    page.feed(build_page(runs, has_log=True))
    assert (page.open, page.loads) == ([], [])
    assert len(page.ids) == len(set(page.ids))


def test_a_fork_and_its_parent_name_each_other(tmp_path: Path) -> None:
    parent = write_run(tmp_path / "parent")
    checkpoint = parent / "checkpoint" / "step-20"
    checkpoint.mkdir(parents=True)
    fork = write_run(tmp_path / "fork", parent={"checkpoint": str(checkpoint), "step": 20})
    assert "fork began from step 20 of this run." in build_run_report([parent])
    assert "It began from step 20 of …/step-20." in build_run_report([fork])


def test_a_stage_names_the_stages_of_its_recipe_in_order(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run = write_run(whole / "dpo")
    assert "It is stage" not in build_run_report([run])
    (whole / "stages.yaml").write_text("stages: [{id: sft}, {id: dpo}, {id: rl}]\n")
    assert "It is stage 2 of 3: sft, dpo, rl." in build_run_report([run])
    # another run in that folder is no stage, and a broken file tells nothing
    assert "It is stage" not in build_run_report([write_run(whole / "other")])
    (whole / "stages.yaml").write_text("stages: 7\n")
    assert "It is stage" not in build_run_report([run])


def test_a_page_of_100_000_steps_stays_small(tmp_path: Path) -> None:
    run = write_run(tmp_path / "long")
    names = [*(f"rl/metric_{number}" for number in range(5)), "grad_norm", "lr", "tps", "loss"]
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, 100_001):
            values = ", ".join(f'"{name}": {step * 7919 % 1009 / 1009:.6f}' for name in names)
            file.write(f'{{"step": {step}, {values}}}\n')
    text = build_page([run])
    assert text.count("<svg") == len(names)
    assert len(text.encode()) < 400_000


def test_colors_are_those_of_the_pages(tmp_path: Path) -> None:
    own = Path(html_page.__file__).with_name("tokens.css")
    ui = Path(__file__).parents[2] / "ui" / "src" / "tokens.css"
    assert own.read_text() == ui.read_text()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """A page of a browser that fails for whatever it is told."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=sandbox)
        shown = browser.new_page()
        faults: list[str] = []
        shown.on("console", lambda message: faults.append(message.text))
        shown.on(
            "request", lambda request: request.url.startswith("file:") or faults.append(request.url)
        )
        yield shown
        browser.close()
        assert faults == []


AXE = Path(__file__).parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.mark.browser
@pytest.mark.parametrize("count", [1, 2])
def test_axe_finds_nothing_and_no_page_is_too_wide(page: Any, tmp_path: Path, count: int) -> None:
    runs = [
        write_run(tmp_path / f"a-run-with-a-long-name-{number}", f"optimizer.lr=0.00{number + 1}")
        for number in range(count)
    ]
    file = tmp_path / "report.html"
    file.write_text(build_page(runs, has_log=True))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (320, 390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(f"file://{file}")
            for details in page.query_selector_all("details"):
                details.evaluate("element => { element.open = true }")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = page.evaluate(AXE.read_text() + "; axe.run(document)")
            faults = [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]]
            assert faults == [], (scheme, width)


# words of names, figures and settings that are on more than one line
BROKEN_WORDS = """() => {
  const broken = [];
  const walker = document.createTreeWalker(document.querySelector('body'), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest('pre, style')) continue;
    for (const word of node.data.matchAll(/[A-Za-z0-9]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
      if (lines.size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""


@pytest.mark.browser
@pytest.mark.parametrize("count", [1, 3])
def test_no_word_breaks_on_a_phone(page: Any, tmp_path: Path, count: int) -> None:
    runs = [
        write_run(
            tmp_path / f"pretraining_llama3.debugmodel_on_fineweb_edu-{number}",
            f"optimizer.lr=0.00{number + 1}",
        )
        for number in range(count)
    ]
    file = tmp_path / "report.html"
    file.write_text(build_page(runs))
    for width in (320, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"file://{file}")
        for details in page.query_selector_all("details"):
            details.evaluate("element => { element.open = true }")
        assert page.evaluate(BROKEN_WORDS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_names_break_at_their_dots_and_slashes_and_numbers_never() -> None:
    names = {
        "model.hf_assets_path": "model.|hf_|assets_|path",
        "runs/a_b/x.yaml:3": "runs/|a_|b/|x.yaml:3",
        "a.yamls.b": "a.|yamls.|b",
        "on 2026-01-31 10:00": 'on <span class="date">2026-01-31</span> 10:00',
        "lr=3.5e-3 <b>": "lr=|3.5e-3 &lt;b&gt;",
        "1.25 of 10/20": "1.25 of 10/20",
        "": "",
    }
    for name, expected in names.items():
        assert html_page.escape_name(name).replace("<wbr>", "|") == expected
