"""What torchtune's builders of models and its adapters become."""

from typing import Any

from titanrun.recipe.migrate.keys import Converted, Key, Values

SAME_FLAVORS = {
    "llama3_8b": ("8B", True),
    "llama3_70b": ("70B", True),
    "llama3_1_8b": ("8B", False),
    "llama3_1_70b": ("70B", False),
    "llama3_1_405b": ("405B", False),
    "llama3_3_70b": ("70B", False),
}
"""The flavor of a builder, and whether it is of Llama 3.0, whose frequencies are not scaled."""
FROM_CONFIG = ("llama3_2_1b", "llama3_2_3b")
CUSTOM = ("llama3", "llama3_1")
OTHER_FAMILIES = (
    "qwen2",
    "qwen2_5",
    "llama2",
    "code_llama2",
    "mistral",
    "gemma",
    "gemma2",
    "phi3",
    "phi4",
)
ITS_CLASS = "a family of torchtune's that titanrun trains as the class of the transformers package computes it, from config.json"
OWN_NAMES = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "output_proj": "wo"}
CLASS_NAMES = {"output_proj": "o_proj"}
OWN_MLP, CLASS_MLP = ("w1", "w2", "w3"), ("gate_proj", "up_proj", "down_proj")
IN_ONE = (
    "the class of transformers keeps these projections in one matrix: name target_modules yourself"
)


def builder(values: Values) -> tuple[str, str]:
    """The last word of the builder without lora_ and qlora_, and the module that it is from: llama3_1_8b of llama3_1."""
    path = str(values.get("model._component_") or "").split(".")
    name = (
        path[-1].removeprefix("q").removeprefix("lora_")
        if path[-1].startswith(("lora_", "qlora_"))
        else path[-1]
    )
    return name, path[-2] if len(path) > 1 else ""


def adapter(values: Values) -> str:
    """lora, qlora, or empty for full fine-tuning."""
    name = str(values.get("model._component_") or "").rpartition(".")[2]
    if name.startswith("qlora_") or (
        name.startswith("lora_") and values.get("model.quantize_base")
    ):
        return "qlora"
    return "lora" if name.startswith("lora_") else ""


def is_own_family(values: Values) -> bool:
    """Whether titanrun's llama3 trains the model."""
    name, _ = builder(values)
    return name in SAME_FLAVORS or name in FROM_CONFIG or name in CUSTOM


def model(key: Key, value: Any, values: Values) -> Converted:
    """Builders of Llama 3 to 3.3 become llama3, others transformers; lora_ and qlora_ before the name become a converter."""
    name, module = builder(values)
    kind = adapter(values)
    targets: dict[str, Any] = {f"converters[{kind}].name": kind} if kind else {}
    if kind == "qlora":
        targets["checkpoint.adapters_only"] = True
    if name in SAME_FLAVORS:
        flavor, unscaled = SAME_FLAVORS[name]
        scaling = {"model.rope.scaling": None} if unscaled else {}
        return Converted({"model.name": "llama3", "model.flavor": flavor, **scaling, **targets})
    if name in FROM_CONFIG:
        return Converted(
            {"model.name": "llama3", "model.flavor": "auto", **targets},
            how="the sizes are read from config.json",
        )
    if name in CUSTOM:
        scaling = {"model.rope.scaling": None} if name == "llama3" else {}
        return Converted({"model.name": "llama3", **scaling, **targets})
    if module in OTHER_FAMILIES and not any(word in name for word in ("reward", "classifier")):
        return Converted({"model.name": "transformers", **targets}, how=ITS_CLASS)
    return Converted({}, refused="none of titanrun's families")


def of_adapter(field: str, otherwise: Any) -> Any:
    """A conversion to a field of the adapter; `otherwise` is torchtune's default."""

    def convert(_: Key, value: Any, values: Values) -> Converted:
        """A field of the converter lora or qlora."""
        name = adapter(values)
        meant = otherwise if value is None else value
        return (
            Converted({f"converters[{name}].{field}": meant})
            if name
            else Converted({}, how="left out: the model has no adapters")
        )

    return convert


def quantised(_: Key, value: Any, values: Values) -> Converted:
    """A frozen base in 4 bits: qlora instead of lora."""
    return Converted({"converters[qlora].name": "qlora"} if value and adapter(values) else {})


def targets(key: Key, value: Any, values: Values) -> Converted:
    """The projections that get adapters become target_modules, in the family's names."""
    name = adapter(values)
    if not name or not value:
        return Converted({})
    listed = values.get("model.lora_attn_modules")
    attention = listed if isinstance(listed, list) else []
    own = is_own_family(values)
    if not own and builder(values)[1] in ("phi3", "phi4"):
        return Converted({}, refused=IN_ONE)
    names = [
        (OWN_NAMES if own else CLASS_NAMES).get(str(module), str(module)) for module in attention
    ]
    names += (OWN_MLP if own else CLASS_MLP) if values.get("model.apply_lora_to_mlp") else ()
    names += ["output" if own else "lm_head"] if values.get("model.apply_lora_to_output") else []
    return Converted({f"converters[{name}].target_modules": names})


def size(key: Key, value: Any, values: Values) -> Converted:
    """A size of a model that is built from its sizes."""
    assert key.target is not None
    return (
        Converted({key.target: value})
        if builder(values)[0] in CUSTOM and value is not None
        else Converted({})
    )


def width(_: Key, value: Any, values: Values) -> Converted:
    """The width of the hidden layer; unset is torchtune's rule, 8/3 of embed_dim rounded up to a multiple of 256."""
    if builder(values)[0] not in CUSTOM:
        return Converted({})
    dim = values.get("model.embed_dim")
    if value is None and isinstance(dim, int):
        value = -(-4 * int(2 * dim / 3) // 256) * 256
    return Converted({"model.feed_forward.hidden_dim": value} if value else {})


def scale(_: Key, value: Any, values: Values) -> Converted:
    """Only the factor 8, of Llama 3.1 itself, for a model that is built from its sizes."""
    if builder(values)[0] != "llama3_1" or value in (None, 8):
        return Converted({})
    return Converted({"model.rope.scaling.name": "llama3", "model.rope.scaling.factor": value})
