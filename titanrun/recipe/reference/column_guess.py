"""Columns of a dataset as guessed from their names and from what they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from titanrun.recipe.reference.data_columns import Columns

MESSAGE_KEYS, TURN_KEYS = {"role", "content"}, {"from", "value"}
# in lower case, the usual one first: that of the dataset's default
PROMPTS = ("prompt", "question", "instruction", "input", "query", "user")
COMPLETIONS = ("completion", "answer", "response", "output", "reply", "assistant")
CHOSEN = ("chosen", "chosen_response", "better", "preferred", "winner")
REJECTED = ("rejected", "rejected_response", "worse", "dispreferred", "loser")
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
    return {"chat": guess_chat, "preference": guess_preference, "labelled": guess_labelled}[
        dataset
    ](columns)


def guess_chat(columns: Columns) -> ColumnGuess | None:
    """Return layout and columns of conversations."""
    if "messages" in columns and not columns["messages"].is_text:
        return ColumnGuess()
    for keys, layout, usual in (
        (MESSAGE_KEYS, {}, "messages"),
        (TURN_KEYS, {"layout": "sharegpt"}, "conversations"),
    ):
        for name, content in columns.items():
            if keys <= set(content.keys):
                return ColumnGuess({**layout, **name_column("column", name, usual)})
    if {"instruction", "output"} <= set(columns):
        return ColumnGuess({"layout": "alpaca"})
    prompt, completion = find_name(columns, PROMPTS), find_name(columns, COMPLETIONS)
    texts = [name for name, content in columns.items() if content.is_text]
    unread = [name for name in texts if name not in (prompt, completion)]
    doubt = f"of the columns these are not read: {', '.join(unread)}" if unread else ""
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
    }
    return ColumnGuess({"layout": "prompt_completion", **names}, doubt)


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
    }


def find_prompt(columns: Columns, reply: str) -> str | None:
    """Return the column of the prompt; None if there is none for a reply that is a text.

    Replies that are lists of messages may hold the prompt.
    """
    found = find_name([name for name in columns if name != reply], PROMPTS)
    return PROMPTS[0] if found is None and not columns[reply].is_text else found


def find_name(columns: Columns | Sequence[str], names: Sequence[str]) -> str | None:
    """Return the column with the first of some names, in any case."""
    known = {column.lower(): column for column in columns}
    return next((known[name] for name in names if name in known), None)


def name_column(setting: str, column: str, usual: str) -> Mapping[str, str]:
    """Return the setting that names a column, none if it is the usual one."""
    return {} if column == usual else {setting: column}
