"""Conversion of axolotl's data settings."""

import re
from pathlib import Path
from typing import Any

from titanrun.components.validation.config import MAX_SHARE, MIN_COUNT
from titanrun.recipe.migrate.axolotl_model import is_native_family
from titanrun.recipe.migrate.axolotl_pairs import (
    DATASET_TARGET,
    SYSTEM,
    convert_axolotl_labelled,
    convert_axolotl_pairs,
    has_system_column,
)
from titanrun.recipe.migrate.axolotl_prompts import convert_prompt_format
from titanrun.recipe.migrate.key_mapping import (
    DATA_SUFFIXES,
    FILES_HAVE_NONE,
    ONE_HELD_OUT,
    OTHER_RECORDS,
    ConvertedValue,
    SourceKey,
    SourceValues,
    hold_out_dataset,
    is_hub_name,
)

PAIR_LOSSES = ("dpo", "ipo", "orpo", "simpo")
"""Kinds of `rl` that are losses of pairs, by the same names here."""
KTO = "kto"
"""Kind of `rl` that is a loss of labelled replies, by the same name here."""
HUB_KEYS = {"split": "split", "name": "subset", "revision": "revision"}
"""Keys of a dataset on the Hub, and ours."""
ALPACA = (
    "without axolotl's Alpaca prompt text: the model's chat template formats instruction and input"
)
SYSTEM_READ = "an empty text in column system is none, not an empty system message"
SYSTEM_UNKNOWN = "axolotl reads a column `system`: if the records have one, set system_column"
PART_OF_FILE = "files are read whole: keep only these records in the files"
ALL_FILES = (
    "all files of a folder are read: if some belong to another split or subset, name those of this "
    "one in training.dataset.path, by a glob"
)
ONE_SHARD = (
    "only one shard of the shuffled records would be read: keep only its records in the files, or "
    'of a dataset on the Hub, name a part in training.dataset.split, such as "train[:10%]"'
)
ROLES = ("system", "developer", "user", "assistant", "tool")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
OTHER_ROLES = (
    f"the files must name the roles {', '.join(ROLES[:-1])} or {ROLES[-1]}{{}}: where they have "
    "other names, rename them"
)
COMMIT = re.compile(r"[0-9a-f]{40}")
UNKNOWN_FORMAT = (
    "not a supported format: write the records as messages or ShareGPT, and the dataset as {name: "
    "chat, layout: messages, path: FILE}"
)
TEMPLATE = (
    "the template in the model's folder is used: if it differs from axolotl's, save axolotl's as a "
    "file and name it in tokenizer.chat_template"
)

# chat templates that write the same text
SAME_TEMPLATES = {
    "alpaca": "alpaca",
    "chatml": "chatml",
    "deepseek_v3": "deepseek_v3",
    "gemma3": "gemma3",
    "llama3": "llama3",
    "qwen_25": "qwen2_5",
}
OTHER_TEMPLATES = {
    "phi_3": ("phi3", "without a begin token, and with an end token after the last turn"),
    "mistral_v7_tekken": ("mistral", "without axolotl's default system text"),
    "qwen3": ("qwen3", "with a block of thoughts, also an empty one, in every reply"),
}


def is_preference_data(values: SourceValues) -> bool:
    """Return whether the data are pairs of replies, or labelled replies."""
    return values.get("rl") in (*PAIR_LOSSES, KTO)


def locate_axolotl_data(values: SourceValues) -> dict[str, str]:
    """Return the settings that say where the data are: files, or a dataset on the Hub."""
    path, files = str(values.get("datasets.path") or "data"), values.get("datasets.data_files")
    if isinstance(files, list) and len(files) == 1:
        files = files[0]
    if isinstance(files, str):
        is_whole = path in ("json", "csv", "parquet", "text") or "/" in files
        return {f"{DATASET_TARGET}.path": files if is_whole else f"{path}/{files}"}
    return {f"{DATASET_TARGET}.{'repo' if is_hub_name(path) else 'path'}": path}


def convert_axolotl_dataset(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map chat_template to chat, alpaca to its layout, completion to text.

    Pairs become preference.
    """
    kind = str(value or "")
    named = locate_axolotl_data(values)
    if values.get("rl") == KTO:
        return convert_axolotl_labelled(kind, values, named)
    if is_preference_data(values):
        return convert_axolotl_pairs(kind, values, named)
    chat = {f"{DATASET_TARGET}.name": "chat"}
    found = convert_prompt_format(value, values, named)
    if found is not None:
        return found
    if kind == "chat_template":
        layout = "sharegpt" if uses_sharegpt_keys(values) else "messages"
        chat |= {
            f"{DATASET_TARGET}.layout": layout,
            f"{DATASET_TARGET}.column": values.get("datasets.field_messages") or "messages",
        }
        has_system = has_system_column(named)
        chat |= {f"{DATASET_TARGET}.system_column": SYSTEM} if has_system else {}
        how = {True: SYSTEM_READ, None: SYSTEM_UNKNOWN, False: ""}[has_system]
        return ConvertedValue({**chat, "kind": "sft", **named}, how=how)
    if kind == "alpaca":
        chat |= {f"{DATASET_TARGET}.layout": "alpaca"}
        return ConvertedValue({**chat, "kind": "sft", **named}, how=ALPACA)
    if kind == "completion":
        return ConvertedValue(
            {
                f"{DATASET_TARGET}.name": "text",
                f"{DATASET_TARGET}.column": values.get("datasets.field") or "text",
                **named,
            }
        )
    return ConvertedValue({**chat, **named}, refused=UNKNOWN_FORMAT)


def convert_test_datasets(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Name the held-out records of one dataset, in the format of those to train on."""
    if not value:
        return ConvertedValue({})
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        return ConvertedValue({}, refused=ONE_HELD_OUT)
    other = {name: one for name, one in values.items() if not name.startswith("datasets.")}
    own = other | {f"datasets.{name}": one for name, one in value[0].items()}
    return hold_out_dataset(convert_axolotl_dataset(key, value[0].get("type"), own), DATASET_TARGET)


def convert_val_set_size(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Hold out a share or a number of the records; 0 holds none out."""
    if not value:
        return ConvertedValue({})
    if is_holdout_size(value):
        return ConvertedValue({"validation.holdout": value}, how=OTHER_RECORDS)
    return ConvertedValue({}, refused="hold out a share up to 0.5, or 2 records or more")


def is_holdout_size(value: Any) -> bool:
    """Return whether a value is a share or a number that validation.holdout accepts."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= MAX_SHARE or (value >= MIN_COUNT and value == value // 1)


def uses_sharegpt_keys(values: SourceValues) -> bool:
    """Return whether messages name the speaker under `from`, as in ShareGPT."""
    mapped = values.get("datasets.message_property_mappings")
    role = (
        mapped.get("role")
        if isinstance(mapped, dict)
        else values.get("datasets.message_field_role")
    )
    return role == "from"


def convert_message_mapping(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Accept role and content, or from and value, which are the layout sharegpt."""
    known = ({"role": "role", "content": "content"}, {"role": "from", "content": "value"})
    if value in (None, {}) or any(value == one for one in known):
        return ConvertedValue(
            {f"{DATASET_TARGET}.layout": "sharegpt" if uses_sharegpt_keys(values) else "messages"}
            if value and not is_preference_data(values)
            else {}
        )
    return ConvertedValue(
        {}, refused="messages must have role and content, or from and value: rename the keys"
    )


def convert_role_field(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Accept an older spelling of message_property_mappings."""
    return ConvertedValue(
        {},
        refused=""
        if value in (None, "role", "content", "from", "value")
        else "rename it in the files",
    )


def convert_dataset_path(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep the path of a file or folder, or the name of a dataset on the Hub."""
    return ConvertedValue(locate_axolotl_data(values) if value else {})


def convert_hub_key(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep split, subset and revision of a dataset on the Hub; files have none."""
    if value is None:
        return ConvertedValue({})
    meant = HUB_KEYS[key.path.rpartition(".")[2]]
    place = locate_axolotl_data(values)
    if f"{DATASET_TARGET}.repo" not in place:
        files = values.get("datasets.data_files") or Path(place[f"{DATASET_TARGET}.path"])
        return convert_file_setting(meant, value, files)
    if meant == "revision" and COMMIT.fullmatch(str(value)) is None:
        return ConvertedValue({}, how="left out: titanrun data pin writes the commit of the branch")
    return ConvertedValue({f"{DATASET_TARGET}.{meant}": value})


def convert_file_setting(meant: str, value: Any, files: Any) -> ConvertedValue:
    """Refuse a part of the records, and a split or a subset of a folder, all of which is read."""
    if meant == "split" and "[" in str(value):
        return ConvertedValue({}, refused=PART_OF_FILE)
    is_folder = isinstance(files, Path) and files.suffix not in DATA_SUFFIXES
    if meant != "revision" and is_folder:
        return ConvertedValue({}, refused=ALL_FILES)
    return ConvertedValue({}, how=FILES_HAVE_NONE)


def convert_shards(key: SourceKey, _: Any, values: SourceValues) -> ConvertedValue:
    """Refuse one shard of several, whose records alone would be read."""
    is_one = values.get("datasets.shards") not in (None, 0, 1)
    return ConvertedValue({}, refused=key.how if is_one else "")


def convert_axolotl_data_files(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the path of the data."""
    if isinstance(value, list) and len(value) > 1:
        return ConvertedValue(
            {}, refused="several files: move them to one folder, or name them with a glob"
        )
    return ConvertedValue(locate_axolotl_data(values) if value else {})


def make_column_conversion(name: str) -> Any:
    """Return a conversion to a column of the data."""

    def convert(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a column of the records."""
        of_pairs = name in ("prompt", "chosen", "rejected")
        if not value or of_pairs != is_preference_data(values) or values.get("rl") == KTO:
            return ConvertedValue({})
        return ConvertedValue(
            {f"{DATASET_TARGET}.{name}_column" if of_pairs else f"{DATASET_TARGET}.column": value}
        )

    return convert


def convert_messages_column(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the column of the conversation, or of the prompt of a pair."""
    converted: ConvertedValue = make_column_conversion(
        "prompt" if is_preference_data(values) else "messages"
    )(key, value, values)
    return converted


def convert_trained_roles(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Accept the assistant's replies or everything."""
    trained = [value] if isinstance(value, str) else value
    if trained in (None, ["assistant"], ["gpt"]):
        return ConvertedValue({})
    return ConvertedValue(
        {}, refused="only replies or everything can be trained on: training.dataset.train_on"
    )


def convert_roles(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Leave out roles that keep their names, also those of ShareGPT.

    Refuse a role for which no usual name is listed.
    """
    usual = {**SHAREGPT_ROLES} if uses_sharegpt_keys(values) else {}
    names = OTHER_ROLES.format(f", or {' and '.join(usual)}" if usual else "")
    pairs = value.items() if isinstance(value, dict) else [("", value)] if value else []
    others = []
    for role, listed in pairs:
        spelled = listed if isinstance(listed, list) else [listed]
        known = [usual.get(str(name), name) for name in spelled]
        if role not in ROLES or role not in known:
            return ConvertedValue({}, refused=names)
        others += [name for name in known if name != role]
    how = f"left out: {names}" if others else "left out: roles keep their names"
    return ConvertedValue({}, how=how)


def convert_train_on_inputs(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map true to train_on: all, false to train_on: replies."""
    if is_preference_data(values) or str(values.get("datasets.type")) not in (
        "chat_template",
        "alpaca",
    ):
        return ConvertedValue(
            {},
            refused="only the replies of a pair are compared"
            if value and is_preference_data(values)
            else "",
        )
    return ConvertedValue({f"{DATASET_TARGET}.train_on": "all" if value else "replies"})


def convert_train_on_eos(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Accept turn: the token that ends a reply is trained on with the reply."""
    return ConvertedValue(
        {},
        refused=""
        if value in (None, "turn")
        else "the token that ends a reply is trained on if the reply is",
    )


def convert_sample_packing(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Pack conversations into sequences in which they do not attend to each other."""
    if not value:
        text = str(values.get("datasets.type")) == "completion" and not is_preference_data(values)
        return ConvertedValue({f"{DATASET_TARGET}.packing": None} if text else {})
    if is_preference_data(values):
        return ConvertedValue({}, refused="pairs are not packed")
    if not is_native_family(values):
        return ConvertedValue(
            {},
            refused="a transformers model attends to the whole sequence: each conversation is a "
            "separate sequence",
        )
    return ConvertedValue(
        {f"{DATASET_TARGET}.packing": "best_fit", "model.attention.mask": "block_causal"}
    )


def convert_excess_length(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map drop to drop, truncate to cut, raise to refuse."""
    meant = (
        {None: "drop", "drop": "drop", "truncate": "cut", "raise": "refuse"}.get(value)
        if not isinstance(value, (list, dict))
        else None
    )
    if meant is None or (meant == "cut" and is_preference_data(values)):
        return ConvertedValue(
            {},
            refused="a pair that is too long can be dropped or refused"
            if meant
            else "sequences that are too long can be dropped, cut or refused",
        )
    return ConvertedValue({f"{DATASET_TARGET}.too_long": meant})


def convert_chat_template(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Name the template of the same format; else use the one in the model's folder."""
    if isinstance(value, str) and value in SAME_TEMPLATES:
        return ConvertedValue({"tokenizer.chat_template": SAME_TEMPLATES[value]})
    if isinstance(value, str) and value in OTHER_TEMPLATES:
        name, how = OTHER_TEMPLATES[value]
        return ConvertedValue({"tokenizer.chat_template": name}, how=how)
    return ConvertedValue(
        {}, how="" if value in (None, "tokenizer_default", "jinja") else f"left out: {TEMPLATE}"
    )


def convert_chat_template_file(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Keep a file with a template; refuse a template written as text."""
    if not value:
        return ConvertedValue({})
    if isinstance(value, str) and "{" not in value:
        return ConvertedValue({"tokenizer.chat_template": value})
    return ConvertedValue(
        {}, refused="write the template to a file, and name it in tokenizer.chat_template"
    )


def convert_special_tokens(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Leave out a token for padding, which has no effect; refuse other tokens."""
    if not value or (isinstance(value, dict) and set(value) == {"pad_token"}):
        return ConvertedValue({}, how="left out: padding counts nothing, whatever its token is")
    return ConvertedValue({}, refused="vocabulary and tokens come from the model's folder")


def convert_eot_tokens(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Stop at tokens that end a turn."""
    return ConvertedValue({"tokenizer.stop_tokens": value} if value else {})
