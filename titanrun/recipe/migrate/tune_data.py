"""What torchtune's data sets become."""

from typing import Any

from titanrun.recipe.migrate.keys import Converted, Key, Needs, Values
from titanrun.recipe.migrate.tune_model import is_own_family

ALPACA = "without torchtune's words of the Alpaca prompt: the model's chat template puts instruction and input into words"
TEMPLATED = (
    "without torchtune's own prompt: the model's chat template puts the user's text into words"
)
CHATS: dict[str, tuple[str, str, bool, str]] = {
    "alpaca_dataset": ("alpaca", "tatsu-lab/alpaca", True, ALPACA),
    "alpaca_cleaned_dataset": ("alpaca", "yahma/alpaca-cleaned", True, ALPACA),
    "chat_dataset": ("messages", "", False, ""),
    "instruct_dataset": ("prompt_completion", "", False, ""),
    "slimorca_dataset": ("sharegpt", "Open-Orca/SlimOrca-Dedup", False, ""),
    "grammar_dataset": ("prompt_completion", "liweili/c4_200m", False, TEMPLATED),
    "samsum_dataset": ("prompt_completion", "Samsung/samsum", False, TEMPLATED),
}
"""The layout, the source and the train_on_input of each builder where nothing is written, and what changes."""
TEXTS = {
    "text_completion_dataset": ("", "text"),
    "cnn_dailymail_articles_dataset": ("ccdv/cnn_dailymail", "article"),
    "wikitext_dataset": ("EleutherAI/wikitext_document_level", "page"),
}
PAIRS = {
    "preference_dataset": ("", {}),
    "stack_exchange_paired_dataset": (
        "lvwerra/stack-exchange-paired",
        {"prompt": "question", "chosen": "response_j", "rejected": "response_k"},
    ),
    "hh_rlhf_helpful_dataset": ("RLHFlow/HH-RLHF-Helpful-standard", {}),
}
COLUMNS = {
    "instruct_dataset": {"input": "prompt", "output": "completion"},
    "grammar_dataset": {"input": "input", "output": "output"},
    "samsum_dataset": {"input": "dialogue", "output": "summary"},
}
STYLES = {"sharegpt": "sharegpt", "openai": "messages"}
FILE_TYPES = ("json", "csv", "parquet", "arrow", "text")
DATA = "training.dataset"
HERE = "data come from local files: put those of the Hub's {} there, as jsonl or parquet"
NO_CHAT = "none of titanrun's: give conversations or text in files"
MANY_FILES = "several files: put them in a folder, or name them with a glob"
ROW_OF_ITS_OWN = "a class of transformers sees all of a row: each conversation has one of its own"
BLOCKS = {"model.attention.mask": "block_causal"}

TEXT = Needs(
    "dataset._component_",
    lambda value: str(value).rpartition(".")[2] in TEXTS,
    "torchtune.datasets.text_completion_dataset",
    "for texts",
)


def kind_of(values: Values) -> str:
    """The last word of the builder of the data."""
    return str(values.get("dataset._component_") or "").rpartition(".")[2]


def dataset(_: Key, value: Any, values: Values) -> Converted:
    """Conversations become chat, texts text, pairs preference; rows too long are cut, as in torchtune."""
    kind = kind_of(values)
    if kind in CHATS:
        layout, source, _trained, how = CHATS[kind]
        style = values.get("dataset.conversation_style")
        layout = STYLES.get(str(style), layout) if kind == "chat_dataset" else layout
        named = {
            f"{DATA}.name": "chat",
            f"{DATA}.layout": layout,
            f"{DATA}.too_long": "cut",
            **columns_of(kind, values),
        }
        return placed(named | {"kind": "sft"}, values, source, how)
    if kind in TEXTS:
        source, column = TEXTS[kind]
        column = values.get("dataset.column") or column
        return placed(
            {f"{DATA}.name": "text", f"{DATA}.column": column, f"{DATA}.add_bos": True},
            values,
            source,
            "",
        )
    if kind in PAIRS:
        targets = {f"{DATA}.name": "preference", **columns_of(kind, values)}
        return placed(
            targets, values, PAIRS[kind][0], "a pair longer than a row is left out, not cut"
        )
    return Converted({f"{DATA}.name": "chat", f"{DATA}.path": "data"}, refused=NO_CHAT)


def columns_of(kind: str, values: Values) -> dict[str, Any]:
    """The columns, where titanrun has other names for them by default."""
    written = values.get("dataset.column_map")
    renamed = written if isinstance(written, dict) else {}
    if kind in COLUMNS:
        known = {**COLUMNS[kind], **renamed}
        return {
            f"{DATA}.prompt_column": known["input"],
            f"{DATA}.completion_column": known["output"],
        }
    if kind in PAIRS:
        return {
            f"{DATA}.{name}_column": column
            for name, column in {**PAIRS[kind][1], **renamed}.items()
        }
    column = values.get("dataset.conversation_column")
    return {f"{DATA}.column": column} if kind == "chat_dataset" and column else {}


def placed(targets: dict[str, Any], values: Values, source: str, how: str) -> Converted:
    """The targets with the path of the data."""
    path, where = path_of(values, source)
    return Converted({**targets, f"{DATA}.path": path}, how="; ".join(filter(None, [how, where])))


def path_of(values: Values, otherwise: str) -> tuple[str, str]:
    """Where the data lie, and what is to be done so that they do."""
    source, files = values.get("dataset.source") or otherwise, values.get("dataset.data_files")
    if source in FILE_TYPES and isinstance(files, list) and len(files) == 1:
        files = files[0]
    if source in FILE_TYPES and isinstance(files, str):
        return files, ""
    return f"data/{str(source).rpartition('/')[2]}", HERE.format(source)


def source(_: Key, value: Any, values: Values) -> Converted:
    """A name on the Hub becomes a folder for the files; json, csv and parquet leave it to data_files."""
    return Converted(
        {} if value in FILE_TYPES or value is None else {f"{DATA}.path": path_of(values, "")[0]}
    )


def data_files(_: Key, value: Any, values: Values) -> Converted:
    """The path of the data."""
    if isinstance(value, list) and len(value) > 1:
        return Converted({}, refused=MANY_FILES)
    return Converted({f"{DATA}.path": path_of(values, "")[0]} if value else {})


def style(_: Key, value: Any, values: Values) -> Converted:
    """sharegpt, or openai, which is called messages."""
    if value is not None and str(value) not in STYLES:
        return Converted({}, refused="conversations are in the layout messages or sharegpt")
    return Converted(
        {f"{DATA}.layout": STYLES[value]} if value and kind_of(values) == "chat_dataset" else {}
    )


def columns(_: Key, value: Any, values: Values) -> Converted:
    """The columns of prompt and completion, or of a pair."""
    kind = kind_of(values)
    if not value:
        return Converted({})
    if kind in COLUMNS or kind in PAIRS:
        return Converted(columns_of(kind, values))
    return Converted(
        {}, refused="the columns of this layout have fixed names: rename them in the files"
    )


def column(_: Key, value: Any, values: Values) -> Converted:
    """The column of the text, or of the conversation."""
    return Converted({f"{DATA}.column": value} if value else {})


def trained(_: Key, value: Any, values: Values) -> Converted:
    """true is train_on: all, false train_on: replies; unset it is what the builder has."""
    kind = kind_of(values)
    if kind in PAIRS:
        return Converted({}, refused="what is compared are the replies" if value else "")
    if kind not in CHATS:
        return Converted({})
    return Converted(
        {f"{DATA}.train_on": "all" if (CHATS[kind][2] if value is None else value) else "replies"}
    )


def packed(_: Key, value: Any, values: Values) -> Converted:
    """Conversations share rows and do not see each other; best_fit fills them fuller than torchtune's order."""
    kind = kind_of(values)
    if value and not is_own_family(values):
        return Converted({}, refused=ROW_OF_ITS_OWN)
    if kind in TEXTS:
        whole = values.get("dataset.split_across_pack") is False
        packing = ("best_fit" if whole else "documents") if value else None
        cut = {f"{DATA}.too_long": "cut"} if packing != "documents" else {}
        return Converted({f"{DATA}.packing": packing, **cut, **(BLOCKS if value else {})})
    if not value:
        return Converted({})
    return Converted(
        {f"{DATA}.packing": "best_fit", **BLOCKS},
        how="a row takes what fits best, in torchtune what comes next",
    )


def length(_: Key, value: Any, values: Values) -> Converted:
    """The length of every row; unset is written 4096."""
    if value is None:
        return Converted(
            {"training.seq_len": 4096},
            how="rows have one length here; in torchtune each batch that of its longest",
        )
    return Converted({"training.seq_len": value})


def split(_: Key, value: Any, __: Values) -> Converted:
    """train is what the files hold; another one, or a part, is refused."""
    return Converted(
        {},
        refused="" if value in (None, "train") else "put the records that are meant into the files",
    )
