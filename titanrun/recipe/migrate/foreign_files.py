"""Files that are neither recipes nor configurations which `titanrun migrate` reads."""

from shlex import quote
from typing import Any, NoReturn

from titanrun.config.problems import Origin, problem_error
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.tree import Node, to_plain_data
from titanrun.recipe.migrate.axolotl_losses import TRL_LOSSES
from titanrun.recipe.migrate.axolotl_model import get_weights_folder
from titanrun.recipe.migrate.key_mapping import is_hub_name
from titanrun.recipe.migrate.program_detection import detect_program
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.resolving.read_recipe import RECIPE_KEYS, SWEEP_KEYS

OTHER_KEYS = ("extends", "replace")
"""Keys of a recipe file that are no settings."""
TRL_KEYS = frozenset(("model_name_or_path", "dataset_name", "per_device_train_batch_size"))
"""Keys of TRL's scripts, of which each of their files has one, and a recipe none."""
NO_RECIPE = "this is not a recipe: "
UNREAD = "titanrun migrate reads files of torchtitan, torchtune, axolotl and LLaMA-Factory"


def check_not_foreign(root: Node) -> None:
    """Raise if a file is a configuration of another program."""
    data: Any = to_plain_data(root)
    program = detect_program(data)
    if program:
        message = f"{NO_RECIPE}it looks like a configuration of {program}"
        hint = f"titanrun migrate --from {program} {root.origin.source.name}"
        raise problem_error("usage", message, origin=root.origin, hint=hint)
    is_recipe = "version" in data or not RECIPE_KEYS.isdisjoint(data)
    if not is_recipe and not TRL_KEYS.isdisjoint(data):
        raise_trl_problem(data, root.origin)


def check_has_recipe_keys(root: Node) -> None:
    """Raise if a file has no key of a recipe, nor of a sweep, not even a misspelled one.

    The plug-ins that it lists are loaded before: they may add sections.
    """
    data: Any = to_plain_data(root)
    known = (*get_recipe_class().model_fields, *OTHER_KEYS)
    if not SWEEP_KEYS.isdisjoint(data) or any(
        find_closest(key.partition(".")[0].rstrip("+"), known) for key in data
    ):
        return
    message = f"{NO_RECIPE}it has none of the keys of one"
    hint = f"{UNREAD}; titanrun init writes a recipe"
    raise problem_error("usage", message, origin=root.origin, hint=hint)


def raise_trl_problem(data: dict[str, Any], origin: Origin) -> NoReturn:
    """Raise what to do with a configuration of TRL: a new recipe, or a hint for each key."""
    model, dataset = data.get("model_name_or_path"), data.get("dataset_name")
    weights = get_weights_folder({"base_model": model}) if isinstance(model, str) else "MODEL"
    records = str(dataset) if isinstance(dataset, str) else "DATA"
    records = f"hub:{records}" if is_hub_name(records) else records
    kind = choose_trl_kind(data)
    others = format_word_list(
        [one for one in ("sft", "lora", "dpo", "orpo", "kto", "reward") if one != kind],
        conjunction="and",
    )
    hint = (
        f"titanrun init --kind {kind} --model {quote(weights)} --data {quote(records)} writes a "
        f"recipe, as do the kinds {others}; titanrun validate "
        f"{quote(origin.source.name)} tells what each key is here"
    )
    message = f"{NO_RECIPE}it looks like a configuration of TRL, which titanrun migrate cannot read"
    raise problem_error("usage", message, origin=origin, hint=hint)


def choose_trl_kind(data: dict[str, Any]) -> str:
    """Return the kind of fine-tuning that TRL's loss_type, or adapters, belong to."""
    loss_type = data.get("loss_type")
    kinds = loss_type if isinstance(loss_type, list) else [loss_type]
    names = {TRL_LOSSES.get(str(kind), {}).get("loss.name") for kind in kinds} - {None}
    if not names:
        return "lora" if data.get("use_peft") else "sft"
    return "kto" if names == {"kto"} else "dpo"
