"""Reader of a Hugging Face config.json that rejects unknown keys.

A key is ignored only if it is known to be harmless.
"""

import json
import re
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.config.near_path import suggest_near_path
from titanrun.config.problems import DataPath, Problem, ProblemsFound, problem_error

CONFIG = "config.json"
ASSETS_PATH_FIELD: DataPath = ("model", "hf_assets_path")
NO_DEFAULT = object()
# OWNER/NAME; a folder that begins with a dot is on this machine
USUAL_FOLDERS = ("assets", "checkpoints", "data", "models", "out", "runs", "weights")
HUB_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")

# Keys of transformers 4 and 5 that do not affect the forward pass of a decoder in training.
# The quantization of weights is checked when they are loaded.
HARMLESS_KEYS = """
    _name_or_path _commit_hash _attn_implementation _attn_implementation_autoset
    _flash_attn_2_enabled architectures transformers_version torch_dtype dtype torchscript
    use_bfloat16 tf_legacy_loss return_dict use_return_dict
    output_hidden_states output_attentions output_scores return_dict_in_generate use_cache
    cache_implementation gradient_checkpointing initializer_range pretraining_tp
    chunk_size_feed_forward is_decoder is_encoder_decoder
    keys_to_ignore_at_inference finetuning_task task_specific_params problem_type id2label label2id
    num_labels classifier_dropout tokenizer_class prefix bos_token_id eos_token_id pad_token_id
    sep_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    unsloth_fixed unsloth_version quantization_config
"""
HARMLESS = frozenset(HARMLESS_KEYS.split())


def is_huggingface_folder(folder: Path) -> bool:
    """Return whether a folder has a config.json that describes its model."""
    return (folder / CONFIG).is_file()


def load_config_json(
    folder: str | None, *, field_path: DataPath = ASSETS_PATH_FIELD
) -> dict[str, Any]:
    """Return the mapping in `folder`/config.json, or in the file itself if it is named.

    Raises:
        ProblemsFound: at `field_path` if there is no such file or mapping.
    """
    if folder is None:
        hint = "name the folder that contains config.json; titanrun download fetches one"
        raise problem_error(
            "missing-key", "flavor auto needs hf_assets_path", path=field_path, hint=hint
        )
    path = Path(folder) if folder.endswith(".json") else Path(folder) / CONFIG
    try:
        written = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        meant = suggest_near_path(folder)
        reads = "flavor auto reads the model's sizes from it"
        raise problem_error(
            "file",
            f"file not found: {path}",
            path=field_path,
            hint=meant or f"{reads}; {suggest_download(folder)}",
        ) from None
    except OSError as error:
        raise problem_error(
            "file", f"cannot read {path}: {(error.strerror or '').lower()}", path=field_path
        ) from None
    except UnicodeDecodeError:
        raise problem_error("file", f"{path} is not UTF-8 text", path=field_path) from None
    except json.JSONDecodeError as error:
        raise problem_error(
            "file",
            f"{path} is not JSON at line {error.lineno}: {error.msg.lower()}",
            path=field_path,
        ) from None
    except ValueError:  # a NUL character
        raise problem_error("file", f"{str(path)!r} is not a valid path", path=field_path) from None
    if not isinstance(written, dict):
        raise problem_error("file", f"{path} does not contain a mapping", path=field_path)
    return written


def suggest_download(folder: str) -> str:
    """Return the command that fetches the config.json of a folder, or of a name on the Hub."""
    target = folder.removesuffix(CONFIG).rstrip("/") or "."
    repository = find_named_repository(target) or "OWNER/NAME"
    return f"titanrun download {repository} --only config -o {target} fetches it"


def find_named_repository(folder: str) -> str | None:
    """Return the OWNER/NAME that a missing folder is in the notation of the Hub.

    Return None where OWNER is a folder on this machine, or is usually one.
    """
    if HUB_REPOSITORY.fullmatch(folder) is None:
        return None
    owner = Path(folder).parent
    return None if owner.exists() or str(owner) in USUAL_FOLDERS else folder


class HuggingFaceConfigReader:
    """Reader of one mapping of a config.json, from which keys are removed one by one.

    Problems with the values are collected. `parent_key` is the key of a nested mapping.
    """

    def __init__(self, config_json: dict[str, Any], *, family: str, parent_key: str = "") -> None:
        self.remaining = dict(config_json)
        self.family = family
        self.parent_key = parent_key
        self.problems: list[Problem] = []
        self.nested_configs: list[HuggingFaceConfigReader] = []

    def take_positive_int(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """Take a positive whole number. null counts as absent."""
        return self.take_value(
            key, default, lambda value: type(value) is int and value > 0, "a positive whole number"
        )

    def take_non_negative_int(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """Take a whole number of at least zero."""
        return self.take_value(
            key,
            default,
            lambda value: type(value) is int and value >= 0,
            "a non-negative whole number",
        )

    def take_positive_float(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """Take a positive number as a float."""
        value = self.take_value(
            key,
            default,
            lambda value: type(value) in (int, float) and 0 < value < float("inf"),
            "a positive number",
        )
        return float(value) if type(value) is int else value

    def take_non_negative_float(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """Take a number of at least zero as a float."""
        value = self.take_value(
            key,
            default,
            lambda value: type(value) in (int, float) and 0 <= value < float("inf"),
            "a non-negative number",
        )
        return float(value) if type(value) is int else value

    def take_bool(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """Take true or false."""
        return self.take_value(key, default, lambda value: type(value) is bool, "true or false")

    def take_mapping(self, key: str) -> dict[str, Any]:
        """Take a nested mapping, {} if it is absent or null."""
        value: dict[str, Any] = self.take_value(
            key, {}, lambda value: isinstance(value, dict), "a mapping"
        )
        return value

    def take_nested_config(self, key: str) -> "HuggingFaceConfigReader":
        """Take a nested mapping as a reader, empty if it is absent or null.

        `check_all_keys_read` of this reader includes it.
        """
        inner = HuggingFaceConfigReader(
            self.take_mapping(key), family=self.family, parent_key=self.get_full_key(key)
        )
        self.nested_configs.append(inner)
        return inner

    def take_one_allowed(self, key: str, *allowed: Any) -> Any:
        """Take a switch that must have one of the allowed values.

        Absent or null counts as the first of them.
        """
        value = self.remaining.pop(key, None)
        if value is None:
            return allowed[0]
        if not any(type(value) is type(option) and value == option for option in allowed):
            shown = " or ".join(json.dumps(option) for option in allowed)
            message = (
                f"{self.get_full_key(key)} is {json.dumps(value)}, but {self.family} "
                f"supports only {shown}"
            )
            self.add_problem(
                message,
                hint=f"these weights need a feature that {self.family} does not have",
            )
        return value

    def take_value(self, key: str, default: Any, is_valid: Any, expected: str) -> Any:
        """Take the value of `key`, or the default if it is absent, null or invalid."""
        value = self.remaining.pop(key, None)
        if value is None and default is not NO_DEFAULT:
            return default
        if value is None:
            self.add_problem(f"{self.get_full_key(key)} is missing")
        elif is_valid(value):
            return value
        else:
            self.add_problem(
                f"{self.get_full_key(key)} is {json.dumps(value)}, expected {expected}"
            )
        return None if default is NO_DEFAULT else default

    def check_all_keys_read(self) -> None:
        """Raise ProblemsFound with all collected problems and unread keys.

        Nested mappings are included. Harmless keys may be unread.
        """
        for mapping in (self, *self.nested_configs):
            for key in sorted(mapping.remaining.keys() - HARMLESS):
                hint = (
                    "if it does not affect the forward pass, write the sizes into the recipe "
                    "with flavor null"
                )
                mapping.add_problem(
                    f"{mapping.get_full_key(key)} is not supported by {self.family}",
                    hint=hint,
                )
        problems = [
            problem for mapping in (self, *self.nested_configs) for problem in mapping.problems
        ]
        if problems:
            raise ProblemsFound(problems)

    def add_problem(self, message: str, *, hint: str | None = None) -> None:
        """Collect a problem."""
        self.problems.append(
            Problem("file", f"config.json: {message}", ASSETS_PATH_FIELD, hint=hint)
        )

    def get_full_key(self, key: str) -> str:
        """Return the full key in the file, with that of the parent mapping."""
        return f"{self.parent_key}.{key}" if self.parent_key else key
