"""Completion: what is offered where, that bash really gets it, and that nobody waits for it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.cli.command_syntax import COMMAND_SYNTAX, NO_VALUE
from titanrun.cli.complete import find_candidates
from titanrun.cli.completion import SCRIPTS
from titanrun.cli.main import COMMANDS
from titanrun.config.tree import format_path
from titanrun.recipe.reference.schema_topics import find_field_locations, list_explainable_paths

ROOT = Path(__file__).parents[2]
OPTION = re.compile(r"^  (?:-\w(?: \w+)?, )?(--[a-z-]+)(?: \[?(\{[^}]*\}|\w+))?", re.MULTILINE)


def help_of(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", command, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_every_command_is_completed() -> None:
    assert set(COMMAND_SYNTAX) == set(COMMANDS)
    assert set(COMMANDS) <= set(find_candidates([""]))
    assert find_candidates(["vali"]) == ["validate"]
    assert find_candidates(["nonsense", ""]) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_are_those_that_help_shows(command: str) -> None:
    shown = {
        name: value
        for name, value in OPTION.findall(help_of(command))
        if name not in ("--help", "--quiet", "--verbose")
    }
    assert set(shown) == set(COMMAND_SYNTAX[command].options)
    for name, value in COMMAND_SYNTAX[command].options.items():
        assert bool(shown[name]) == (value != NO_VALUE), name
        if shown[name].startswith("{"):
            assert shown[name] == "{" + ",".join(value or ()) + "}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train x.yaml train", ["training."]),
        ("train x.yaml training.st", ["training.steps="]),
        ("train x.yaml a=b training.st", ["training.steps="]),
        ("train x.yaml --training.st", ["--training.steps="]),
        (
            "train --nproc 1 x.yaml training.gc_debug=",
            ["training.gc_debug=true", "training.gc_debug=false"],
        ),
        (
            "train x.yaml optimizer.implementation=fo",
            ["optimizer.implementation=foreach", "optimizer.implementation=for-loop"],
        ),
        (
            "train x.yaml loss=",
            [
                "loss=auto",
                "loss=chunked_cross_entropy",
                "loss=cpo",
                "loss=cross_entropy",
                "loss=distillation",
                "loss=dpo",
                "loss=flow_matching",
                "loss=ipo",
                "loss=kto",
                "loss=mse",
                "loss=multi_token_cross_entropy",
                "loss=orpo",
                "loss=reward",
                "loss=simpo",
            ],
        ),
        (
            "train x.yaml tokenizer=",
            [
                "tokenizer=characters",
                "tokenizer=huggingface",
                "tokenizer=tiny",
                "tokenizer=auto",
                "tokenizer=null",
            ],
        ),
        ("train x.yaml metrics.trackers[0].f", ["metrics.trackers[0].folder="]),
        ("train x.yaml conver", ["converters[0].", "converters="]),
        ("train x.yaml nonsense.", []),
        ("show x.yaml debug.se", ["debug.seed"]),
        ("validate --level e", ["environment"]),
        (
            "explain optimizer:ada",
            ["optimizer:adam", "optimizer:adamw", "optimizer:adamw_8bit", "optimizer:adamw_fp8"],
        ),
        ("validate x.yaml --st", ["--stages[0].", "--stdin-name", "--strict"]),
        ("explain unknown-", ["unknown-key", "unknown-name"]),
        ("ls mod", ["models"]),
        ("cat llama3_debug.y", ["llama3_debug.yaml"]),
        ("plan gpt_oss_d", ["gpt_oss_debug"]),
        ("completion f", ["fish"]),
    ],
)
def test_what_is_offered(line: str, expected: list[str]) -> None:
    offered = find_candidates(line.split(" "))
    assert sorted(offered) == sorted(expected)


def test_files_are_recipes_and_folders(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.toml", "c.py", ".hidden.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "deeper").mkdir()
    offered = find_candidates(["train", f"{tmp_path}/"])
    assert offered == [f"{tmp_path}/a.yaml", f"{tmp_path}/b.toml", f"{tmp_path}/deeper/"]
    assert find_candidates(["train", f"{tmp_path}/."]) == [f"{tmp_path}/.hidden.yaml"]
    assert find_candidates(["train", f"{tmp_path}/nowhere/"]) == []


def test_every_path_of_a_recipe_is_offered() -> None:
    for path in list_explainable_paths():
        found = find_field_locations(tuple(path.split(".")))
        written = format_path(found[0].path)
        offered = find_candidates(["train", "x.yaml", written])
        assert any(
            re.fullmatch(re.escape(written) + r"(=|\.|\[0\]\.)", word) for word in offered
        ), written


def complete_in_bash(words: list[str], folder: Path) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    lines = [
        f'titanrun() {{ {sys.executable} -m titanrun "$@"; }}',
        "source <(titanrun completion bash)",
        f"COMP_WORDS=({quoted})",
        f"COMP_CWORD={len(words) - 1}",
        "_titanrun",
        'printf "%s\\n" "${COMPREPLY[@]}"',
        "complete -p titanrun",
    ]
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    *offered, registered = done.stdout.splitlines()
    assert (registered, done.stderr) == ("complete -F _titanrun titanrun", "")
    return [word for word in offered if word]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["titanrun", "trai"], ["train"]),
        (["titanrun", "train", ""], ["folder/", "mine.yaml"]),
        (["titanrun", "train", "mine.yaml", "training.seq"], ["training.seq_len="]),
        # bash itself splits words at = and :, and replaces only what stands behind
        (
            ["titanrun", "train", "mine.yaml", "optimizer.implementation", "=", "fo"],
            ["foreach", "for-loop"],
        ),
        (["titanrun", "train", "mine.yaml", "debug.deterministic", "="], ["true", "false"]),
        (
            ["titanrun", "train", "mine.yaml", "training.steps", "=", "5", "training.max"],
            ["training.max_norm="],
        ),
        (
            ["titanrun", "explain", "optimizer", ":", "ad"],
            ["adam", "adamw", "adamw_8bit", "adamw_fp8"],
        ),
        (["titanrun", "cp", "llama3_debug.t"], ["llama3_debug.toml"]),
    ],
    ids=str,
)
def test_bash_completes(words: list[str], expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder").mkdir()
    assert complete_in_bash(words, tmp_path) == expected


def test_the_other_scripts_call_the_same_helper() -> None:
    assert SCRIPTS["zsh"].startswith("#compdef titanrun\n")
    assert all(" __complete " in script and "2>/dev/null" in script for script in SCRIPTS.values())
    assert SCRIPTS["zsh"].count("{") == SCRIPTS["zsh"].count("}")
    assert SCRIPTS["fish"].count("function ") == SCRIPTS["fish"].splitlines().count("end") == 1


def test_completing_an_override_imports_no_config() -> None:
    code = (
        "import resource, sys; from titanrun.cli.main import run\n"
        "run(['__complete', 'train', 'x.yaml', 'training.'])\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print([name for name in ('torch', 'pydantic', 'ruamel') if name in sys.modules], "
        "used.ru_utime + used.ru_stime, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, seconds = done.stderr.split("] ")
    assert loaded == "["
    assert float(seconds) < 0.3
    assert "training.steps=" in done.stdout.splitlines()
