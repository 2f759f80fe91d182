"""Builds a class of transformers without memory for its weights, and finds in it the parts that titanrun lays out."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from titanrun.config.problems import fail
from titanrun.distributed.meta_device import WithoutDraws
from titanrun.models.transformers.config import PATH, TransformersConfig, mapping_in
from titanrun.models.transformers.remote_code import advice_on_code, remote_class

IMPLEMENTATION = ("model", "attn_implementation")
# of config.json: how the weights beside it are stored, which is the recipe's to say here
STORAGE = ("dtype", "torch_dtype", "quantization_config")
EMBEDDING, LAYERS, NORM, OUTPUT = "tok_embeddings", "layers", "norm", "output"


def library() -> Any:
    """The package transformers. Raises ProblemsFound where it is not installed."""
    try:
        return import_module("transformers")
    except ImportError as error:
        message = f"model transformers needs a package that is not installed: {error.name}"
        raise fail(
            "usage", message, path=("model", "name"), help='pip install "titanrun[transformers]"'
        ) from error


def huggingface_configuration(config: TransformersConfig) -> Any:
    """The config object of transformers. Raises ProblemsFound for an architecture that this version does not have."""
    transformers = library()
    written = {
        key: value for key, value in mapping_in(config.config_json).items() if key not in STORAGE
    }
    kind = written.pop("model_type", None)
    own = remote_class(config, written, "AutoConfig")
    strict = import_module("huggingface_hub.errors").StrictDataclassError
    try:
        made = transformers.AutoConfig.for_model(kind, **written) if own is None else own(**written)
    except (ValueError, KeyError, TypeError, AttributeError, strict) as error:
        if own is not None or kind in transformers.CONFIG_MAPPING:
            raise fail("file", f"config.json: {first_line(error)}", path=PATH) from error
        message = f"transformers {transformers.__version__} has no architecture '{kind}'"
        raise fail("file", message, path=PATH, help=advice_on_code(written)) from error
    made.vocab_size = config.vocab_size
    if hasattr(made, "max_position_embeddings"):
        made.max_position_embeddings = config.max_seq_len
    made.use_cache = False
    return made


def causal_class(configuration: Any) -> Any:
    """The class that models tokens with this config object. Raises ProblemsFound where there is none."""
    classes = library().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    try:
        return classes[type(configuration)]
    except KeyError:
        message = (
            f"transformers has no causal language model of model_type '{configuration.model_type}'"
        )
        raise fail(
            "file", message, path=PATH, help="name an architecture that AutoModelForCausalLM knows"
        ) from None


def skeleton(config: TransformersConfig) -> Any:
    """The class's own module: parameters on the meta device, buffers as it computes them, in torch's default dtype.

    Raises ProblemsFound where transformers refuses the config, and for a class that sees tokens to come.
    """
    configuration = huggingface_configuration(config)
    own = remote_class(config, mapping_in(config.config_json), "AutoModelForCausalLM")
    found = causal_class(configuration) if own is None else own
    hook = register_module_parameter_registration_hook(without_memory)
    try:
        with torch.device("cpu"), WithoutDraws():
            made = found._from_config(
                configuration,
                dtype=torch.get_default_dtype(),
                attn_implementation=config.attn_implementation,
            )
    except (ValueError, ImportError) as error:
        help = (
            None
            if config.attn_implementation == "eager"
            else "where the class lacks it, use attn_implementation: eager"
        )
        raise fail(
            "conflict", f"{found.__name__}: {first_line(error)}", path=IMPLEMENTATION, help=help
        ) from error
    except (
        RuntimeError,
        AssertionError,
        KeyError,
        TypeError,
        AttributeError,
        ZeroDivisionError,
    ) as error:
        raise fail(
            "file",
            f"{found.__name__} cannot be built from config.json: {first_line(error)}",
            path=PATH,
        ) from error
    finally:
        hook.remove()
    if any(getattr(module, "is_causal", True) is False for module in made.modules()):
        message = f"{found.__name__} sees the tokens that it has to predict, as its config is"
        raise fail(
            "file",
            message,
            path=PATH,
            help="in a family that has the switch, write is_decoder: true into config.json",
        )
    return made


def without_memory(
    module: nn.Module, name: str, parameter: nn.Parameter | None
) -> nn.Parameter | None:
    """A parameter as it is registered, on the meta device."""
    if parameter is None or parameter.is_meta:
        return parameter
    return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)


def first_line(error: Exception) -> str:
    """The first sentence of what an error of a library says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]


def layer_count(configuration: Any) -> int:
    """How many layers a config object asks for; 0 where it does not say."""
    found = getattr(configuration, "num_hidden_layers", 0)
    return found if type(found) is int else 0


def parts_of(huggingface: Any) -> dict[str, str]:
    """Where in a class of transformers the parts of a model are: titanrun's name of each, and the path of its module.

    Every weight is in one part. Beside embedding, layers, norm and output head there are those that a class has more, such as learned
    positions, under their path in it. Raises ProblemsFound for a class that is built otherwise.
    """
    paths = {id(module): path for path, module in huggingface.named_modules()}
    layers = layers_path(huggingface)
    ends = {
        EMBEDDING: huggingface.get_input_embeddings(),
        OUTPUT: huggingface.get_output_embeddings(),
    }
    if layers is None or any(id(module) not in paths for module in ends.values()):
        message = f"{type(huggingface).__name__} has no embedding, list of layers and output head that can be told apart"
        raise fail(
            "conflict", message, path=("model", "name"), help="take a family of titanrun's own"
        )
    found = {EMBEDDING: paths[id(ends[EMBEDDING])], LAYERS: layers, OUTPUT: paths[id(ends[OUTPUT])]}
    norm = norm_path(huggingface, layers)
    if norm is not None:
        found[NORM] = norm
    rest = {path.replace(".", "_"): path for path in other_paths(huggingface, set(found.values()))}
    refuse_loose_weights(huggingface, [*found.values(), *rest.values()])
    order = (EMBEDDING, LAYERS, NORM, OUTPUT)
    return {name: found[name] for name in order if name in found} | rest


def layers_path(huggingface: Any) -> str | None:
    """The path of the list of layers: the first one that has as many modules as the config says."""
    count = layer_count(huggingface.config)
    lists = (
        path
        for path, module in huggingface.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    )
    return min(lists, key=lambda path: path.count("."), default=None)


def norm_path(huggingface: Any, layers: str) -> str | None:
    """The path of the norm behind the layers: the last module beside them that is one."""
    holder = layers.rpartition(".")[0]
    names = [
        name
        for name, module in huggingface.get_submodule(holder).named_children()
        if "norm" in type(module).__name__.lower()
    ]
    behind = [name for name in names if "emb" not in name]
    return ".".join(filter(None, (holder, behind[-1]))) if behind else None


def other_paths(huggingface: Any, taken: set[str]) -> Iterator[str]:
    """The largest modules that hold none of the taken ones."""

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


def refuse_loose_weights(huggingface: Any, paths: list[str]) -> None:
    """Raises ProblemsFound for weights outside of all parts, and for weights that two modules share other than embedding and head."""
    weights = dict(huggingface.named_parameters(remove_duplicate=False))
    loose = [name for name in weights if not any(name.startswith(f"{path}.") for path in paths)]
    embedding = huggingface.get_input_embeddings().weight
    shared = [
        name
        for name in weights
        if name not in dict(huggingface.named_parameters()) and weights[name] is not embedding
    ]
    for names, what in ((loose, "outside of its modules"), (shared, "that several modules share")):
        if names:
            message = f"{type(huggingface).__name__} has weights {what}: {names[0]}"
            raise fail(
                "conflict", message, path=("model", "name"), help="take a family of titanrun's own"
            )


def renamed(parts: Mapping[str, str], name: str) -> str:
    """The name in transformers of titanrun's `name`, given the parts' paths."""
    part, _, rest = name.partition(".")
    return f"{parts[part]}.{rest}"
