"""`python -m titanrun.worker.commands.chat`: a conversation in the terminal, for `titanrun chat`.

The job is a JSON object in the file whose descriptor is the first argument. Where stdin is no
terminal, its lines are the messages of one conversation, and each reply a JSON object in a line.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from titanrun.config.control_characters import escape_lines
from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.training.token_sampling import SamplingParams
from titanrun.worker.serving.chat_model import ReplyOptions, load_chat_models
from titanrun.worker.serving.chat_session import Answer, ChatSession
from titanrun.worker.serving.reply_columns import ReplyColumns, has_room_for_columns
from titanrun.worker.worker_failures import classify_failure

HELP = """/system TEXT     set the system message and start again; without TEXT, remove it
/reset           start again
/undo            forget the last message and its reply
/again           ask the last message again, with the next seed
/set NAME VALUE  temperature, top_p, max_new_tokens or seed
/raw             show the text that the model sees; /raw ids: its tokens with their ids
/save FILE       append the conversation to FILE, as a record to train on
/pick 1, /pick 2 with two models: append the better reply to picks.jsonl, and go on from it
/pick tie        neither is better: append nothing; /pick tells how often each one was
/quit or /exit   leave
A line that ends with \\ goes on in the next one. Lines between two lines of \"\"\" are one message.
Ctrl-C stops a reply.
"""
HINT_ENDLESS = (
    "replies keep reaching --max-new-tokens: was the token that ends a turn trained? "
    "titanrun validate --level environment tells"
)
QUOTES = '"""'
RESET = "/reset"
LEAVE = ("/quit", "/exit")
Write = Callable[[str], Any]


def main() -> int:
    """Converse until the input ends, and return the exit code."""
    with os.fdopen(int(sys.argv[1])) as file:
        job = json.load(file)
    try:
        session = open_session(job)
        if sys.stdin.isatty():
            converse(session, job["history"])
        else:
            answer_lines(session)
    except ProblemsFound as error:
        sys.stderr.write(render_problems_as_text(error.problems))
        return error.exit_code
    except (OSError, MemoryError) as error:
        failure = classify_failure(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.exit_code
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    return 0


def open_session(job: Mapping[str, Any]) -> ChatSession:
    """Load the models of a job.

    Raises:
        ProblemsFound: one of them cannot be loaded, or has no chat template.
    """
    models = load_chat_models([{**source, "max_seq_len": None} for source in job["models"]])
    sampling = SamplingParams(job["temperature"], None, job["top_p"], job["seed"])
    session = ChatSession(models, ReplyOptions(sampling, job["max_new_tokens"]), job["system"])
    for model in models:
        model.encode_chat([{"role": "user", "content": "Hi"}])
    return session


def answer_lines(session: ChatSession) -> None:
    """Answer each line of stdin with a line of JSON for each model.

    The lines are turns of one conversation, in which the line `/reset` starts another one.

    Raises:
        ProblemsFound: a template rejects a message, or the conversation is too long.
    """
    for line in sys.stdin:
        if line.strip() == RESET:
            session.reset()
            continue
        for answer in session.ask(line.rstrip("\n")):
            reply = answer.reply
            found = {"model": answer.model.name, "reply": reply.text, "finish": reply.finish}
            print(json.dumps({**found, "tokens": len(reply.tokens)}, ensure_ascii=False))
            sys.stdout.flush()


def converse(session: ChatSession, history: str) -> None:
    """Converse in the terminal, with the lines of earlier conversations to go back to."""
    readline = load_readline(Path(history))
    for model in session.models:
        ends = sorted(model.find_token_text(token) for token in model.chat_end_ids)
        about = f"{model.about}; " if model.about else ""
        print(f"{model.name}: {about}stops at {' '.join(ends)}; /help lists commands")
    try:
        for text in iter_inputs():
            if not follow(session, text, sys.stdout.write):
                break
    finally:
        if readline is not None:
            with contextlib.suppress(OSError):
                readline.write_history_file(history)


def load_readline(history: Path) -> Any:
    """Return the module readline with the history, None where Python has none."""
    try:
        readline = import_module("readline")
    except ImportError:
        return None
    with contextlib.suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(history)
    return readline


def iter_inputs() -> Iterator[str]:
    """Yield what is typed, until Ctrl-D.

    A line that ends with a backslash goes on, and lines between two lines of quotes are one text.
    """
    lines: list[str] = []
    is_quoted = False
    while True:
        try:
            line = input("...> " if lines or is_quoted else "you> ")
        except EOFError:
            return
        if line.strip() == QUOTES:
            is_quoted = not is_quoted
            if is_quoted:
                continue
        elif is_quoted or line.endswith("\\"):
            lines.append(line if is_quoted else line[:-1])
            continue
        else:
            lines.append(line)
        text = "\n".join(lines)
        lines = []
        if text.strip():
            yield text


def follow(session: ChatSession, text: str, write: Write) -> bool:
    """Do what was typed: a command, or a message. Return whether the conversation goes on."""
    word, _, rest = text.strip().partition(" ")
    try:
        if word in LEAVE:
            return False
        if word.startswith("/"):
            follow_command(session, word, rest.strip(), write)
        else:
            say(session, text, write)
    except ProblemsFound as error:
        write(render_problems_as_text(error.problems))
    except OSError as error:
        write(f"{error}\n")
    return True


def follow_command(session: ChatSession, word: str, rest: str, write: Write) -> None:
    """Follow a command.

    Raises:
        ProblemsFound: it cannot be followed.
        OSError: a file cannot be written.
    """
    if word == "/system":
        session.system = rest or None
        session.reset()
    elif word == RESET:
        session.reset()
    elif word == "/undo":
        session.undo()
    elif word == "/again":
        seed = session.options.sampling.seed
        last = session.undo()
        if last is not None:
            session.set_option("seed", rest or str(seed + 1))
            say(session, last, write)
    elif word == "/set":
        name, _, value = rest.partition(" ")
        session.set_option(name, value.strip())
    elif word == "/raw":
        for index in range(len(session.models)):
            text = session.render_ids(index) if rest == "ids" else session.render(index)
            write(escape_lines(text) + "\n")
    elif word == "/save":
        write(f"saved {session.save(rest or 'chat.jsonl')}\n")
    elif word == "/pick":
        session.pick(rest)
        write(f"{session.describe_picks()}\n")
    elif word == "/help":
        write(HELP)
    else:
        raise problem_error("usage", f"unknown command {word}", hint="/help lists the commands")


def say(session: ChatSession, text: str, write: Write) -> None:
    """Say something and write the replies while they are generated.

    Raises:
        ProblemsFound: a template rejects the message.
    """
    with interrupt_sets_flag() as interrupted, open_display(session, write) as show:
        answers = session.ask(text, on_text=show, is_cancelled=interrupted.is_set)
    for answer in answers:
        write(f"  {describe_answer(answer, is_one=len(answers) == 1)}\n")
    if session.seems_endless:
        write(f"  {HINT_ENDLESS}\n")


@contextlib.contextmanager
def open_display(session: ChatSession, write: Write) -> Iterator[Callable[[int, str], None]]:
    """Yield what shows a new piece of text of a model's reply.

    Two replies are side by side where the terminal has room, else one below the other.
    """
    names = [model.name for model in session.models]
    console = Console()
    if len(names) > 1 and has_room_for_columns(console):
        with ReplyColumns(names, console) as columns:
            yield columns.add
        return
    begun: set[int] = set()

    def write_piece(index: int, piece: str) -> None:
        if index not in begun:
            begun.add(index)
            write(("\n" if index else "") + f"{names[index]}> ")
        write(escape_lines(piece))
        sys.stdout.flush()

    yield write_piece
    write("\n")


def describe_answer(answer: Answer, *, is_one: bool) -> str:
    """Return counts and end of a reply, with the model's name if there are two."""
    return answer.describe() if is_one else f"{answer.model.name}: {answer.describe()}"


@contextlib.contextmanager
def interrupt_sets_flag() -> Iterator[threading.Event]:
    """Yield a flag that Ctrl-C sets within the block; the second time it ends the program."""
    flag = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def set_flag(number: int, frame: Any) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    signal.signal(signal.SIGINT, set_flag)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
