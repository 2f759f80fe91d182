"""`titanrun serve` and `chat`: who may reach a server, and options out of range."""

import pytest

from titanrun.cli import chat
from titanrun.cli.serve import get_model_name, run
from titanrun.config.problems import ProblemsFound


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--host", "0.0.0.0"], "lets other machines in, and there is no key"),
        (["--host", "example.org"], "lets other machines in, and there is no key"),
        (["--api-key-env", "TITANRUN_NO_SUCH_KEY"], "TITANRUN_NO_SUCH_KEY is not set"),
        (["--port", "70000"], "--port is 0 to 65535"),
        (["--queue", "-1"], "--queue is 0 or more"),
        (["--max-concurrent", "0"], "--max-concurrent is 1 or more"),
        (["--cors", "localhost"], "--cors is an origin"),
        (["--engine", "vllm", "--base"], "--base is for --engine titanrun"),
        (["--engine", "vllm", "--queue", "4"], "--queue is for --engine titanrun"),
        (["--engine", "vllm", "--port", "0"], "--port 0 is for --engine titanrun"),
        (["--max-seq-len", "1"], "--max-seq-len is 2 or more"),
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
        (["--temperature", "-1"], "--temperature is 0 or more"),
        (["--top-p", "0"], "--top-p is above 0"),
        (["--seed", "-1"], "--seed is 0 or more"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 1 or more"),
    ],
)
def test_a_conversation_has_options_within_their_range(words: list[str], told: str) -> None:
    with pytest.raises(ProblemsFound, match=told):
        chat.run(["folder", *words])
