"""Config of causal language models of transformers, described by their config.json."""

import json
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

from titanrun.config.control_characters import escape_line
from titanrun.config.fields import bookkeeping, numerics, performance
from titanrun.config.json_text import parse_json
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.trust import (
    TRUST_MODEL_CODE,
    NamedCode,
    compute_folder_digest,
    list_code_files,
)
from titanrun.config.types import AUTO, OrAuto, PositiveInt, Text
from titanrun.models.shared.config import ModelConfig, ModelFeature, Sizes
from titanrun.models.shared.huggingface_config import load_config_json

PATH_FIELD = ("model", "path")
DESCRIBE_MODULE = "titanrun.models.transformers.describe_model"
# keys of the maximum sequence length in config.json, most common first
LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)
CODE_SUFFIXES = (".py",)
LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SHARD_HINT = "shard its weights with data_parallel_shard_degree"


class TransformersConfig(ModelConfig):
    """A causal language model of transformers. Needs the extra `transformers`.

    It is trained as its class computes it, for architectures without a family in titanrun. Data
    parallelism, activation checkpointing and compile work on the class's list of layers. Features
    that depend on the inside of a layer are not available.
    """

    name: Literal["transformers"] = bookkeeping("transformers")
    builds: ClassVar = "titanrun.models.transformers.model:TransformersModel"
    extra: ClassVar = "transformers"
    unsupported_features: ClassVar[frozenset[ModelFeature]] = frozenset(
        {
            "pipeline parallelism",
            "context parallelism",
            "expert parallelism",
            "text generation",
            "a loss in chunks",
        }
    )
    alternative: ClassVar[dict[ModelFeature, str]] = {
        (
            "pipeline parallelism"
        ): f"the forward pass of a transformers class cannot be split into stages: {SHARD_HINT}",
        ("context parallelism"): (
            "attention of a transformers class needs whole sequences: use activation_checkpoint: "
            "full for longer ones"
        ),
        (
            "a loss in chunks"
        ): "a transformers class may change logits after its head: use loss: cross_entropy",
        "expert parallelism": f"experts of a transformers class cannot be split: {SHARD_HINT}",
    }
    supports_sequence_parallel: ClassVar[bool] = False
    path: Text | None = bookkeeping(None, examples=["assets/Mistral-7B"])
    """Folder with config.json, or that file. null: the one in hf_assets_path, which contains
    weights and tokenizer in any case.
    """
    config_json: OrAuto[Text] = numerics(
        "auto", examples=['{"model_type": "mistral", "num_hidden_layers": 32}']
    )
    """Architecture: the content of config.json as text. `auto` reads the file, so that a resolved
    recipe no longer needs it.
    """
    max_seq_len: OrAuto[PositiveInt] = numerics("auto", unit="tokens", examples=[32768])
    """Maximum sequence length. The class may contain a table of this many positions."""
    attn_implementation: Literal["sdpa", "eager"] = performance("sdpa")
    """Attention implementation: torch's kernels, or plain matrix products for classes without
    another one.
    """

    @classmethod
    def read_huggingface_sizes(cls, config_json: dict[str, Any]) -> Sizes:
        """Return the text of a config.json, and the two sizes that titanrun needs."""
        check_causal_lm_config(config_json)
        sizes: Sizes = {"config_json": json.dumps(config_json, sort_keys=True)}
        for name, keys in {"vocab_size": ("vocab_size",), "max_seq_len": LENGTH_KEYS}.items():
            found = next(
                (
                    config_json[key]
                    for key in keys
                    if type(config_json.get(key)) is int and config_json[key] > 0
                ),
                None,
            )
            if found is not None:
                sizes[name] = found
        return sizes

    def find_code_folder(self) -> Path | None:
        """Return the folder of config.json and the code beside it."""
        named = self.path or self.hf_assets_path
        if named is None:
            return None
        return Path(named).parent if Path(named).is_file() else Path(named)

    def find_model_code(self) -> NamedCode | None:
        """Return the code beside config.json if that names classes in it."""
        folder = self.find_code_folder()
        if folder is None or not list_code_files(folder, CODE_SUFFIXES):
            return None
        digest = compute_folder_digest(TRUST_MODEL_CODE, folder, CODE_SUFFIXES)
        text = f"classes in {escape_line(str(folder))}"
        return NamedCode(TRUST_MODEL_CODE, (), text, digest)

    def find_file_sizes(self) -> Sizes | None:
        """Return the sizes in the recipe's config_json, or in the file.

        Return None if a flavor is named instead.
        """
        if self.config_json != AUTO:
            return self.read_huggingface_sizes(parse_config_json(self.config_json))
        if self.flavor not in (None, AUTO):
            if self.path is None:
                return None
            message = f"flavor '{self.flavor}' and path name different architectures"
            raise problem_error(
                "conflict", message, path=("model", "flavor"), hint="remove one of the two"
            )
        if self.path is None and self.hf_assets_path is None:
            hint = (
                "name a folder with a config.json, or that file; or set hf_assets_path to the "
                "folder that also contains the weights"
            )
            raise problem_error(
                "missing-key", "a transformers model needs path", path=PATH_FIELD, hint=hint
            )
        if self.path is not None:
            return self.read_huggingface_sizes(load_config_json(self.path, field_path=PATH_FIELD))
        return self.read_huggingface_sizes(load_config_json(self.hf_assets_path))

    def get_description(self) -> dict[str, Any]:
        """Return the quantities that only the class knows.

        The keys are "parameters": {name: shape}, "widths": {name: number}, "class": its name, and
        "split": {"obstacles": [reasons against tensor parallelism], "shares": {quantity that ranks
        split equally: its number}}.

        Raises:
            ProblemsFound: if the class cannot be built.
        """
        return load_description(self.model_dump_json())

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every parameter, in the model's order.

        A tied head is not listed.
        """
        return {name: tuple(shape) for name, shape in self.get_description()["parameters"].items()}

    def get_dimension(self, name: str) -> int:
        """Return a number of transformers' config by titanrun's name, 0 if it has none."""
        return int(self.get_description()["widths"][name])

    def attention_dim(self) -> int:
        """Return key width plus value width, summed over query heads and layers."""
        return 2 * self.layer_count() * self.get_dimension("heads") * self.get_dimension("head_dim")

    def inactive_parameter_count(self) -> int:
        """Return the parameters of experts to which a token is not sent."""
        return self.get_dimension("idle")

    def model_dim(self) -> int:
        """Return the width of the residual stream."""
        return self.get_dimension("hidden")

    def kv_dim(self) -> int:
        """Return the width of keys plus values of all heads of one layer."""
        return 2 * self.get_dimension("key_value_heads") * self.get_dimension("head_dim")

    def layer_activation_elements(self) -> tuple[int, int]:
        """Return the elements that a layer keeps per token.

        They are counted as for a gated feed-forward layer, whatever the class has.
        """
        queries = self.get_dimension("heads") * self.get_dimension("head_dim")
        return 4 * self.model_dim(), 3 * queries + self.kv_dim() + 4 * self.get_dimension(
            "intermediate"
        )

    def get_hidden_dims(self) -> dict[str, int]:
        """Return no widths: `find_tensor_parallel_obstacle` checks those of the class."""
        return {}

    def find_tensor_parallel_obstacle(self, degree: int) -> str | None:
        """Return why tensor-parallel ranks cannot share the class, or None.

        Reasons are the class's plan, or a number that `degree` does not divide.
        """
        found = self.get_description()
        reasons = [*found["split"]["obstacles"]]
        reasons += [
            f"{number} {quantity} are not divisible by {degree}"
            for quantity, number in found["split"]["shares"].items()
            if number % degree
        ]
        return f"{found['class']}: {reasons[0]}" if reasons else None

    def layer_count(self) -> int:
        """Return the number of layers, from config.json if it has one of the usual keys.

        Otherwise the class is built to count them.
        """
        written = parse_config_json(str(self.config_json))
        return next(
            (written[key] for key in LAYER_COUNT_KEYS if type(written.get(key)) is int), None
        ) or self.get_dimension("layers")


def check_causal_lm_config(written: dict[str, Any]) -> None:
    """Raise ProblemsFound if a config.json does not describe a causal language model."""
    if not isinstance(written.get("model_type"), str):
        raise problem_error(
            "file",
            "config.json: model_type is missing",
            path=PATH_FIELD,
            hint="it selects the class of transformers",
        )
    if written.get("is_encoder_decoder") is True:
        raise problem_error(
            "file",
            "config.json: a model with an encoder is not a causal language model",
            path=PATH_FIELD,
        )
    if "text_config" in written:
        message = "config.json: the language model is nested in text_config of a multimodal model"
        raise problem_error(
            "file",
            message,
            path=PATH_FIELD,
            hint="write the content of text_config into a separate config.json",
        )


def parse_config_json(text: str) -> dict[str, Any]:
    """Return the mapping in config_json.

    Raises:
        ProblemsFound: if the text is not a JSON mapping.
    """
    try:
        written = parse_json(text)
    except json.JSONDecodeError as error:
        message = f"config_json is not JSON at line {error.lineno}: {error.msg.lower()}"
        raise problem_error(
            "conflict", message, path=("model", "config_json"), hint="name the file in path instead"
        ) from None
    except RecursionError:
        raise problem_error(
            "conflict", "config_json is nested too deeply", path=("model", "config_json")
        ) from None
    if not isinstance(written, dict):
        raise problem_error(
            "conflict",
            "config_json does not contain a mapping",
            path=("model", "config_json"),
            hint="name the file in path instead",
        )
    return written


@cache
def load_description(config: str) -> dict[str, Any]:
    """Return `describe_model` of a config, in this process if torch is loaded already.

    Otherwise a subprocess is started.

    Raises:
        ProblemsFound: if transformers is missing or cannot build the model.
    """
    if "torch" in sys.modules:
        answer = import_module(DESCRIBE_MODULE).describe_model(config)
    else:
        done = subprocess.run(
            [sys.executable, "-m", DESCRIBE_MODULE],
            input=config,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise problem_error(
                "file",
                f"the process that reads the model's sizes from transformers exited with "
                f"{done.returncode}: {last}",
                path=PATH_FIELD,
            )
        answer = json.loads(done.stdout)
    if "problems" in answer:
        raise ProblemsFound(
            [
                Problem(code, message, tuple(path), hint=hint)
                for code, message, path, hint in answer["problems"]
            ]
        )
    return dict(answer)
