"""Conversion of axolotl's formats of a prompt with one reply, and of older ShareGPT data."""

from typing import Any

from titanrun.recipe.migrate.axolotl_pairs import DATASET_TARGET
from titanrun.recipe.migrate.key_mapping import ConvertedValue, SourceValues

COLUMNS = {
    "alpaca_chat.load_qa": ("question", "answer"),
    "alpaca_chat.load_camel_ai": ("message_1", "message_2"),
}
"""Columns of prompt and reply in formats that have these two."""
ALPACA_COLUMNS = ("instruction", "input", "output")
SHAREGPT = "sharegpt"
OWN_TEXT = "without axolotl's text around the prompt: the model's chat template formats it"
TWO_COLUMNS = (
    "instruction and input are two columns: write both into one in the files, or rename the "
    "columns to instruction, input and output, with layout: alpaca"
)


def convert_prompt_format(
    value: Any, values: SourceValues, place: dict[str, Any]
) -> ConvertedValue | None:
    """Return the layout of a format with prompts and replies, None for other formats.

    Args:
        value: Format of the dataset in axolotl: its name, or the names of its columns.
        values: All keys of the configuration.
        place: Settings that say where the data are.
    """
    named = {f"{DATASET_TARGET}.name": "chat", "kind": "sft", **place}
    if isinstance(value, dict):
        return convert_named_columns(value, named)
    kind = str(value or "")
    if kind.partition(":")[0] == SHAREGPT:
        column = values.get("datasets.field_messages") or "conversations"
        layout = {f"{DATASET_TARGET}.layout": SHAREGPT, f"{DATASET_TARGET}.column": column}
        return ConvertedValue({**named, **layout})
    if kind not in COLUMNS:
        return None
    prompt, completion = COLUMNS[kind]
    return ConvertedValue({**named, **name_columns(prompt, completion)}, how=OWN_TEXT)


def convert_named_columns(value: dict[str, Any], named: dict[str, Any]) -> ConvertedValue:
    """Return the layout of columns that a configuration names; refuse a further one of inputs."""
    prompt = value.get("field_instruction") or "instruction"
    completion = value.get("field_output") or "output"
    if value.get("field_input"):
        is_alpaca = (prompt, value["field_input"], completion) == ALPACA_COLUMNS
        layout = {f"{DATASET_TARGET}.layout": "alpaca"}
        return (
            ConvertedValue({**named, **layout}, how=OWN_TEXT)
            if is_alpaca
            else ConvertedValue(named, refused=TWO_COLUMNS)
        )
    columns = name_columns(prompt, completion)
    if system := value.get("field_system"):
        columns[f"{DATASET_TARGET}.system_column"] = system
    return ConvertedValue({**named, **columns}, how=OWN_TEXT)


def name_columns(prompt: str, completion: str) -> dict[str, Any]:
    """Return the layout of a prompt and a completion in two columns."""
    columns = {"layout": "prompt_completion", "prompt_column": prompt}
    return {
        f"{DATASET_TARGET}.{key}": value
        for key, value in {**columns, "completion_column": completion}.items()
    }
