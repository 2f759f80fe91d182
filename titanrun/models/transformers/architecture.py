"""Construction of transformers classes without weights, and search for their parts."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from titanrun.config.problems import problem_error
from titanrun.distributed.meta_device import SkipInit
from titanrun.models.transformers.config import PATH_FIELD, TransformersConfig, parse_config_json
from titanrun.models.transformers.remote_code import find_remote_class, format_remote_code_hint

IMPLEMENTATION_FIELD = ("model", "attn_implementation")
# keys of config.json about the storage of weights, which the recipe defines here
STORAGE_KEYS = ("dtype", "torch_dtype", "quantization_config")
EMBEDDING, LAYERS, NORM, OUTPUT = "tok_embeddings", "layers", "norm", "output"


def import_transformers() -> Any:
    """Return the package transformers.

    Raises:
        ProblemsFound: if it is not installed.
    """
    try:
        return import_module("transformers")
    except ImportError as error:
        message = f"model transformers needs the package {error.name}, which is not installed"
        raise problem_error(
            "usage", message, path=("model", "name"), hint='pip install "titanrun[transformers]"'
        ) from error


def build_transformers_config(config: TransformersConfig) -> Any:
    """Build the config object of transformers.

    Raises:
        ProblemsFound: if this version does not have the architecture, or rejects the config.
    """
    transformers = import_transformers()
    written = {
        key: value
        for key, value in parse_config_json(config.config_json).items()
        if key not in STORAGE_KEYS
    }
    kind = written.pop("model_type", None)
    own = find_remote_class(config, written, "AutoConfig")
    strict = import_module("huggingface_hub.errors").StrictDataclassError
    try:
        made = transformers.AutoConfig.for_model(kind, **written) if own is None else own(**written)
    except (ValueError, KeyError, TypeError, AttributeError, strict) as error:
        if own is not None or kind in transformers.CONFIG_MAPPING:
            raise problem_error(
                "file", f"config.json: {get_first_sentence(error)}", path=PATH_FIELD
            ) from error
        message = f"transformers {transformers.__version__} has no architecture '{kind}'"
        raise problem_error(
            "file", message, path=PATH_FIELD, hint=format_remote_code_hint(written)
        ) from error
    made.vocab_size = config.vocab_size
    if hasattr(made, "max_position_embeddings"):
        made.max_position_embeddings = config.max_seq_len
    made.use_cache = False
    return made


def get_causal_lm_class(configuration: Any) -> Any:
    """Return the causal language model class of a config object.

    Raises:
        ProblemsFound: if there is none.
    """
    classes = import_transformers().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    try:
        return classes[type(configuration)]
    except KeyError:
        message = (
            f"transformers has no causal language model of model_type '{configuration.model_type}'"
        )
        raise problem_error(
            "file",
            message,
            path=PATH_FIELD,
            hint="use an architecture that AutoModelForCausalLM supports",
        ) from None


def build_transformers_skeleton(config: TransformersConfig) -> Any:
    """Build the class's module: parameters on the meta device, computed buffers.

    It has torch's default dtype.

    Raises:
        ProblemsFound: if transformers rejects the config, or the class attends to later tokens.
    """
    configuration = build_transformers_config(config)
    own = find_remote_class(config, parse_config_json(config.config_json), "AutoModelForCausalLM")
    found = get_causal_lm_class(configuration) if own is None else own
    made = instantiate_skeleton(found, configuration, config.attn_implementation)
    if any(getattr(module, "is_causal", True) is False for module in made.modules()):
        message = f"{found.__name__} attends to the tokens that it has to predict with this config"
        raise problem_error(
            "file",
            message,
            path=PATH_FIELD,
            hint="if the class supports it, set is_decoder: true in config.json",
        )
    return made


def instantiate_skeleton(model_class: Any, configuration: Any, attn_implementation: str) -> Any:
    """Instantiate a class with parameters on the meta device.

    Raises:
        ProblemsFound: if transformers rejects the config.
    """
    # torch uses the hook's return value as the parameter, but annotates it as None
    hook = register_module_parameter_registration_hook(
        cast(Callable[..., None], move_parameter_to_meta)
    )
    try:
        with torch.device("cpu"), SkipInit():
            return model_class._from_config(
                configuration,
                dtype=torch.get_default_dtype(),
                attn_implementation=attn_implementation,
            )
    except (ValueError, ImportError) as error:
        hint = (
            None
            if attn_implementation == "eager"
            else "if the class does not support it, use attn_implementation: eager"
        )
        raise problem_error(
            "conflict",
            f"{model_class.__name__}: {get_first_sentence(error)}",
            path=IMPLEMENTATION_FIELD,
            hint=hint,
        ) from error
    except (
        RuntimeError,
        AssertionError,
        KeyError,
        TypeError,
        AttributeError,
        ZeroDivisionError,
    ) as error:
        raise problem_error(
            "file",
            f"{model_class.__name__} cannot be built from config.json: {get_first_sentence(error)}",
            path=PATH_FIELD,
        ) from error
    finally:
        hook.remove()


def move_parameter_to_meta(
    module: nn.Module, name: str, parameter: nn.Parameter | None
) -> nn.Parameter | None:
    """Return a parameter on the meta device. Called when it is registered."""
    if parameter is None or parameter.is_meta:
        return parameter
    return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)


def get_first_sentence(error: Exception) -> str:
    """Return the first sentence of a library's error message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]


def get_num_hidden_layers(configuration: Any) -> int:
    """Return the number of layers of a config object, 0 if it does not have it."""
    found = getattr(configuration, "num_hidden_layers", 0)
    return found if type(found) is int else 0


def get_part_paths(huggingface: Any) -> dict[str, str]:
    """Return the module paths of the parts of a transformers class by titanrun's names.

    Every weight is in one part. In addition to embedding, layers, norm and output head there may be
    others, such as learned positions, named by their path.

    Raises:
        ProblemsFound: if the class has another structure.
    """
    paths = {id(module): path for path, module in huggingface.named_modules()}
    layers = find_layers_path(huggingface)
    ends = {
        EMBEDDING: huggingface.get_input_embeddings(),
        OUTPUT: huggingface.get_output_embeddings(),
    }
    if layers is None or any(id(module) not in paths for module in ends.values()):
        message = (
            f"{type(huggingface).__name__} has no separate embedding, list of layers and "
            f"output head"
        )
        raise problem_error(
            "conflict", message, path=("model", "name"), hint="use one of titanrun's model families"
        )
    found = {EMBEDDING: paths[id(ends[EMBEDDING])], LAYERS: layers, OUTPUT: paths[id(ends[OUTPUT])]}
    norm = find_norm_path(huggingface, layers)
    if norm is not None:
        found[NORM] = norm
    rest = {
        path.replace(".", "_"): path for path in iter_other_paths(huggingface, set(found.values()))
    }
    check_weight_ownership(huggingface, [*found.values(), *rest.values()])
    order = (EMBEDDING, LAYERS, NORM, OUTPUT)
    return {name: found[name] for name in order if name in found} | rest


def find_layers_path(huggingface: Any) -> str | None:
    """Return the path of the first list with as many modules as the config has layers."""
    count = get_num_hidden_layers(huggingface.config)
    lists = (
        path
        for path, module in huggingface.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    )
    return min(lists, key=lambda path: path.count("."), default=None)


def find_norm_path(huggingface: Any, layers: str) -> str | None:
    """Return the path of the norm after the layers: the last norm next to them."""
    holder = layers.rpartition(".")[0]
    names = [
        name
        for name, module in huggingface.get_submodule(holder).named_children()
        if "norm" in type(module).__name__.lower()
    ]
    behind = [name for name in names if "emb" not in name]
    return ".".join(filter(None, (holder, behind[-1]))) if behind else None


def iter_other_paths(huggingface: Any, taken: set[str]) -> Iterator[str]:
    """Yield the largest modules that contain none of the taken ones."""

    def below(path: str, module: nn.Module) -> Iterator[str]:
        for name, child in module.named_children():
            inner = f"{path}.{name}" if path else name
            if inner in taken:
                continue
            if any(other.startswith(f"{inner}.") for other in taken):
                yield from below(inner, child)
            else:
                yield inner

    return below("", huggingface)


def check_weight_ownership(huggingface: Any, paths: list[str]) -> None:
    """Raise ProblemsFound for weights outside of all parts, and for shared weights.

    Embedding and head may share theirs.
    """
    weights = dict(huggingface.named_parameters(remove_duplicate=False))
    unowned = [name for name in weights if not any(name.startswith(f"{path}.") for path in paths)]
    embedding = huggingface.get_input_embeddings().weight
    shared = [
        name
        for name in weights
        if name not in dict(huggingface.named_parameters()) and weights[name] is not embedding
    ]
    for names, description in (
        (unowned, "outside of its modules"),
        (shared, "that several modules share"),
    ):
        if names:
            message = f"{type(huggingface).__name__} has weights {description}: {names[0]}"
            raise problem_error(
                "conflict",
                message,
                path=("model", "name"),
                hint=("use one of titanrun's model families"),
            )


def to_transformers_name(parts: Mapping[str, str], name: str) -> str:
    """Return transformers' name of titanrun's `name`, given the parts' paths."""
    part, _, rest = name.partition(".")
    return f"{parts[part]}.{rest}"
