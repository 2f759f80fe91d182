"""A conversation with one model, or with two at once."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from titanrun.components.data.spec.chat_content import Message
from titanrun.config.problems import problem_error
from titanrun.models.shared.kv_cache import KeptText
from titanrun.training.token_sampling import SamplingParams
from titanrun.worker.serving.chat_model import (
    ChatModel,
    PromptTooLongError,
    Reply,
    ReplyOptions,
    never,
)

SETTINGS = ("temperature", "top_p", "max_new_tokens", "seed")
# so many replies in a row that reach their limit suggest that the model does not stop
MAX_UNENDED = 3
TIE = "tie"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one model replied.

    Args:
        model: the model.
        reply: its reply.
        seconds: how long it took.
    """

    model: ChatModel
    reply: Reply
    seconds: float

    def describe(self) -> str:
        """Return counts, speed and end of the reply in a line."""
        count = len(self.reply.tokens)
        ends = {
            "length": "reached --max-new-tokens",
            "cancelled": "stopped by you",
            "stop": f"stopped at {self.reply.end}",
        }
        speed = count / max(self.seconds, 1e-9)
        return f"{count} tokens, {speed:.0f} tok/s, {ends[self.reply.finish]}"


@dataclass(slots=True)
class ChatSession:
    """Conversation with models, each of which sees its own replies.

    Args:
        models: one model, or two that get the same messages.
        options: how replies are generated.
        system: text of the system message, None for none.
        picks: file for what `pick` writes.
    """

    models: list[ChatModel]
    options: ReplyOptions
    system: str | None = None
    picks: Path = Path("picks.jsonl")
    histories: list[list[Message]] = field(default_factory=list)
    kept: list[KeptText] = field(default_factory=list)
    unended: int = 0
    picked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("1", "2", TIE), 0))

    def __post_init__(self) -> None:
        self.kept = [KeptText() for _ in self.models]
        self.reset()

    def reset(self) -> None:
        """Forget the conversation, but not the system message."""
        self.histories = [[] for _ in self.models]

    def undo(self) -> str | None:
        """Forget the last message and its replies. Return the message, None if there is none."""
        if not self.histories[0]:
            return None
        text = str(self.histories[0][-2]["content"])
        for history in self.histories:
            del history[-2:]
        return text

    def get_messages(self, index: int) -> list[Message]:
        """Return the conversation with a model."""
        return [*self.get_system_message(), *self.histories[index]]

    def get_system_message(self) -> list[Message]:
        """Return the message that begins each conversation, none without one."""
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def ask(
        self,
        text: str,
        *,
        options: Sequence[ReplyOptions] | None = None,
        on_text: Callable[[int, str], None] = lambda index, piece: None,
        is_cancelled: Callable[[], bool] = never,
    ) -> list[Answer]:
        """Return the replies to a message, which become part of the conversation.

        Args:
            text: the message.
            options: how each model replies; by default all in the same way.
            on_text: called with the number of the model and each new piece of text.
            is_cancelled: called after each token; if it returns True, generation ends.

        Raises:
            ProblemsFound: a template rejects the message, or the conversation leaves no room for
                a reply of one of the models. The conversation is as before.
        """
        ways = [self.options] * len(self.models) if options is None else options
        prompts = [self.encode_next(index, text, way) for index, way in enumerate(ways)]
        answers = []
        for index, model in enumerate(self.models):
            start = time.monotonic()
            reply = model.reply(
                prompts[index],
                ways[index],
                is_chat=True,
                on_text=lambda piece, index=index: on_text(index, piece),  # type: ignore[misc]
                is_cancelled=is_cancelled,
                kept=self.kept[index],
            )
            answers.append(Answer(model, reply, time.monotonic() - start))
        for history, answer in zip(self.histories, answers, strict=True):
            history += [
                {"role": "user", "content": text},
                {"role": "assistant", "content": answer.reply.text},
            ]
        is_unended = any(answer.reply.finish == "length" for answer in answers)
        self.unended = self.unended + 1 if is_unended else 0
        return answers

    def encode_next(self, index: int, text: str, options: ReplyOptions) -> list[int]:
        """Return the tokens that a model reads to reply to a message.

        Raises:
            ProblemsFound: the template rejects the message, or there is no room for a reply.
        """
        model, question = self.models[index], {"role": "user", "content": text}
        prompt = model.encode_chat([*self.get_messages(index), question])
        try:
            model.get_new_token_limit(len(prompt), options.max_new_tokens)
        except PromptTooLongError:
            wanted = options.max_new_tokens
            # without earlier turns a message may still be too long
            alone = model.encode_chat([*self.get_system_message(), question])
            has_turns = bool(self.histories[index]) and len(alone) < model.max_length
            # shorter replies also leave room for more turns
            can_shorten = has_turns or (wanted and len(prompt) < model.max_length)
            ways = [
                *(["put /reset on a line of its own"] if has_turns else []),
                *(["lower --max-new-tokens"] if can_shorten else []),
            ]
            asked = "" if wanted is None else f" and --max-new-tokens asks for {wanted:,}"
            raise problem_error(
                "usage",
                f"the conversation has {len(prompt):,} tokens{asked}, "
                f"the model supports {model.max_length:,}",
                hint=", or ".join(ways) or "write a shorter message",
            ) from None
        return prompt

    @property
    def seems_endless(self) -> bool:
        """Whether replies keep reaching their limit."""
        return self.unended >= MAX_UNENDED

    def set_option(self, name: str, value: str) -> None:
        """Change how replies are generated.

        Raises:
            ProblemsFound: there is no such option, or the value is out of range.
        """
        try:
            number = float(value) if name in ("temperature", "top_p") else int(value)
        except ValueError:
            number = -1
        is_valid = number > 0 or (number == 0 and name in ("temperature", "seed"))
        if name not in SETTINGS or not is_valid or (name == "top_p" and number > 1):
            raise problem_error(
                "usage",
                f"cannot set {name} to '{value}'",
                hint=f"options with numbers: {', '.join(SETTINGS)}",
            )
        if name == "max_new_tokens":
            self.options = replace(self.options, max_new_tokens=int(number))
            return
        typed = int(number) if name == "seed" else float(number)
        sampling = SamplingParams(**{**asdict(self.options.sampling), name: typed})
        self.options = replace(self.options, sampling=sampling)

    def render(self, index: int = 0) -> str:
        """Return the text that a model has seen and written, with special tokens.

        Raises:
            ProblemsFound: it has no template, or the template rejects the conversation.
        """
        messages = self.get_messages(index)
        return self.models[index].render_chat(messages, add_generation_prompt=False)

    def render_ids(self, index: int = 0) -> str:
        """Return the tokens that a model has seen and written, each with its id.

        Raises:
            ProblemsFound: it has no template, or the template rejects the conversation.
        """
        model = self.models[index]
        ids = model.encode_chat(self.get_messages(index), add_generation_prompt=False)
        return " ".join(f"{token}:{model.find_token_text(token)}" for token in ids)

    def save(self, file: str) -> Path:
        """Append the conversation with the first model to a file, as a record to train on."""
        path = Path(file)
        with path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"messages": self.get_messages(0)}, ensure_ascii=False) + "\n")
        return path

    def pick(self, choice: str) -> Path:
        """Append the last two replies to the file of picks, as a pair to train on.

        Of a tie there is nothing to train on, but it is counted.

        Args:
            choice: `1` or `2`, the better reply, or `tie`.

        Raises:
            ProblemsFound: there is nothing to choose from.
        """
        if choice not in self.picked or len(self.models) != 2 or not self.histories[0]:
            raise problem_error(
                "usage",
                "/pick 1, /pick 2 or /pick tie judges the last two replies",
                hint="name two models on the command line, and ask something",
            )
        if choice != TIE:
            self._save_pair(int(choice) - 1)
        self.picked[choice] += 1
        return self.picks

    def describe_picks(self) -> str:
        """Return how often each choice was made in this conversation."""
        tally = ", ".join(f"{name}: {count}" for name, count in self.picked.items())
        return f"{tally} (pairs in {self.picks})"

    def _save_pair(self, better: int) -> None:
        """Append a pair to the file of picks, and go on from the better reply."""
        chosen, rejected = (self.histories[index][-1:] for index in (better, 1 - better))
        if chosen == rejected:
            raise problem_error(
                "usage",
                "both replies are the same text",
                hint="/pick counts once for each message: ask again, or /again for new replies",
            )
        prompt = self.get_messages(better)[:-1]
        pair = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        with self.picks.open("a", encoding="utf-8") as out:
            out.write(json.dumps(pair, ensure_ascii=False) + "\n")
        self.histories = [list(self.histories[better]) for _ in self.models]
