"""How values of torchtitan become values of a recipe, where they do not stay as they are."""

from typing import Any

from titanrun.recipe.migrate.keys import Converted, Key, Needs, Values

OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam"}
CONVERTERS = {
    "quantize.linear.float8": "float8_linear",
    "quantize.grouped_mm.float8": "float8_grouped_mm",
    "quantize.linear.mx": "mxfp8_linear",
    "quantize.grouped_mm.mx": "mxfp8_grouped_mm",
}
OLD_CONVERTERS = {"float8": "quantize.linear.float8", "mx": "quantize.linear.mx"}
BF16_STATES = "fused_opt_states_bf16"
DECAYING = Needs(
    "lr_scheduler.decay_ratio",
    lambda value: value != 0,
    0.5,
    "with a decay: lr_scheduler.decay_ratio is not 0",
)
AUTO_FILTER = "auto_filter_small_kn"
FLAVORS = {"flux-debug": "debugmodel", "flux-dev": "dev", "flux-schnell": "schnell"}
NEW_MODULES = {"lm_head": "output"}
OWN_MODULES = ("torchtitan.models.", "torchtitan.experiments.")
REPLICATED = "llama3, without the replica groups of torchft"
COMPILED = (
    "the same model; parallelism comes from the parallelism section, not from compiler passes"
)
FAMILIES: dict[str, tuple[str, str]] = {
    "llama3_ft": ("llama3", REPLICATED),
    "simple_fsdp.llama3": ("llama3", COMPILED),
    "simple_fsdp.deepseek_v3": ("deepseek_v3", COMPILED),
    "compiler_toolkit.llama3": ("llama3", COMPILED),
    "compiler_toolkit.deepseek_v3": ("deepseek_v3", COMPILED),
    "autoparallel.llama3": ("llama3", COMPILED),
    "autoparallel.deepseek_v3": ("deepseek_v3", COMPILED),
    "autoparallel.local_map_deepseek_v3": ("deepseek_v3", COMPILED),
    "transformers_modeling_backend": (
        "transformers",
        "the component that trains a causal model of the transformers package",
    ),
}


def to(key: Key, value: Any, **words: str) -> Converted:
    """The value at the key's own target."""
    assert key.target is not None
    return Converted({key.target: value}, **words)


def looked_up(value: Any, table: dict[str, str]) -> Any:
    """What the table has for a word; everything else as it is."""
    return table.get(value, value) if isinstance(value, str) else value


def negative_is_auto(key: Key, value: Any, _: Values) -> Converted:
    """-1 is written auto."""
    return to(key, "auto" if isinstance(value, int) and value < 0 else value)


def minus_one_is_null(key: Key, value: Any, _: Values) -> Converted:
    """-1 is written null."""
    return to(key, None if value == -1 else value)


def zero_is_one(key: Key, value: Any, _: Values) -> Converted:
    """Every layer is "1"; torchtitan took "0" for it too."""
    return to(key, "1" if value == "0" else value)


def empty_is_null(key: Key, value: Any, _: Values) -> Converted:
    """Empty text, or 0, is written null."""
    return to(key, value or None)


def empty_is_refused(key: Key, value: Any, _: Values) -> Converted:
    """Empty is how torchtitan said that nothing is asked for; everything else has no place."""
    return Converted({}) if not value else Converted({}, refused=key.how)


def optimizer_name(key: Key, value: Any, _: Values) -> Converted:
    """Names are in lower case: adamw, adam."""
    return to(key, looked_up(value, OPTIMIZERS))


def kernel(key: Key, value: Any, _: Values) -> Converted:
    """fused_opt_states_bf16 becomes fused with optimizer.state_dtype bfloat16."""
    return (
        Converted({"optimizer.state_dtype": "bfloat16"}) if value == BF16_STATES else to(key, value)
    )


def lower_case(key: Key, value: Any, _: Values) -> Converted:
    """Written in lower case; torchtitan ignored the case."""
    return to(key, value.lower() if isinstance(value, str) else value)


def flavor(key: Key, value: Any, _: Values) -> Converted:
    """flux-debug, flux-dev and flux-schnell without the family in front."""
    return to(key, FLAVORS.get(str(value), value))


def family(key: Key, value: Any, _: Values) -> Converted:
    """Names of torchtitan's experiments become those of the family they train, see below; flux has loss: flow_matching."""
    name, how = FAMILIES.get(str(value), (value, ""))
    if value == "vlm":
        return Converted({}, refused="a vision-language model is none of titanrun's families")
    if name == "flux":
        return Converted({"model.name": name, "loss.name": "flow_matching"})
    return to(key, name, how=how)


def assets(key: Key, value: Any, values: Values) -> Converted:
    """Where model.tokenizer_path is written too, that one counts, as in torchtitan."""
    return Converted({}) if values.get("model.tokenizer_path") else to(key, value)


def tokenizer_path(key: Key, value: Any, _: Values) -> Converted:
    """A file tokenizer.model is refused, as by torchtitan: it has to be a folder."""
    if isinstance(value, str) and value.endswith("tokenizer.model"):
        return Converted(
            {},
            refused="torchtitan 0.2.2 refuses a tokenizer.model too: name a folder with tokenizer.json",
        )
    return to(key, value) if value else Converted({})


def converters(key: Key, value: Any, _: Values) -> Converted:
    """The list becomes components in the same order; their options, in the quantize sections, become their fields."""
    names = value if isinstance(value, list) else [value]
    known = [looked_up(looked_up(name, OLD_CONVERTERS), CONVERTERS) for name in names]
    return Converted({f"converters[{name}].name": name for name in known})


def module_names(key: Key, value: Any, _: Values) -> Converted:
    """The name lm_head of later versions becomes output."""
    if not isinstance(value, list):
        return word_list(key, value, _)
    names = [looked_up(name, NEW_MODULES) for name in value]
    return to(
        key, names, how="" if names == value else "lm_head is called output, as in torchtitan 0.2.2"
    )


def filtered_modules(key: Key, value: Any, values: Values) -> Converted:
    """The name auto_filter_small_kn among the modules, which is none of them, becomes a setting of its own."""
    if not isinstance(value, list) or AUTO_FILTER not in value:
        return module_names(key, value, values)
    converted = module_names(key, [name for name in value if name != AUTO_FILTER], values)
    section = str(key.target).rpartition(".")[0]
    return Converted({**converted.targets, f"{section}.{AUTO_FILTER}": True}, how=converted.how)


def word_list(key: Key, value: Any, _: Values) -> Converted:
    """Text with commas becomes a list."""
    return to(key, [word for word in value.split(",") if word] if isinstance(value, str) else value)


def switch(key: Key, value: Any, _: Values) -> Converted:
    """A switch; what it changes in meaning matters only while it is on."""
    return to(key, value, how=key.how if value else "")


def degree(key: Key, value: Any, _: Values) -> Converted:
    """A degree; what it changes in meaning matters only above 1."""
    return to(key, value, how=key.how if isinstance(value, int) and value > 1 else "")


def tensorboard(_: Key, value: Any, __: Values) -> Converted:
    """The switch becomes a tracker in the list."""
    return Converted({"metrics.trackers[tensorboard].name": "tensorboard"} if value else {})


def wandb(_: Key, value: Any, __: Values) -> Converted:
    """The switch becomes a tracker in the list."""
    return Converted({"metrics.trackers[wandb].name": "wandb"} if value else {})


def warmup(key: Key, value: Any, values: Values) -> Converted:
    """One longer than the schedule is cut, as in torchtitan."""
    longest = values.get("lr_scheduler.total_steps") or values.get("training.steps")
    if isinstance(value, int) and isinstance(longest, int) and value > longest:
        return to(
            key,
            longest,
            how=f"cut to the {longest} steps of the schedule, as in torchtitan; here a longer one is an error",
        )
    return to(key, value)


def export_dtype(key: Key, value: Any, values: Values) -> Converted:
    """The type of the last save: here that of the exported folder only."""
    if values.get("checkpoint.last_save_in_hf"):
        return to(key, value, how=key.how if value != key.default else "")
    if value == key.default:
        return Converted({})
    return Converted(
        {},
        refused="checkpoints keep the type of training; last_save_in_hf = true exports a folder in another type",
    )


def seed(key: Key, value: Any, _: Values) -> Converted:
    """Unset is 0: there is no unseeded run."""
    return (
        to(key, 0, how="torchtitan's run is unseeded and differs each time; here it is seed 0")
        if value is None
        else to(key, value)
    )


def custom_module(key: Key, value: Any, _: Values) -> Converted:
    """A module that adds keys: not needed for those of torchtitan's own extensions."""
    if not value:
        return Converted({})
    if str(value).startswith(OWN_MODULES):
        return Converted({}, how="left out: the keys of torchtitan's own extensions are known")
    return Converted(
        {},
        refused="recipes import nothing: an installed plug-in, listed under plugins, can add a section",
    )
