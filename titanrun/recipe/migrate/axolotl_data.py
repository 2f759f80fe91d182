"""What data of axolotl become."""

from pathlib import Path
from typing import Any

from titanrun.recipe.migrate.axolotl_model import is_own
from titanrun.recipe.migrate.keys import Converted, Key, Values

FILE_TYPES = (".jsonl", ".json", ".csv", ".parquet", ".txt", ".gz", ".zst")
DATA = "training.dataset"
HERE = "data come from local files: put those of the Hub's {} there, as jsonl or parquet"
ALPACA = "without axolotl's words of the Alpaca prompt: the model's chat template puts instruction and input into words"
NO_TYPE = "none of titanrun's layouts: chat_template, alpaca and completion are, and for pairs chat_template.default"
TEMPLATE = "the template in the model's folder is taken: save axolotl's as a file and name it in training.dataset.template if it is another"


def is_pairs(values: Values) -> bool:
    """Whether the data are pairs of replies."""
    return values.get("rl") == "dpo"


def where(values: Values) -> tuple[str, str]:
    """Where the data lie, and what is to be done so that they do."""
    path, files = str(values.get("datasets.path") or "data"), values.get("datasets.data_files")
    if isinstance(files, list) and len(files) == 1:
        files = files[0]
    if isinstance(files, str):
        return (
            files
            if path in ("json", "csv", "parquet", "text") or "/" in files
            else f"{path}/{files}"
        ), ""
    if (
        path.startswith((".", "/", "~"))
        or Path(path).suffix in FILE_TYPES
        or path.count("/") != 1
        or Path(path).exists()
    ):
        return path, ""
    return f"data/{path.rpartition('/')[2]}", HERE.format(path)


def dataset(_: Key, value: Any, values: Values) -> Converted:
    """chat_template is chat, alpaca its layout, completion text; pairs are preference."""
    kind = str(value or "")
    path, how = where(values)
    named = {f"{DATA}.path": path}
    if is_pairs(values):
        if kind not in ("chat_template.default", "chat_template"):
            return Converted({f"{DATA}.name": "preference", **named}, refused=NO_TYPE)
        fields = {"prompt": "messages", "chosen": "chosen", "rejected": "rejected"}
        columns = {
            column: values.get(f"datasets.field_{field}") or field
            for column, field in fields.items()
        }
        named |= {f"{DATA}.{column}_column": name for column, name in columns.items()}
        return Converted({f"{DATA}.name": "preference", **named}, how=how)
    if kind == "chat_template":
        layout = "sharegpt" if roles_by_from(values) else "messages"
        column = values.get("datasets.field_messages") or "messages"
        return Converted(
            {
                f"{DATA}.name": "chat",
                f"{DATA}.layout": layout,
                f"{DATA}.column": column,
                "kind": "sft",
                **named,
            },
            how=how,
        )
    if kind == "alpaca":
        how = "; ".join(filter(None, [ALPACA, how]))
        return Converted(
            {f"{DATA}.name": "chat", f"{DATA}.layout": "alpaca", "kind": "sft", **named}, how=how
        )
    if kind == "completion":
        return Converted(
            {
                f"{DATA}.name": "text",
                f"{DATA}.column": values.get("datasets.field") or "text",
                **named,
            },
            how=how,
        )
    return Converted({f"{DATA}.name": "chat", **named}, refused=NO_TYPE)


def roles_by_from(values: Values) -> bool:
    """Whether messages say who speaks under `from`, as ShareGPT's do."""
    mapped = values.get("datasets.message_property_mappings")
    role = (
        mapped.get("role")
        if isinstance(mapped, dict)
        else values.get("datasets.message_field_role")
    )
    return role == "from"


def mapping(_: Key, value: Any, values: Values) -> Converted:
    """role and content, or from and value, which are the layout sharegpt."""
    known = ({"role": "role", "content": "content"}, {"role": "from", "content": "value"})
    if value in (None, {}) or any(value == one for one in known):
        return Converted(
            {f"{DATA}.layout": "sharegpt" if roles_by_from(values) else "messages"}
            if value and not is_pairs(values)
            else {}
        )
    return Converted(
        {}, refused="messages have role and content, or from and value: rename them in the files"
    )


def role_field(_: Key, value: Any, values: Values) -> Converted:
    """An older spelling of message_property_mappings."""
    return Converted(
        {},
        refused=""
        if value in (None, "role", "content", "from", "value")
        else "rename it in the files",
    )


def path(_: Key, value: Any, values: Values) -> Converted:
    """A file or folder as it is; a name on the Hub becomes a folder for its files."""
    return Converted({f"{DATA}.path": where(values)[0]} if value else {})


def files(_: Key, value: Any, values: Values) -> Converted:
    """The path of the data."""
    if isinstance(value, list) and len(value) > 1:
        return Converted(
            {}, refused="several files: put them in a folder, or name them with a glob"
        )
    return Converted({f"{DATA}.path": where(values)[0]} if value else {})


def column(name: str) -> Any:
    """A conversion to a column of the data."""

    def convert(_: Key, value: Any, values: Values) -> Converted:
        """A column of the records."""
        of_pairs = name in ("prompt", "chosen", "rejected")
        if not value or of_pairs != is_pairs(values):
            return Converted({})
        return Converted({f"{DATA}.{name}_column" if of_pairs else f"{DATA}.column": value})

    return convert


def messages(key: Key, value: Any, values: Values) -> Converted:
    """The column of the conversation, or of what was said before both replies."""
    converted: Converted = column("prompt" if is_pairs(values) else "messages")(key, value, values)
    return converted


def roles(_: Key, value: Any, values: Values) -> Converted:
    """What the assistant says, or all of it."""
    trained = [value] if isinstance(value, str) else value
    if trained in (None, ["assistant"], ["gpt"]):
        return Converted({})
    return Converted({}, refused="replies count, or everything: training.dataset.train_on")


def inputs(_: Key, value: Any, values: Values) -> Converted:
    """true is train_on: all, false train_on: replies."""
    if is_pairs(values) or str(values.get("datasets.type")) not in ("chat_template", "alpaca"):
        return Converted(
            {}, refused="what is compared are the replies" if value and is_pairs(values) else ""
        )
    return Converted({f"{DATA}.train_on": "all" if value else "replies"})


def ends(_: Key, value: Any, __: Values) -> Converted:
    """The token that ends a reply counts with it."""
    return Converted(
        {},
        refused=""
        if value in (None, "turn")
        else "the token that ends a reply counts where the reply does",
    )


def packing(_: Key, value: Any, values: Values) -> Converted:
    """Conversations share rows and do not see each other."""
    if not value:
        text = str(values.get("datasets.type")) == "completion" and not is_pairs(values)
        return Converted({f"{DATA}.packing": None} if text else {})
    if is_pairs(values):
        return Converted({}, refused="pairs have rows of their own")
    if not is_own(values):
        return Converted(
            {},
            refused="a class of transformers sees all of a row: each conversation has one of its own",
        )
    return Converted({f"{DATA}.packing": "best_fit", "model.attention.mask": "block_causal"})


def too_long(_: Key, value: Any, values: Values) -> Converted:
    """drop, cut for truncate, refuse for raise."""
    meant = (
        {None: "drop", "drop": "drop", "truncate": "cut", "raise": "refuse"}.get(value)
        if not isinstance(value, (list, dict))
        else None
    )
    if meant is None or (meant == "cut" and is_pairs(values)):
        return Converted(
            {},
            refused="a pair is left out or refused"
            if meant
            else "rows too long are dropped, cut or refused",
        )
    return Converted({f"{DATA}.too_long": meant})


def template(_: Key, value: Any, __: Values) -> Converted:
    """The tokenizer's own template; another one is a file under training.dataset.template."""
    return Converted(
        {}, how="" if value in (None, "tokenizer_default", "jinja") else f"left out: {TEMPLATE}"
    )


def template_file(_: Key, value: Any, __: Values) -> Converted:
    """A file with a template; a template as text has to be one."""
    if not value:
        return Converted({})
    if isinstance(value, str) and "{" not in value:
        return Converted({f"{DATA}.template": value})
    return Converted(
        {}, refused="write the template into a file, and name it in training.dataset.template"
    )
