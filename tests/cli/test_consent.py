"""Code that a recipe names runs after the user has allowed it, once, and nowhere else.

Row B16 of the defect list: a plain `train` ran a reward or environment command, with the whole
environment.
"""

import io
import json
import os
import shlex
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from tests.rl.parts import TEXT
from titanrun.cli import consent, main
from titanrun.cli.consent import request_consent
from titanrun.config.problems import ProblemsFound
from titanrun.config.trust import TRUST_VARIABLE, get_trust_folder
from titanrun.distributed.rank_env import build_program_environment
from titanrun.recipe.consent.recipe_code import check_code_is_trusted, find_recipe_code
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.worker import rank_main

REWARD = """
import json, os, sys
for line in sys.stdin:
    print(json.dumps({"reward": len(json.loads(line)["answer"]) % 3}), flush=True)
open("ran", "w").write(json.dumps(dict(os.environ)))
"""
NO_ANSWER = Namespace(trust=False, trust_remote_code=False, quiet=False)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe that names a reward program, and a user who has allowed nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "rl.yaml").write_text(TEXT)
    return tmp_path


def overrides(*words: str) -> list[str]:
    command = list(words or (sys.executable, "reward.py"))
    rewards = json.dumps([{"name": "command", "command": command}])
    return [f"rl.rewards={rewards}", "rl.validation.dataset=null", "training.steps=1"]


def resolved(*more: str, words: tuple[str, ...] = ()) -> Resolved:
    return resolve_recipe("rl.yaml", [*overrides(*words), *more], environment={})


def refusals(run: Resolved) -> list[str]:
    """Paths of the code that needs consent."""
    try:
        request_consent([run], NO_ANSWER, ["train", "rl.yaml"])
    except ProblemsFound as found:
        return [".".join(map(str, problem.path)) for problem in found.problems]
    return []


def test_without_consent_nothing_runs_and_the_problem_has_the_command_that_gives_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "rl.yaml", *overrides(), "dump_folder=run"]
    assert main.run(words) == 2
    told = capsys.readouterr().err
    assert "rl.rewards[0].command runs code that you have not allowed" in told
    assert shlex.join(["titanrun", "train", "--trust", *words[1:]]) in told
    assert not (place / "run").exists() and not (place / "ran").exists()


def test_a_worker_that_anything_started_refuses_too(place: Path) -> None:
    (place / "run").mkdir()
    (place / "run" / "resolved.yaml").write_text(resolved().text)
    assert rank_main.main([str(place / "run" / "resolved.yaml")]) == 2
    assert "have not allowed" in (place / "run" / "logs" / "rank-0.log").read_text()
    assert not (place / "ran").exists()


def test_validate_lists_the_code_and_with_trust_remembers_it_per_digest(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["validate", "rl.yaml", *overrides()]) == 0
    assert "runs code, not allowed yet: rl.rewards[0].command: " in capsys.readouterr().err
    assert refusals(resolved()) == ["rl.rewards.0.command"]
    assert main.run(["validate", "--trust", "rl.yaml", *overrides()]) == 0
    os.environ.pop(TRUST_VARIABLE, None)
    assert main.run(["validate", "rl.yaml", *overrides()]) == 0
    assert "runs code, allowed: rl.rewards[0].command: " in capsys.readouterr().err
    assert refusals(resolved()) == []
    assert get_trust_folder(os.environ).stat().st_mode & 0o077 == 0
    # other settings do not matter, other words and other content do
    assert refusals(resolved("training.seq_len=32")) == []
    assert refusals(resolved(words=(sys.executable, "reward.py", "-v"))) != []
    (place / "reward.py").write_text(REWARD + "# changed\n")
    assert refusals(resolved()) != []


def test_the_same_words_in_another_folder_are_other_code(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("make", "reward")
    assert refusals(resolved(words=words)) != []
    request_consent(
        [resolved(words=words)], Namespace(trust=True, trust_remote_code=False, quiet=False), []
    )
    assert refusals(resolved(words=words)) == []
    other = place / "of a stranger"
    other.mkdir()
    (other / "rl.yaml").write_text(TEXT)
    monkeypatch.chdir(other)
    assert refusals(resolved(words=words)) != []


def test_a_person_at_a_terminal_is_asked_and_a_yes_is_remembered(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consent, "is_interactive", lambda: True)
    for said in ("n\n", "\n", ""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        assert refusals(resolved()) == ["rl.rewards.0.command"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert refusals(resolved()) == []
    assert "reward.py" in capsys.readouterr().err
    monkeypatch.setattr(consent, "is_interactive", lambda: False)
    assert refusals(resolved()) == []


def test_what_is_shown_of_a_command_is_one_line_without_control_characters(place: Path) -> None:
    run = resolved(words=("sh", "-c", "true\n\x1b[2K\u202eevil"))
    (code,) = find_recipe_code(run.run, place)
    assert code.text == "sh -c 'true\\n\\u001b[2K\\u202eevil'"


def test_environments_and_tasks_and_batch_scripts_are_covered(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = "rl.environment={name: program, command: [./world]}"
    assert refusals(resolve_recipe("rl.yaml", [world], environment={})) == [
        "rl.environment.command"
    ]
    (place / "tasks").mkdir()
    (place / "tasks" / "t.yaml").write_text("task: t\n")
    asked = ["evaluation.tasks=[{name: lm_eval, task: t, folder: tasks}]"]
    assert refusals(resolve_recipe("rl.yaml", asked, environment={})) == []
    (place / "tasks" / "t.yaml").write_text("task: t\ndoc_to_text: !function utils.f\n")
    assert refusals(resolve_recipe("rl.yaml", asked, environment={})) == [
        "evaluation.tasks.0.folder"
    ]
    batch = resolve_recipe(
        "rl.yaml", ["launch={name: slurm, setup: [module load x]}"], environment={}
    )
    assert refusals(batch) == []
    with pytest.raises(ProblemsFound, match=r"launch\.setup runs code"):
        request_consent([batch], NO_ANSWER, ["launch", "rl.yaml"], submits=True)


def test_an_option_allows_the_code_where_nothing_can_be_remembered(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "file"))
    monkeypatch.setenv(TRUST_VARIABLE, "all")
    request_consent(
        [resolved()], Namespace(trust=True, trust_remote_code=False, quiet=False), ["train"]
    )
    assert "consent is not remembered" in capsys.readouterr().err
    check_code_is_trusted(resolved().run, os.environ)


def test_no_leftover_variable_gives_consent(place: Path) -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "train", "rl.yaml", *overrides()],
        env={**os.environ, TRUST_VARIABLE: "all"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2 and "have not allowed" in done.stderr


def test_programs_get_no_secrets_but_the_ones_that_the_recipe_lists(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "HF_TOKEN": "abc",
        "AWS_SECRET_ACCESS_KEY": "abc",
        "DB_PASSWORD": "abc",
        "OPENAI_API_KEY_2": "abc",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "DATABASE": "postgres://me:pass@host/db",
        "JUDGE_API_KEY": "abc",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    given = build_program_environment(["JUDGE_API_KEY"], os.environ)
    assert sorted(set(secrets) & set(given)) == ["JUDGE_API_KEY"]
    assert given["LD_LIBRARY_PATH"] == "/opt/lib" and given["PATH"] == os.environ["PATH"]


def test_a_run_with_consent_gives_its_program_the_filtered_environment(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, "all")
    monkeypatch.setenv("MY_TOKEN", "canary-0123456789")
    program = REWARD.replace("for line", "open('ran', 'w').write(repr(dict(os.environ)))\nfor line")
    (place / "reward.py").write_text(program)
    (place / "run").mkdir()
    (place / "run" / "resolved.yaml").write_text(resolved().text)
    assert rank_main.main([str(place / "run" / "resolved.yaml")]) == 0
    assert "PATH" in (place / "ran").read_text()
    assert "canary" not in (place / "ran").read_text()


def test_the_variables_that_a_program_gets_are_part_of_what_is_allowed(place: Path) -> None:
    reward = {"name": "command", "command": ["./judge"], "secret_variables": ["JUDGE_API_KEY"]}
    (code,) = find_recipe_code(
        resolve_recipe("rl.yaml", [f"rl.rewards={json.dumps([reward])}"], environment={}).run, place
    )
    without = {key: value for key, value in reward.items() if key != "secret_variables"}
    (plain,) = find_recipe_code(
        resolve_recipe("rl.yaml", [f"rl.rewards={json.dumps([without])}"], environment={}).run,
        place,
    )
    assert code.digest != plain.digest and code.text == "./judge (gets JUDGE_API_KEY)"


def test_the_former_option_allows_model_code_only_and_says_its_new_name(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["train", "--trust-remote-code", "rl.yaml", *overrides()]) == 2
    told = capsys.readouterr().err
    os.environ.pop(TRUST_VARIABLE, None)
    assert told.count("warning[deprecated]: --trust-remote-code is now --trust") == 1
    assert "have not allowed" in told


def test_validate_ends_with_the_command_that_is_not_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["rl.yaml", *overrides()]
    assert main.run(["validate", *words]) == 0
    trusting = shlex.join(["titanrun", "train", "--trust", *words])
    assert capsys.readouterr().err.splitlines()[-1] == f"next: {trusting}"
    assert main.run(["validate", "--trust", *words]) == 0
    allowed = shlex.join(["titanrun", "train", *words])
    assert capsys.readouterr().err.splitlines()[-1] == f"next: {allowed}"
