"""The commands through the installed script, as their users run them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.cli.main import COMMAND_SYNONYMS, COMMANDS, report_unknown_command

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "recipes" / "llama3_debug.yaml")


def titanrun(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "titanrun", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


def test_validate_says_ok_and_writes_nothing(tmp_path: Path) -> None:
    done = titanrun("validate", DEBUG, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "",
        f"{DEBUG}: ok\nnext: titanrun train {DEBUG}\n",
    )
    assert list(tmp_path.iterdir()) == []
    assert titanrun("validate", "-q", DEBUG, cwd=tmp_path).stderr == ""


def test_validate_reports_every_file_and_every_mistake(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "version: 1\nmodel: llama\ntraining: {dataset: tiny, stepz: 3}\n", encoding="utf-8"
    )
    (tmp_path / "b.yaml").write_text(
        "version: 1\nversion: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: "
        "{dataset: tiny}\n",
        encoding="utf-8",
    )
    done = titanrun("validate", "a.yaml", "b.yaml", DEBUG, "--format", "json", cwd=tmp_path)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(problem["file"], problem["line"], problem["code"]) for problem in found] == [
        ("a.yaml", 2, "unknown-name"),
        ("a.yaml", 3, "unknown-key"),
        ("b.yaml", 2, "duplicate-key"),
    ]
    assert (done.returncode, done.stderr) == (2, "")


def test_strict_makes_warnings_fail(tmp_path: Path) -> None:
    overrides = ["training.steps=400", "lr_scheduler.total_steps=200"]
    assert titanrun("validate", DEBUG, *overrides, cwd=tmp_path).returncode == 0
    assert titanrun("validate", DEBUG, *overrides, "--strict", cwd=tmp_path).returncode == 1


def test_validate_asks_whether_the_degrees_fit_a_number_of_processes(tmp_path: Path) -> None:
    shards = "parallelism.data_parallel_shard_degree=4"
    for ranks, said in (
        ("6", "dp_shard 4 needs 4 ranks, but world_size is 6"),
        ("2", "dp_shard 4 needs 4 ranks, but world_size is 2"),
    ):
        assert (
            said in titanrun("validate", DEBUG, shards, "--world-size", ranks, cwd=tmp_path).stderr
        )
    assert (
        "degrees-fill-ranks"
        not in titanrun("validate", DEBUG, shards, "--world-size", "4", cwd=tmp_path).stderr
    )
    assert "degrees-fill-ranks" not in titanrun("validate", DEBUG, shards, cwd=tmp_path).stderr
    assert titanrun("validate", DEBUG, "--world-size", "8", cwd=tmp_path).returncode == 0
    assert (
        "--world-size 0 is below 1"
        in titanrun("validate", DEBUG, "--world-size", "0", cwd=tmp_path).stderr
    )


def test_diff_config_exits_as_diff_does(tmp_path: Path) -> None:
    same = titanrun("diff-config", DEBUG, DEBUG.replace(".yaml", ".toml"), cwd=tmp_path)
    assert (same.returncode, same.stdout) == (0, "")
    changed = titanrun(
        "diff-config", DEBUG, DEBUG, "optimizer.lr=1e-2", "metrics.log_freq=3", cwd=tmp_path
    )
    assert changed.returncode == 1
    lines = changed.stdout.splitlines()
    assert lines[0].startswith("optimizer.lr      0.002 (")
    assert lines[0].endswith("-> 0.01 (override 1)  numerics, a resume refuses it")
    assert lines[1].endswith("bookkeeping, a resume allows it")
    assert titanrun("diff-config", DEBUG, "nowhere.yaml", cwd=tmp_path).returncode == 2


def test_diff_config_of_a_recipe_and_its_resolved_form_is_empty(tmp_path: Path) -> None:
    (tmp_path / "resolved.yaml").write_text(
        titanrun("show", DEBUG, cwd=tmp_path).stdout, encoding="utf-8"
    )
    done = titanrun("diff-config", DEBUG, str(tmp_path), "--format", "json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def test_show_prints_a_section_a_value_and_sources(tmp_path: Path) -> None:
    assert titanrun("show", DEBUG, "training.seq_len", cwd=tmp_path).stdout == "256\n"
    shown = titanrun("show", DEBUG, "tokenizer", cwd=tmp_path).stdout
    assert shown == 'name: "tiny"\nchat_template: null\nstop_tokens: []\n'
    sources = titanrun(
        "show", DEBUG, "optimizer.lr", "--sources", "optimizer.lr=3", cwd=tmp_path
    ).stdout
    assert sources.split() == ["optimizer.lr", "3.0", "<override", "1>", "(over", f"{DEBUG}:17:7)"]
    wrong = titanrun("show", DEBUG, "optimizer.lrr", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "did you mean 'optimizer.lr'?" in wrong.stderr


def test_show_minimal_of_a_resolved_recipe_is_a_recipe_for_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "resolved.yaml").write_text(
        titanrun("show", DEBUG, cwd=tmp_path).stdout, encoding="utf-8"
    )
    (tmp_path / "short.yaml").write_text(
        titanrun("show", "resolved.yaml", "--minimal", cwd=tmp_path).stdout, encoding="utf-8"
    )
    assert titanrun("show", "short.yaml", cwd=tmp_path).stdout == (
        tmp_path / "resolved.yaml"
    ).read_text(encoding="utf-8")
    refused = titanrun("show", DEBUG, "optimizer", "--minimal", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--minimal shows the whole recipe" in refused.stderr


def test_ls_lists_names_and_flavors(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in titanrun("ls", "--json", cwd=tmp_path).stdout.splitlines()]
    named = {(row["kind"], row["name"]) for row in rows}
    assert {
        ("recipes", "llama3_debug.yaml"),
        ("models", "llama3"),
        ("optimizers", "adamw"),
        ("datasets", "tokens"),
    } <= named
    assert "405B" in next(
        row["description"] for row in rows if (row["kind"], row["name"]) == ("models", "llama3")
    )
    assert (
        titanrun("ls", "modls", cwd=tmp_path).stderr
        == "error[usage]: unknown kind 'modls'\n  = help: did you mean 'models'?\n"
    )


def test_cp_keeps_comments_and_never_overwrites(tmp_path: Path) -> None:
    assert titanrun("cp", "llama3_debug", "mine.yaml", cwd=tmp_path).returncode == 0
    comments = [
        line
        for line in Path(DEBUG).read_text(encoding="utf-8").splitlines()[1:]
        if line.startswith("#")
    ]
    assert comments == [
        line
        for line in (tmp_path / "mine.yaml").read_text(encoding="utf-8").splitlines()[1:]
        if line.startswith("#")
    ]
    assert titanrun("validate", "mine.yaml", cwd=tmp_path).returncode == 0
    again = titanrun("cp", "llama3_debug", "mine.yaml", cwd=tmp_path)
    assert again.returncode == 2
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "did you mean 'train'?"),
        (["-v", "validate", "x"], "options follow the command: titanrun validate x -v"),
        (["--quiet"], "options follow the command: titanrun COMMAND --quiet"),
        (["train"], "the following arguments are required: recipe"),
        (["train", "nowhere.yaml"], "nowhere.yaml"),
        (["train", "."], "is a directory"),
        (["plan", DEBUG, "\n"], "unexpected argument ''\n  = help: see titanrun plan --help"),
        (
            ["validate", DEBUG, "--levle", "rules"],
            "unknown option '--levle'\n  = help: did you mean '--level'?",
        ),
        (["train", DEBUG, "--learning_rate", "1e-4"], "  = help: write optimizer.lr=1e-4\n"),
        (["train", DEBUG, "training.stepz=3"], "did you mean 'steps'?"),
    ],
    ids=str,
)
def test_a_mistake_on_the_command_line_is_a_problem(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = titanrun(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error[")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself_with_examples(command: str, tmp_path: Path) -> None:
    done = titanrun(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"\n  titanrun {command}" in done.stdout.split("\nexamples:")[1]


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{titanrun} explain --all | head -1 > first; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{titanrun} ls | true; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{titanrun} ls >&-", 0, ""),
        (
            "{titanrun} --version > /dev/full",
            2,
            "error[file]: cannot write the output: no space left on device\n",
        ),
    ],
    ids=["a reader that stops", "no reader", "a closed stdout", "a full disk"],
)
def test_an_answer_that_cannot_get_out_is_no_traceback(
    tmp_path: Path, shell: str, code: int, said: str
) -> None:
    line = shell.format(titanrun=f"{sys.executable} -m titanrun")
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize(("typed", "meant"), COMMAND_SYNONYMS.items())
def test_another_word_for_a_command_is_told_its_name(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed not in COMMANDS and meant.split()[0] in COMMANDS
    assert report_unknown_command(typed) == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


def test_the_subcommands_that_are_suggested_exist(tmp_path: Path) -> None:
    for meant in sorted(set(COMMAND_SYNONYMS.values())):
        assert titanrun(*meant.split(), "--help", cwd=tmp_path).returncode == 0, meant
