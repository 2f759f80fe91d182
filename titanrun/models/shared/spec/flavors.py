"""Resolution of a model section: every size is written out."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

from titanrun.config import registry
from titanrun.config.base import dump_config
from titanrun.config.problems import DataPath, Problem, ProblemsFound, problem_error
from titanrun.config.read_source import read_source
from titanrun.config.suggest import find_closest, format_word_list, is_other_number
from titanrun.config.tree import format_path, to_plain_data
from titanrun.config.types import AUTO
from titanrun.models.shared.config import ModelConfig, Sizes
from titanrun.models.shared.huggingface_config import load_config_json
from titanrun.models.shared.spec.family import get_family_file

MODEL_SECTION: DataPath = ("model",)
# fields of every family in which auto, if allowed, is not an undecided size
NON_SIZE_FIELDS = ("flavor", "hf_assets_path", "documents")


def load_flavors(family: str) -> dict[str, Sizes]:
    """Return the named sizes of a family, in the shape of its fields.

    Raises:
        KeyError: if the family is not registered.
    """
    chosen = registry.load_choice(ModelConfig, family)
    assert issubclass(chosen, ModelConfig)
    return {name: load_flavor_sizes(chosen, name) for name in load_flavor_names(chosen)}


def load_flavor_names(family: type[ModelConfig]) -> list[str]:
    """Return the names of a family's flavors, in the order of its file."""
    return list(load_flavor_file(family).get("flavors", {}))


def load_flavor_sizes(family: type[ModelConfig], name: str) -> Sizes:
    """Return the sizes of one flavor, merged over the common sizes of the family."""
    content = load_flavor_file(family)
    return merge_sizes(content.get("common", {}), content["flavors"][name])


@cache
def load_flavor_file(family: type[ModelConfig]) -> dict[str, Any]:
    """Return the content of the family's flavors.yaml, {} for a family without the file.

    It has the keys `common` and `flavors`.
    """
    path = get_family_file(family, "flavors.yaml")
    content = to_plain_data(read_source(str(path))) if path.exists() else {}
    assert isinstance(content, dict)
    return content


def resolve_model_sizes(config: ModelConfig, *, seq_len: int | None = None) -> dict[str, Any]:
    """Return the model section as plain data with every `auto` resolved.

    Values of the recipe have priority. The others come from the flavor, or from config.json if the
    flavor is `auto`, and the rest follows from the other sizes. A flavor is only loaded if
    something is undecided. `seq_len` is the length of training sequences.

    Raises:
        ProblemsFound: if sizes conflict or are missing.
    """
    family = type(config)
    sizes = dump_config(config)
    if any(iter_auto_paths(sizes)):
        sizes = fill_auto_sizes(sizes, load_base_sizes(config, seq_len))
    problems = family.find_size_problems(sizes)
    problems += find_missing_size_problems(
        config, [path for path in iter_auto_paths(sizes) if path not in family.derived_fields]
    )
    if problems:
        raise ProblemsFound(problems)
    return {
        **family.fill_derived_sizes(sizes),
        "flavor": None if config.flavor == AUTO else config.flavor,
    }


def load_base_sizes(config: ModelConfig, seq_len: int | None = None) -> Sizes:
    """Return the sizes of the config's flavor.

    For a custom model these are only the common sizes of the family.
    """
    in_file = config.find_file_sizes()
    if in_file is not None:
        return in_file
    family, flavor = type(config), config.flavor
    common = load_flavor_file(family).get("common", {})
    if flavor == AUTO:
        config_json = load_config_json(config.hf_assets_path)
        family_name = find_other_family(config, config_json)
        if family_name is not None:
            raise problem_error(
                "conflict",
                describe_other_family(config, str(config.hf_assets_path), config_json),
                path=(*MODEL_SECTION, "name"),
                hint=f"write model.name: {family_name}",
            )
        return merge_sizes(common, family.read_huggingface_sizes(config_json))
    if flavor is not None and flavor not in load_flavor_names(family):
        raise ProblemsFound(
            [build_unknown_flavor_problem(config.name, flavor, load_flavor_names(family))]
        )
    sizes = deepcopy(common) if flavor is None else load_flavor_sizes(family, flavor)
    return sizes if seq_len is None else family.adapt_sizes_to_seq_len(sizes, seq_len)


def find_other_family(config: ModelConfig, config_json: dict[str, Any]) -> str | None:
    """Return the family that reads a config.json which is not one of this family, or None."""
    kind = config_json.get("model_type")
    if not config.huggingface_types or kind in config.huggingface_types:
        return None
    return next(
        (
            name
            for name, choice in registry.load_choices(ModelConfig).items()
            if issubclass(choice, ModelConfig) and kind in choice.huggingface_types
        ),
        None,
    )


def describe_other_family(config: ModelConfig, folder: str, config_json: dict[str, Any]) -> str:
    """Return the message about a folder of another family."""
    return f"'{folder}' holds a model of type {config_json['model_type']}, not of {config.name}"


def build_unknown_flavor_problem(family: str, flavor: str, known: list[str]) -> Problem:
    """Build the problem of a flavor that the family does not have."""
    suggestion = find_closest(flavor, [name for name in known if not is_other_number(flavor, name)])
    all_known = f"known flavors: {format_word_list(known, conjunction='and')}"
    hint = all_known if suggestion is None else f"did you mean '{suggestion}'?"
    if suggestion is not None and suggestion[0].isdigit():  # a wrong size is easily accepted
        hint = f"{hint} {all_known}"
    return Problem(
        "unknown-name",
        f"{family} has no flavor '{flavor}'",
        (*MODEL_SECTION, "flavor"),
        hint=hint,
        suggestion=suggestion,
        got=flavor,
    )


def find_missing_size_problems(config: ModelConfig, paths: list[DataPath]) -> list[Problem]:
    """Return the problem of sizes that neither the recipe nor the flavor defines, if any."""
    if not paths:
        return []
    holder = (
        f"a custom {config.name} model" if config.flavor is None else f"flavor '{config.flavor}'"
    )
    known = format_word_list(load_flavor_names(type(config)))
    hint = f"write {'it' if len(paths) == 1 else 'them'}" + (
        f", or name a flavor: {known}" if known else ""
    )
    needed = format_word_list(map(format_path, paths), conjunction="and")
    return [
        Problem("missing-key", f"{holder} needs {needed}", (*MODEL_SECTION, *paths[0]), hint=hint)
    ]


def merge_sizes(base: Sizes, top: Sizes) -> Sizes:
    """Merge `top` over `base` key by key. A component, which has a name, replaces as a whole."""
    result = deepcopy(base)
    for key, value in top.items():
        below = base.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and "name" not in value:
            result[key] = merge_sizes(below, value)
        else:
            result[key] = deepcopy(value)
    return result


def fill_auto_sizes(written: Sizes, known: Sizes) -> Sizes:
    """Replace each "auto" in `written` by the value at the same path in `known`, if any."""
    result = {}
    for key, value in written.items():
        if value == AUTO and key not in NON_SIZE_FIELDS:
            result[key] = deepcopy(known.get(key, AUTO))
        elif isinstance(value, dict) and "name" not in value:
            result[key] = fill_auto_sizes(value, known.get(key) or {})
        else:
            result[key] = value
    return result


def iter_auto_paths(sizes: Sizes, path: DataPath = ()) -> Iterator[DataPath]:
    """Yield the paths of values that are still "auto"."""
    for key, value in sizes.items():
        if value == AUTO and key not in NON_SIZE_FIELDS:
            yield (*path, key)
        elif isinstance(value, dict):
            yield from iter_auto_paths(value, (*path, key))
