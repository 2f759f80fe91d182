"""A secret is never written and never shown: a canary in the environment, and everything that a run
writes and prints."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.cli.error_boundary import run_guarded

CANARY = "hf_cAnArY-0123456789"
# of a variable that no recipe names
SECOND_CANARY = "another-cAnArY"
KEEPER = '''
import logging
import os
from pathlib import Path
from typing import ClassVar, Literal

from titanrun.components.metrics.config import TrackerConfig
from titanrun.config.fields import bookkeeping
from titanrun.config.types import Text

PLUGIN_API = 1


class KeeperConfig(TrackerConfig):
    """A tracker that needs a key."""

    name: Literal["keeper"] = bookkeeping("keeper")
    builds: ClassVar = "keeper:Keeper"
    api_key: Text = bookkeeping(secret=True, examples=["${env:KEEPER_KEY}"])
    """What opens the door."""
    spare_key: Text | None = bookkeeping(None, secret=True, examples=["${env:SPARE_KEY}"])
    """What opens the back door."""
    back_door: Text | None = bookkeeping(None, secret=True, examples=["${env:SPARE_KEY}"])
    """A secret under a name that says nothing of it."""
    received: str = bookkeeping("received.txt")
    """Where the test looks for what arrived."""
    breaks: bool = bookkeeping(False)
    """Whether it breaks with the key in its message."""


class Keeper:
    def __init__(self, config, *, run_dir, run_info):
        Path(config.received).write_text(config.api_key)
        (run_dir / "told.txt").write_text(repr(run_info))
        logger = logging.getLogger("titanrun.keeper")
        logger.warning("opening with %s, as %r", config.api_key, config)
        logger.warning("a library says %s", os.environ["OTHER_TOKEN"])
        if config.breaks:
            raise RuntimeError(f"{config.api_key} is refused")

    def log(self, step, values):
        pass

    def close(self):
        pass
'''
RECIPE = """\
version: 1
name: keeping
device: cpu
plugins: [keeper]
model: {name: llama3, flavor: debugmodel, n_layers: 1}
training: {dataset: tiny, seq_len: 16, local_batch_size: 1, steps: 2, mixed_precision_param: float32}
checkpoint: {enable: true, interval: 1}
metrics:
  trackers:
    - {name: keeper, api_key: "${env:KEEPER_KEY}"}
"""  # noqa: E501
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def titanrun(tmp_path: Path) -> Run:
    """Runs a command where the plug-in is installed and the key is in the environment."""
    site = tmp_path / "site"
    info = site / "keeper-1.dist-info"
    info.mkdir(parents=True)
    (site / "keeper.py").write_text(KEEPER, encoding="utf-8")
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: keeper\nVersion: 1\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[titanrun.plugins]\nkeeper = keeper\n", encoding="utf-8"
    )
    work = tmp_path / "work"
    work.mkdir()
    (work / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])

    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "KEEPER_KEY": CANARY,
            "OTHER_TOKEN": SECOND_CANARY,
            **changes,
        }
        command = [sys.executable, "-m", "titanrun", *arguments]
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        for canary in (CANARY, SECOND_CANARY):
            assert canary not in done.stdout + done.stderr, f"{arguments} prints the secret"
        return done

    return run


def leaks(folder: Path) -> list[str]:
    """The files below `folder` that hold the secret."""
    contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [
        str(path)
        for path, content in contents.items()
        if CANARY.encode() in content or SECOND_CANARY.encode() in content
    ]


def plant_in_diff(work: Path) -> list[str]:
    """Makes the folder a repository whose uncommitted changes hold both canaries; gives the file
    that does."""
    (work / "local.env").write_text("first\nlast\n", encoding="utf-8")
    commit = ["git", "-c", "user.email=a@b", "-c", "user.name=n", "commit", "-m", "first"]
    for command in (["git", "init"], ["git", "add", "local.env"], commit):
        subprocess.run(command, cwd=work, check=True, capture_output=True)
    (work / "local.env").write_text(
        f"first\nKEEPER_KEY={CANARY}\n# {SECOND_CANARY}\nlast\n", encoding="utf-8"
    )
    return [str(work / "local.env")]


def test_a_secret_reaches_its_component_and_no_file(titanrun: Run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    planted = plant_in_diff(work)
    received = f"metrics.trackers[0].received={tmp_path / 'received.txt'}"
    done = titanrun("train", "recipe.yaml", "dump_folder=out", received)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "received.txt").read_text() == CANARY
    assert "opening with ***, as KeeperConfig(" in done.stderr
    assert "api_key='***'" in done.stderr
    assert "a library says ***" in done.stderr
    assert "opening with ***" in (work / "out" / "logs" / "rank-0.log").read_text()
    git = json.loads((work / "out" / "run.json").read_text())["starts"][0]["environment"]["git"]
    assert "+KEEPER_KEY=***\n+# ***\n last" in (work / "out" / git["diff"]).read_text()
    assert leaks(work) == planted
    for resolved in (
        work / "out" / "resolved.yaml",
        work / "out" / "checkpoint" / "step-2" / "resolved.yaml",
    ):
        assert 'api_key: "${env:KEEPER_KEY}"' in resolved.read_text()
    # goes on, and breaks with the secret in its message
    again = titanrun(
        "train",
        "recipe.yaml",
        "dump_folder=out",
        received,
        "training.steps=3",
        "metrics.trackers[0].breaks=true",
    )
    assert again.returncode == 70
    assert "resuming after step 2" in again.stderr
    assert "error[internal]: RuntimeError: *** is refused" in again.stderr
    assert "*** is refused" in (work / "out" / "logs" / "internal-error.txt").read_text()
    assert leaks(work) == planted


@pytest.mark.slow
def test_no_command_on_a_run_writes_or_says_a_secret(titanrun: Run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    planted = plant_in_diff(work)
    received = f"metrics.trackers[0].received={tmp_path / 'received.txt'}"
    assert titanrun("train", "recipe.yaml", "dump_folder=out", received).returncode == 0
    assert (
        titanrun("resume", "out", "training.steps=3", "metrics.trackers[0].breaks=true").returncode
        == 70
    )
    assert (
        titanrun("resume", "out", "training.steps=3", "metrics.trackers[0].breaks=false").returncode
        == 0
    )
    again = titanrun("reproduce", "out/checkpoint/step-2", "--out", "again")
    assert (again.returncode, "equal: 2 logged steps" in again.stdout) == (0, True), (
        again.stdout + again.stderr
    )
    for command in (
        ["show", "again/resolved.yaml"],
        ["validate", "again/resolved.yaml", "--level", "environment"],
    ):
        assert titanrun(*command).returncode == 0
    for command in (
        ["checkpoint", "show", "out"],
        ["checkpoint", "verify", "out"],
        ["diff-config", "out", "again"],
    ):
        assert titanrun(*command).returncode in (0, 1)
    assert leaks(work) == planted


def test_the_report_of_an_internal_fault_has_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTHER_TOKEN", SECOND_CANARY)

    def break_off(arguments: list[str]) -> int:
        raise RuntimeError(f"{SECOND_CANARY} {arguments}")

    assert run_guarded(break_off, [f"name={SECOND_CANARY}"]) == 70
    said = " ".join(capsys.readouterr().err.split())
    assert "RuntimeError: *** ['name=***']" in said
    report = Path(said.rpartition(" in ")[2])
    assert "name=***" in report.read_text()
    assert SECOND_CANARY not in report.read_text()
    report.unlink()


def test_commands_show_the_reference(titanrun: Run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    for arguments in (
        ["show", "recipe.yaml"],
        ["show", "recipe.yaml", "--minimal"],
        ["show", "recipe.yaml", "metrics"],
    ):
        assert 'api_key: "${env:KEEPER_KEY}"' in titanrun(*arguments).stdout
    assert '"${env:KEEPER_KEY}"' in titanrun("show", "recipe.yaml", "--sources").stdout
    (work / "resolved.yaml").write_text(titanrun("show", "recipe.yaml").stdout, encoding="utf-8")
    assert titanrun("show", "resolved.yaml").stdout == (work / "resolved.yaml").read_text()
    assert titanrun("diff-config", "recipe.yaml", "resolved.yaml").stdout == ""
    other = "metrics.trackers[0].api_key=${env:OTHER_KEY}"
    for view in ("--written", "--effective"):
        assert (
            "${env:OTHER_KEY}"
            in titanrun(
                "diff-config", "recipe.yaml", "recipe.yaml", other, view, OTHER_KEY=CANARY
            ).stdout
        )
    assert titanrun("validate", "recipe.yaml", "--level", "build").returncode == 0


WRITTEN_OUT = {
    "plain, beside another mistake": f"{{name: keeper, api_key: {CANARY}, frobnicate: 1}}",
    "in quotes": f'{{name: keeper, api_key: "{CANARY}"}}',
    "as the default of a reference": f"{{name: keeper, api_key: '${{env:KEEPER_KEY,{CANARY}}}'}}",
    "beside a reference": f"{{name: keeper, api_key: '${{env:KEEPER_KEY}}{CANARY}'}}",
    "in a list": f"{{name: keeper, api_key: [{CANARY}]}}",
    "in a mapping": f"{{name: keeper, api_key: {{x: {CANARY}}}}}",
    "under a misspelt key": f"{{name: keeper, api_ky: {CANARY}}}",
    "with a tag": f"{{name: keeper, api_key: !!str {CANARY}}}",
    "after another one": f"{{name: keeper, api_key: a, api_key: {CANARY}}}",
    "in a block of text": f"name: keeper\n      api_key: |-\n        {CANARY}",
    "folded": f'name: keeper\n      api_key: "abc\n        {CANARY}"',
    "by an anchor": f"{{name: keeper, api_key: &key {CANARY}, spare_key: *key}}",
}


def written_out(folder: Path, case: str, name: str = "recipe.yaml") -> None:
    recipe = RECIPE.replace('{name: keeper, api_key: "${env:KEEPER_KEY}"}', WRITTEN_OUT[case])
    (folder / "work" / name).write_text(recipe, encoding="utf-8")


def test_a_secret_written_out_is_a_located_problem_that_does_not_show_it(
    titanrun: Run, tmp_path: Path
) -> None:
    files = {case: f"{number}.yaml" for number, case in enumerate(WRITTEN_OUT)}
    for case, name in files.items():
        written_out(tmp_path, case, name)
    done = titanrun("validate", *files.values(), "--json")
    problems = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 2
    for case, name in files.items():
        found = [problem for problem in problems if problem["file"] == name]
        assert found, case
        assert all(problem["line"] in (10, 11) for problem in found), case
        assert {problem["path"] for problem in found} & {
            "metrics.trackers[0].api_key",
            "metrics.trackers[0].api_ky",
        }, case
    assert "^^^^" in titanrun("validate", *files.values()).stderr


@pytest.mark.parametrize("output_format", ["github", "sarif"])
def test_no_format_shows_a_secret_written_out(
    titanrun: Run, tmp_path: Path, output_format: str
) -> None:
    written_out(tmp_path, "plain, beside another mistake")
    assert "recipe.yaml" in titanrun("validate", "recipe.yaml", "--format", output_format).stdout


@pytest.mark.parametrize(("command", "tag"), [("show", ""), ("train", ""), ("validate", "!!str ")])
def test_an_override_does_not_show_its_secret_either(
    titanrun: Run, tmp_path: Path, command: str, tag: str
) -> None:
    done = titanrun(command, "recipe.yaml", f"metrics.trackers[0].api_key={tag}{CANARY}")
    assert done.returncode == 2
    assert "<override 1>" in done.stderr
    assert leaks(tmp_path / "work") == []


def test_nothing_refers_to_a_secret(titanrun: Run) -> None:
    done = titanrun("show", "recipe.yaml", "description=key ${metrics.trackers[0].api_key}")
    assert "'metrics.trackers[0].api_key' is a secret, which references cannot read" in done.stderr


def test_a_secret_that_is_not_set_is_found_before_anything_is_written(
    titanrun: Run, tmp_path: Path
) -> None:
    assert titanrun("validate", "recipe.yaml", KEEPER_KEY="").returncode == 0
    for command in (["validate", "--level", "environment"], ["train"]):
        done = titanrun(*command, "recipe.yaml", KEEPER_KEY="")
        assert (done.returncode, "environment variable 'KEEPER_KEY' is not set" in done.stderr) == (
            2,
            True,
        )
        assert "recipe.yaml:10:31" in done.stderr
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["recipe.yaml"]


@pytest.mark.parametrize(
    "value", ["0123456789", "+0123456789", "1e123456789", '"${env:123456789"', "[0123456789, {}]"]
)
def test_a_secret_under_any_name_is_in_no_problem(
    titanrun: Run, tmp_path: Path, value: str
) -> None:
    """Row B5 of the defect list: a number with a leading zero was quoted with its correction."""
    text = RECIPE.replace("keeper, api", f"keeper, back_door: {value}, api")
    (tmp_path / "work" / "recipe.yaml").write_text(text)
    for shown in ("text", "json"):
        done = titanrun("validate", "recipe.yaml", "--format", shown)
        assert done.returncode == 2 and "123456789" not in done.stdout + done.stderr
        assert "a recipe must not contain a secret" in done.stdout + done.stderr
