"""Commands of a conversation, with a model that says what it is told to."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.config.problems import ProblemsFound
from titanrun.training.token_sampling import SamplingParams
from titanrun.worker.commands.chat import HELP, HINT_ENDLESS, answer_lines, follow, iter_inputs
from titanrun.worker.serving.chat_model import ReplyOptions
from titanrun.worker.serving.chat_session import ChatSession


@pytest.fixture
def talk(open_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session with one model, or two, and what it writes after each line."""
    monkeypatch.chdir(tmp_path)

    def start(count: int = 1, **options: Any) -> tuple[Any, ChatSession, Any]:
        server = open_server(template="alpaca")
        reply_options = ReplyOptions(SamplingParams(temperature=0), **options)
        session = ChatSession([server.chat_model] * count, reply_options)

        def type_line(line: str) -> str:
            written: list[str] = []
            assert follow(session, line, written.append) == (line not in ("/quit", "/exit"))
            return "".join(written)

        return server, session, type_line

    return start


def test_a_conversation_remembers_and_forgets(talk: Any) -> None:
    server, session, line = talk()
    server.say("moon")
    assert line("one").startswith("mine> moon\n  3 tokens")
    line("two")
    said = [message["content"] for message in session.get_messages(0)]
    assert said == ["one", "moon", "two", "moon"]
    line("/undo")
    assert len(session.get_messages(0)) == 2
    server.say("hill")
    assert "hill" in line("/again") and session.options.sampling.seed == 1
    assert [message["content"] for message in session.get_messages(0)] == ["one", "hill"]
    line("/system Be brief.")
    assert session.get_messages(0) == [{"role": "system", "content": "Be brief."}]
    line("/system")
    assert session.get_messages(0) == [] and line("/undo") == "" and line("/again") == ""
    assert line("/help") == HELP and line("/quit") == line("/exit") == ""


def test_a_word_that_is_no_command_is_told(talk: Any) -> None:
    _, session, line = talk()
    assert (
        line("/nonsense")
        == "error[usage]: unknown command /nonsense\n  = help: /help lists the commands\n"
    )
    assert session.get_messages(0) == []


def test_a_reply_has_no_blank_of_the_template(talk: Any, open_server: Any) -> None:
    server = open_server()
    session = ChatSession([server.chat_model], ReplyOptions(SamplingParams(temperature=0)))
    server.say(" moon hill")
    pieces: list[str] = []
    session.ask("one", on_text=lambda _, piece: pieces.append(piece))
    assert "".join(pieces) == "moon hill" == session.get_messages(0)[-1]["content"]
    # the next turn sees the tokens that were generated
    assert session.render().startswith("<|begin_of_text|>User: one\nAssistant: moon hill<|end_of")


def test_options_are_set_within_their_range(talk: Any) -> None:
    _, session, line = talk()
    for text in ("temperature 0.5", "top_p 0.9", "seed 7", "max_new_tokens 3"):
        assert line(f"/set {text}") == ""
    sampling = session.options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.5, 0.9, 7)
    assert session.options.max_new_tokens == 3
    for text in ("temperature x", "top_p 2", "seed -1", "max_new_tokens 0", "top_k 3", ""):
        assert "cannot set" in line(f"/set {text}")


def test_what_the_model_sees_is_shown_with_special_tokens(talk: Any) -> None:
    _, session, line = talk()
    line("one")
    shown = line("/raw")
    assert shown.startswith("<|begin_of_text|>### Instruction:\none\n")
    assert shown.count("### Response:") == 1 and shown.endswith("<|end_of_text|>\n")
    pairs = [pair.split(":", 1) for pair in line("/raw ids").split()]
    library = Tokenizer.from_file(str(TinyTokenizerConfig().folder / "tokenizer.json"))
    assert all(library.id_to_token(int(number)) == text for number, text in pairs)
    model, messages = session.models[0], session.get_messages(0)
    prompt, next_prompt = (
        model.encode_chat(said)
        for said in (messages[:-1], [*messages, {"role": "user", "content": "two"}])
    )
    ids = [int(number) for number, _ in pairs]
    # the prompt of the reply begins them, and they begin the next prompt
    assert ids[: len(prompt)] == prompt and next_prompt[: len(ids)] == ids


def test_lines_belong_together_after_a_backslash_and_between_quotes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed = iter(["one", "two \\", "lines", '"""', "a", "", "b \\", '"""', " ", '"""', "cut off"])
    prompts = []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read_line)
    assert list(iter_inputs()) == ["one", "two \nlines", "a\n\nb \\"]
    asked = ["you", "you", "...", "you", *["..."] * 4, "you", "you", "...", "..."]
    assert prompts == [f"{one}> " for one in asked]


def test_the_better_of_two_replies_becomes_a_pair(talk: Any, tmp_path: Path) -> None:
    server, session, line = talk(2)
    server.say("moon")
    shown = line("one")
    assert shown.count("mine> moon") == 2 and "mine: 3 tokens" in shown
    session.histories[1][-1] = {"role": "assistant", "content": "worse"}
    assert line("/pick 1") == "1: 1, 2: 0, tie: 0 (pairs in picks.jsonl)\n"
    pair = json.loads((tmp_path / "picks.jsonl").read_text())
    assert pair["prompt"] == [{"role": "user", "content": "one"}]
    assert pair["chosen"][0]["content"] == "moon" and pair["rejected"][0]["content"] == "worse"
    assert session.histories[0] == session.histories[1]
    assert "judges the last two" in line("/pick 3")
    assert "both replies are the same text" in line("/pick 1")
    assert line("/pick tie") == "1: 1, 2: 0, tie: 1 (pairs in picks.jsonl)\n"
    assert len((tmp_path / "picks.jsonl").read_text().splitlines()) == 1


def test_replies_without_an_end_are_hinted_at(talk: Any) -> None:
    server, _, line = talk(max_new_tokens=2)
    server.say("moon hill goat bread", ends=False)
    assert [HINT_ENDLESS in line("one") for _ in range(3)] == [False, False, True]


def test_a_wrong_message_leaves_the_conversation_as_it_was(talk: Any) -> None:
    server, session, line = talk()
    server.chat_model.model.script = [5]
    limit = f"the model supports {server.chat_model.max_length:,}\n"
    told = line("word " * 2000)
    assert limit in told and "help: write a shorter message" in told
    assert session.get_messages(0) == []


def test_a_conversation_that_is_too_long_goes_on_after_a_reset(talk: Any) -> None:
    server, session, line = talk(2)
    server.say("moon")
    line("one")
    before = [list(history) for history in session.histories]
    # only the second model has no room, but no reply is generated
    alone = len(server.chat_model.encode_chat([{"role": "user", "content": "two " * 20}]))
    session.models[1] = replace(server.chat_model, max_length=alone + 1)
    told = line("two " * 20)
    assert told.startswith("error[usage]: the conversation has ")
    assert f"the model supports {alone + 1}\n" in told and "mine>" not in told
    assert "= help: put /reset on a line of its own, or lower --max-new-tokens\n" in told
    assert session.histories == before
    # a reset leaves no room for this one either
    assert "= help: write a shorter message\n" in line("two " * 2000)
    session.models[1] = server.chat_model
    line("/reset")
    assert "moon" in line("two")


def test_a_reply_that_has_no_room_is_told_with_its_limit(talk: Any) -> None:
    _, _, line = talk(max_new_tokens=5000)
    told = line("one")
    assert " tokens and --max-new-tokens asks for 5,000, the model supports " in told
    assert "= help: lower --max-new-tokens\n" in told


def test_piped_lines_are_turns_until_a_reset(
    talk: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, session, _ = talk()
    server.say("moon")
    monkeypatch.setattr("sys.stdin", StringIO("one\ntwo\n/reset\nthree\n" + "word " * 2000))
    with pytest.raises(ProblemsFound, match="the conversation has ") as caught:
        answer_lines(session)
    assert caught.value.exit_code == 2
    assert [message["content"] for message in session.get_messages(0)] == ["three", "moon"]
    replies = [json.loads(line)["reply"] for line in capsys.readouterr().out.splitlines()]
    assert replies == ["moon"] * 3


def test_turns_compute_what_is_new_only(talk: Any) -> None:
    """The scripted model has no layers, so only the tokens that it gets count."""
    server, session, line = talk()
    server.say("moon")
    read: list[int] = []
    server.model.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].size(1)))
    line("one")
    whole = len(session.models[0].encode_chat(session.get_messages(0)))
    assert read[0] > 1
    asked = read[0]
    read.clear()
    line("two")
    longest = len(session.models[0].encode_chat(session.get_messages(0)))
    assert whole < longest and max(read) < longest - asked
    session.reset()
    read.clear()
    line("one")
    assert read[0] == 1
