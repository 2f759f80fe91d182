"""Config of a model whose class transformers has: any causal language model, described by its config.json."""

import json
import subprocess
import sys
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Literal

from titanrun.config.fields import bookkeeping, numerics, performance
from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.config.types import AUTO, OrAuto, PositiveInt, Text
from titanrun.models.shared.config import Feature, ModelConfig, Sizes
from titanrun.models.shared.huggingface_config import load_config_json

PATH = ("model", "path")
DESCRIBE = "titanrun.models.transformers.describe"
# what config.json calls the longest row, most usual name first
LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SHARDS = "share its weights with data_parallel_shard_degree"


class TransformersConfig(ModelConfig):
    """A causal language model of the package transformers, trained as its class computes it. Needs the extra `transformers`.

    For architectures that titanrun has no family for. Data parallelism, activation checkpointing and compile work on the class's list
    of layers; what needs to know a layer from within does not.
    """

    name: Literal["transformers"] = bookkeeping("transformers")
    builds: ClassVar = "titanrun.models.transformers.model:TransformersModel"
    extra: ClassVar = "transformers"
    lacks: ClassVar[frozenset[Feature]] = frozenset(
        {
            "pipeline parallelism",
            "context parallelism",
            "expert parallelism",
            "text generation",
            "a loss in chunks",
        }
    )
    instead: ClassVar[dict[Feature, str]] = {
        "pipeline parallelism": f"the forward pass of a class of transformers cannot be cut into stages: {SHARDS}",
        "context parallelism": "attention of a class of transformers sees whole rows only: use activation_checkpoint: full for longer ones",
        "a loss in chunks": "what a class of transformers does to logits behind its head is not known: use loss: cross_entropy",
        "expert parallelism": f"experts of a class of transformers stay whole: {SHARDS}",
    }
    splits_stream: ClassVar[bool] = False
    path: Text | None = bookkeeping(None, examples=["assets/Mistral-7B"])
    """Folder with config.json, or that file; null: the one in hf_assets_path, where weights and tokenizer are in any case."""
    config_json: OrAuto[Text] = numerics(
        "auto", examples=['{"model_type": "mistral", "num_hidden_layers": 32}']
    )
    """The architecture: what config.json says, as text; `auto` reads the file, so that a resolved recipe needs it no more."""
    max_seq_len: OrAuto[PositiveInt] = numerics("auto", unit="tokens", examples=[32768])
    """Longest row; the class may hold a table of so many positions."""
    attn_implementation: Literal["sdpa", "eager"] = performance("sdpa")
    """What computes attention: torch's kernels, or plain matrix products, for classes that have nothing else."""

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The text of a config.json, with the two sizes in it that titanrun itself needs."""
        refuse_other_kinds(written)
        sizes: Sizes = {"config_json": json.dumps(written, sort_keys=True)}
        for name, keys in {"vocab_size": ("vocab_size",), "max_seq_len": LENGTHS}.items():
            found = next(
                (
                    written[key]
                    for key in keys
                    if type(written.get(key)) is int and written[key] > 0
                ),
                None,
            )
            if found is not None:
                sizes[name] = found
        return sizes

    def sizes_from_file(self) -> Sizes | None:
        """What config.json says: the recipe's own text of it, or the file; None where a flavor is named instead."""
        if self.config_json != AUTO:
            return self.sizes_from_huggingface(mapping_in(self.config_json))
        if self.flavor not in (None, AUTO):
            if self.path is None:
                return None
            message = f"flavor '{self.flavor}' names an architecture, and path another"
            raise fail("conflict", message, path=("model", "flavor"), help="remove one of the two")
        if self.path is None and self.hf_assets_path is None:
            help = "name a folder with a config.json, or that file; or the folder that has the weights too, in hf_assets_path"
            raise fail("missing-key", "a transformers model needs path", path=PATH, help=help)
        if self.path is not None:
            return self.sizes_from_huggingface(load_config_json(self.path, at=PATH))
        return self.sizes_from_huggingface(load_config_json(self.hf_assets_path))

    def described(self) -> dict[str, Any]:
        """What only the class knows. Raises ProblemsFound.

        {"parameters": {name: shape}, "widths": {name: number}, "class": its name,
        "split": {"obstacles": [why tensor-parallel ranks cannot share it], "shares": {what each gets an equal part of: its number}}}
        """
        return described(self.model_dump_json())

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in the model's order; a tied head is not listed."""
        return {name: tuple(shape) for name, shape in self.described()["parameters"].items()}

    def width(self, name: str) -> int:
        """One of the numbers that transformers' config has for every architecture; 0 where it has none."""
        return int(self.described()["widths"][name])

    def attention_width(self) -> int:
        """Width of a query head's key plus width of its value, summed over query heads and layers."""
        return 2 * self.layer_count() * self.width("heads") * self.width("head_dim")

    def idle_parameter_count(self) -> int:
        """Parameters of the experts that a token is not sent to."""
        return self.width("idle")

    def stream_width(self) -> int:
        """Width of the residual stream."""
        return self.width("hidden")

    def key_value_width(self) -> int:
        """Width of the keys of all heads of one layer, plus that of the values."""
        return 2 * self.width("key_value_heads") * self.width("head_dim")

    def kept_widths(self) -> tuple[int, int]:
        """What a layer keeps of each token, counted as for a gated feed-forward layer, whatever the class has."""
        queries = self.width("heads") * self.width("head_dim")
        return 4 * self.stream_width(), 3 * queries + self.key_value_width() + 4 * self.width(
            "intermediate"
        )

    def hidden_widths(self) -> dict[str, int]:
        """None by a section of the config: `split_obstacle` knows those of the class."""
        return {}

    def split_obstacle(self, degree: int) -> str | None:
        """What keeps tensor-parallel ranks from sharing the class: its plan, or a number that `degree` does not divide."""
        found = self.described()
        reasons = [*found["split"]["obstacles"]]
        reasons += [
            f"{number} {what} are not {degree} equal parts"
            for what, number in found["split"]["shares"].items()
            if number % degree
        ]
        return f"{found['class']}: {reasons[0]}" if reasons else None

    def layer_count(self) -> int:
        """Layers of the class; where config.json names their number in one of the usual ways, the class is not asked."""
        written = mapping_in(str(self.config_json))
        return next(
            (written[key] for key in LAYER_COUNTS if type(written.get(key)) is int), None
        ) or self.width("layers")


def refuse_other_kinds(written: dict[str, Any]) -> None:
    """Raises ProblemsFound for a config.json that describes no causal language model by itself."""
    if not isinstance(written.get("model_type"), str):
        raise fail(
            "file",
            "config.json: model_type is missing",
            path=PATH,
            help="it names the class of transformers",
        )
    if written.get("is_encoder_decoder") is True:
        raise fail(
            "file", "config.json: a model with an encoder is no causal language model", path=PATH
        )
    if "text_config" in written:
        message = "config.json: its language model is nested in text_config, beside models of other inputs"
        raise fail(
            "file",
            message,
            path=PATH,
            help="write what text_config holds into a config.json of its own",
        )


def mapping_in(text: str) -> dict[str, Any]:
    """The mapping that config_json holds. Raises ProblemsFound where it is none."""
    try:
        written = json.loads(text)
    except json.JSONDecodeError as error:
        message = f"config_json is not JSON at line {error.lineno}: {error.msg.lower()}"
        raise fail(
            "conflict", message, path=("model", "config_json"), help="name the file in path instead"
        ) from None
    if not isinstance(written, dict):
        raise fail(
            "conflict",
            "config_json holds no mapping",
            path=("model", "config_json"),
            help="name the file in path instead",
        )
    return written


@cache
def described(config: str) -> dict[str, Any]:
    """What the class says of a config: asked in this process where it has torch already, else in one of its own.

    Raises ProblemsFound where transformers is missing or cannot build the model.
    """
    if "torch" in sys.modules:
        answer = import_module(DESCRIBE).answer(config)
    else:
        done = subprocess.run(
            [sys.executable, "-m", DESCRIBE],
            input=config,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise fail(
                "file",
                f"the process that asks transformers for the model's sizes ended with {done.returncode}: {last}",
                path=PATH,
            )
        answer = json.loads(done.stdout)
    if "problems" in answer:
        raise ProblemsFound(
            [
                Problem(code, message, tuple(path), help=help)
                for code, message, path, help in answer["problems"]
            ]
        )
    return dict(answer)
