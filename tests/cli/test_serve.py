"""`titanrun serve` and `chat`: who may reach a server, and options out of range."""

from pathlib import Path

import pytest

from titanrun.cli import chat, serve_vllm
from titanrun.cli.serve import get_model_name, run
from titanrun.config.problems import ProblemsFound


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--host", "0.0.0.0"], "lets other machines in, and there is no key"),
        (["--host", "example.org"], "lets other machines in, and there is no key"),
        (["--api-key-env", "TITANRUN_NO_SUCH_KEY"], "TITANRUN_NO_SUCH_KEY is not set"),
        (["--port", "70000"], "--port must be 0 to 65535"),
        (["--queue", "-1"], "--queue must be 0 or more"),
        (["--max-concurrent", "0"], "--max-concurrent must be 1 or more"),
        (["--cors", "localhost"], "--cors must be an origin"),
        (["--engine", "vllm", "--base"], "--base is for --engine titanrun"),
        (["--engine", "vllm", "--queue", "4"], "--queue is for --engine titanrun"),
        (["--engine", "vllm", "--port", "0"], "--port 0 is for --engine titanrun"),
        (["--max-seq-len", "1"], "--max-seq-len must be 2 or more"),
    ],
)
def test_an_open_door_and_wrong_options_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ProblemsFound, match=told):
        run(["folder", *words])


def test_a_model_has_the_name_of_its_run() -> None:
    assert get_model_name("runs/first") == get_model_name("runs/first/checkpoint/step-4") == "first"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--temperature", "-1"], "--temperature must be 0 or more"),
        (["--top-p", "0"], "--top-p must be above 0"),
        (["--seed", "-1"], "--seed must be 0 or more"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be 1 or more"),
    ],
)
def test_a_conversation_has_options_within_their_range(words: list[str], told: str) -> None:
    with pytest.raises(ProblemsFound, match=told):
        chat.run(["folder", *words])


def test_a_prompt_for_a_conversation_is_told_the_command_that_takes_it() -> None:
    with pytest.raises(ProblemsFound) as caught:
        chat.run(["runs/sft", "--prompt", "Say: moon"])
    (problem,) = caught.value.problems
    assert problem.hint == "titanrun generate runs/sft --chat --prompt 'Say: moon'"


def test_two_servers_that_export_at_once_take_the_folder_that_was_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "step-4"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text("{}")
    monkeypatch.setenv("TITANRUN_CACHE", str(tmp_path / "cache"))
    source = {"checkpoint": str(checkpoint), "resolved": ""}
    monkeypatch.setattr(serve_vllm, "get_weight_source", lambda named: source)

    def export(_: dict[str, str], out: Path) -> None:
        """Write a model, which the other server has in its place by then."""
        for name, folder in (("mine", out), ("other", out.parents[1] / place)):
            folder.mkdir()
            (folder / name).touch()

    place = serve_vllm.hash_manifest(checkpoint)
    monkeypatch.setattr(serve_vllm, "export_for_serving", export)
    found = serve_vllm.find_served_folder("run")
    assert [file.name for file in found.iterdir()] == ["other"]
    assert list(found.parent.iterdir()) == [found]
