"""Columns of a dataset as guessed from their names and from what they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from titanrun.recipe.reference.data_columns import ColumnContent, Columns

MESSAGE_KEYS, TURN_KEYS = {"role", "content"}, {"from", "value"}
# in lower case, the usual one first: that of the dataset's default
PROMPTS = ("prompt", "question", "instruction", "input", "query", "user", "ask", "request")
LISTED_PROMPTS = ("conversations", "conversation", "messages")
COMPLETIONS = ("completion", "answer", "response", "output", "reply", "assistant", "solution")
CHOSEN = ("chosen", "chosen_response", "accepted", "better", "preferred", "winner")
REJECTED = ("rejected", "rejected_response", "worse", "dispreferred", "loser")
SYSTEM_TEXTS, HISTORY = ("system", "system_prompt"), "history"
TEXT_COLUMNS = ("text", "content", "body", "document", "raw_content")
LABELS = ("label", "thumbs_up", "desirable", "is_good", "liked")


@dataclass(frozen=True, slots=True)
class ColumnGuess:
    """Settings that name the columns of a dataset.

    Args:
        settings: Settings, empty where the defaults apply.
        doubt: What the user should check, empty if the names are clear.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    doubt: str = ""


def guess_columns(dataset: str, columns: Columns) -> ColumnGuess | None:
    """Return the settings of a dataset that name its columns, None if nothing suits."""
    return GUESSES[dataset](columns)


def guess_text(columns: Columns) -> ColumnGuess | None:
    """Return the column of plain texts, the only one of texts if none has a usual name."""
    texts = [name for name, content in columns.items() if content.is_text]
    usual = find_name(texts, TEXT_COLUMNS)
    if usual is not None:
        return ColumnGuess(name_column("column", usual, TEXT_COLUMNS[0]))
    return ColumnGuess({"column": texts[0]}) if len(texts) == 1 else None


def guess_chat(columns: Columns) -> ColumnGuess | None:
    """Return layout and columns of conversations, None for pairs without them.

    A part of a pair is a list of messages, too, but not one to train on.
    """
    system = name_system_column(columns)
    messages = columns.get("messages")
    # the keys of messages may be those of another layout
    is_usual = messages is not None and (not messages.keys or set(messages.keys) >= MESSAGE_KEYS)
    if messages is not None and not messages.is_text and is_usual:
        return ColumnGuess(system)
    if guess_pair(columns) is not None:
        return None
    if completed := guess_listed_completion(columns):
        return ColumnGuess({**completed, **system})
    for keys, layout, usual in (
        (MESSAGE_KEYS, {}, "messages"),
        (TURN_KEYS, {"layout": "sharegpt"}, "conversations"),
    ):
        for name, content in columns.items():
            if keys <= set(content.keys):
                return ColumnGuess({**layout, **name_column("column", name, usual), **system})
    if {"instruction", "output"} <= set(columns):
        return ColumnGuess({"layout": "alpaca", **system})
    prompt, completion = find_name(columns, PROMPTS), find_name(columns, COMPLETIONS)
    texts = [
        name for name, content in columns.items() if content.is_text and name not in system.values()
    ]
    unread = [name for name in texts if name not in (prompt, completion)]
    doubt = f"of the columns these are not read: {', '.join(unread)}" if unread else ""
    label = find_name(columns, LABELS)
    if label is not None and guess_labelled(columns) is not None:
        doubt = (
            f"column '{label}' is not read, and undesirable replies are trained on: --kind kto "
            "reads it"
        )
    if (prompt is None or completion is None) and len(texts) == 2:
        prompt, completion = texts
        doubt = (
            f"column '{prompt}' is taken for the prompt and '{completion}' for the completion, by "
            "their order"
        )
    if prompt is None or completion is None:
        return None
    names = {
        **name_column("prompt_column", prompt, PROMPTS[0]),
        **name_column("completion_column", completion, COMPLETIONS[0]),
        **system,
    }
    return ColumnGuess({"layout": "prompt_completion", **names}, doubt)


def guess_listed_completion(columns: Columns) -> Mapping[str, Any] | None:
    """Return the settings of a prompt of messages beside its completion, None of other columns."""
    prompt, completion = find_name(columns, PROMPTS), find_name(columns, COMPLETIONS)
    if prompt is None or completion is None or not holds_messages(columns[prompt]):
        return None
    if not columns[completion].is_text and not holds_messages(columns[completion]):
        return None
    return {
        "layout": "prompt_completion",
        **name_column("prompt_column", prompt, PROMPTS[0]),
        **name_column("completion_column", completion, COMPLETIONS[0]),
    }


def guess_preference(columns: Columns) -> ColumnGuess | None:
    """Return the columns of pairs of replies."""
    pair = guess_pair(columns)
    return None if pair is None else ColumnGuess(pair)


def guess_labelled(columns: Columns) -> ColumnGuess | None:
    """Return the columns of replies with labels, or of pairs."""
    completion, label = find_name(columns, COMPLETIONS), find_name(columns, LABELS)
    if completion is None or label is None:
        pair = guess_pair(columns)
        return None if pair is None else ColumnGuess({"from_pairs": True, **pair})
    prompt = find_prompt(columns, completion)
    if prompt is None:
        return None
    return ColumnGuess(
        {
            **name_column("prompt_column", prompt, PROMPTS[0]),
            **name_column("completion_column", completion, COMPLETIONS[0]),
            **name_column("label_column", label, LABELS[0]),
            **name_system_column(columns),
        }
    )


def guess_pair(columns: Columns) -> Mapping[str, Any] | None:
    """Return the settings that name both replies of a pair and their prompt."""
    chosen, rejected = find_name(columns, CHOSEN), find_name(columns, REJECTED)
    if chosen is None or rejected is None:
        return None
    prompt = find_prompt(columns, chosen)
    if prompt is None:
        return None
    return {
        **name_column("prompt_column", prompt, PROMPTS[0]),
        **name_column("chosen_column", chosen, CHOSEN[0]),
        **name_column("rejected_column", rejected, REJECTED[0]),
        **name_system_column(columns),
    }


def name_system_column(columns: Columns) -> Mapping[str, str]:
    """Return the setting of a column of system texts, which the first record may lack."""
    name = find_name(columns, SYSTEM_TEXTS)
    return {} if name is None or columns[name].keys else {"system_column": name}


def find_prompt(columns: Columns, reply: str) -> str | None:
    """Return the column of the prompt; None if there is none for a reply that is a text.

    A list of messages may hold the prompt of replies that are messages, or they hold it themselves.
    """
    found = find_name([name for name in columns if name != reply], PROMPTS)
    if found is not None or columns[reply].is_text:
        return found
    listed = find_name(columns, LISTED_PROMPTS)
    is_prompt = listed is not None and holds_messages(columns[listed])
    return listed if is_prompt else PROMPTS[0]


def holds_messages(content: ColumnContent) -> bool:
    """Return whether a column holds lists of messages."""
    return any(keys <= set(content.keys) for keys in (MESSAGE_KEYS, TURN_KEYS))


def find_name(columns: Columns | Sequence[str], names: Sequence[str]) -> str | None:
    """Return the column with the first of some names, in any case."""
    known = {column.lower(): column for column in columns}
    return next((known[name] for name in names if name in known), None)


def name_column(setting: str, column: str, usual: str) -> Mapping[str, str]:
    """Return the setting that names a column, none if it is the usual one."""
    return {} if column == usual else {setting: column}


GUESSES = {
    "text": guess_text,
    "chat": guess_chat,
    "preference": guess_preference,
    "labelled": guess_labelled,
}
