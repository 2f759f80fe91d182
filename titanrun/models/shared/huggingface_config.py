"""Reads a Hugging Face config.json key by key: nothing in it is passed over unless it is known to be harmless."""

import json
from pathlib import Path
from typing import Any

from titanrun.config.problems import DataPath, Problem, ProblemsFound, fail

FOLDER: DataPath = ("model", "hf_assets_path")
NO_DEFAULT = object()

# Keys of transformers 4 and 5 that the forward pass of a decoder in training does not depend on. How the weights are packed is
# asked where they are read.
HARMLESS_KEYS = """
    _name_or_path _commit_hash _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled architectures
    transformers_version torch_dtype dtype torchscript use_bfloat16 tf_legacy_loss return_dict use_return_dict
    output_hidden_states output_attentions output_scores return_dict_in_generate use_cache cache_implementation
    gradient_checkpointing initializer_range pretraining_tp chunk_size_feed_forward is_decoder is_encoder_decoder
    keys_to_ignore_at_inference finetuning_task task_specific_params problem_type id2label label2id num_labels classifier_dropout
    tokenizer_class prefix bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id
    forced_bos_token_id forced_eos_token_id max_length min_length do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences remove_invalid_values exponential_decay_length_penalty
    suppress_tokens begin_suppress_tokens unsloth_fixed unsloth_version quantization_config
"""
HARMLESS = frozenset(HARMLESS_KEYS.split())


def load_config_json(folder: str | None, *, at: DataPath = FOLDER) -> dict[str, Any]:
    """The mapping in `folder`/config.json, or in the file itself where that is named. Raises ProblemsFound at `at` where there is none."""
    if folder is None:
        help = "name the folder that holds config.json; titanrun download fetches one"
        raise fail("missing-key", "flavor auto needs hf_assets_path", path=at, help=help)
    path = Path(folder) if folder.endswith(".json") else Path(folder) / "config.json"
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise fail(
            "file", f"no file {path}", path=at, help="the model's sizes are read from config.json"
        ) from None
    except OSError as error:
        raise fail(
            "file", f"cannot read {path}: {(error.strerror or '').lower()}", path=at
        ) from None
    except UnicodeDecodeError:
        raise fail("file", f"{path} is not UTF-8 text", path=at) from None
    except json.JSONDecodeError as error:
        raise fail(
            "file", f"{path} is not JSON at line {error.lineno}: {error.msg.lower()}", path=at
        ) from None
    except ValueError:  # a NUL character
        raise fail("file", f"{str(path)!r} cannot be the path of a file", path=at) from None
    if not isinstance(written, dict):
        raise fail("file", f"{path} holds no mapping", path=at)
    return written


class HuggingFaceConfig:
    """One mapping of a config.json: keys are taken out one after the other, and what is wrong with them is kept.

    `within` is the key under which a nested mapping stands.
    """

    def __init__(self, written: dict[str, Any], *, family: str, within: str = "") -> None:
        self.rest = dict(written)
        self.family = family
        self.within = within
        self.problems: list[Problem] = []
        self.inner: list[HuggingFaceConfig] = []

    def whole(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """A positive whole number. null counts as absent."""
        return self.take(
            key, default, lambda value: type(value) is int and value > 0, "a positive whole number"
        )

    def count(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """A whole number from zero on."""
        return self.take(
            key,
            default,
            lambda value: type(value) is int and value >= 0,
            "a whole number from zero on",
        )

    def number(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """A positive number, as a float."""
        value = self.take(
            key,
            default,
            lambda value: type(value) in (int, float) and 0 < value < float("inf"),
            "a positive number",
        )
        return float(value) if type(value) is int else value

    def not_negative(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """A number that is zero or positive, as a float."""
        value = self.take(
            key,
            default,
            lambda value: type(value) in (int, float) and 0 <= value < float("inf"),
            "a number from zero on",
        )
        return float(value) if type(value) is int else value

    def flag(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """true or false."""
        return self.take(key, default, lambda value: type(value) is bool, "true or false")

    def mapping(self, key: str) -> dict[str, Any]:
        """A nested mapping; {} where it is absent or null."""
        value: dict[str, Any] = self.take(
            key, {}, lambda value: isinstance(value, dict), "a mapping"
        )
        return value

    def within_key(self, key: str) -> "HuggingFaceConfig":
        """A nested mapping, empty where it is absent or null, to be read like this one and closed with it."""
        inner = HuggingFaceConfig(self.mapping(key), family=self.family, within=self.place(key))
        self.inner.append(inner)
        return inner

    def only(self, key: str, *allowed: Any) -> Any:
        """A switch that must have one of the allowed values, or be absent or null, which counts as the first."""
        value = self.rest.pop(key, None)
        if value is None:
            return allowed[0]
        if not any(type(value) is type(option) and value == option for option in allowed):
            shown = " or ".join(json.dumps(option) for option in allowed)
            message = (
                f"{self.place(key)} is {json.dumps(value)}, and {self.family} has only {shown}"
            )
            self.refuse(
                message,
                help=f"these weights were trained with mathematics that {self.family} does not have",
            )
        return value

    def take(self, key: str, default: Any, accepts: Any, expected: str) -> Any:
        """The value of `key`, or the default where it is absent, null or wrong."""
        value = self.rest.pop(key, None)
        if value is None and default is not NO_DEFAULT:
            return default
        if value is None:
            self.refuse(f"{self.place(key)} is missing")
        elif accepts(value):
            return value
        else:
            self.refuse(f"{self.place(key)} is {json.dumps(value)}, expected {expected}")
        return None if default is NO_DEFAULT else default

    def close(self) -> None:
        """Raise ProblemsFound with the problems of this mapping and those in it; a key that is left over is one, unless it is harmless."""
        for mapping in (self, *self.inner):
            for key in sorted(mapping.rest.keys() - HARMLESS):
                help = "if it changes nothing in the forward pass, write the sizes into the recipe with flavor null"
                mapping.refuse(
                    f"{mapping.place(key)} is a switch that {self.family} does not know", help=help
                )
        problems = [problem for mapping in (self, *self.inner) for problem in mapping.problems]
        if problems:
            raise ProblemsFound(problems)

    def refuse(self, message: str, *, help: str | None = None) -> None:
        """Keep a problem."""
        self.problems.append(Problem("file", f"config.json: {message}", FOLDER, help=help))

    def place(self, key: str) -> str:
        """The key as it stands in the file."""
        return f"{self.within}.{key}" if self.within else key
