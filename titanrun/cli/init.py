"""`titanrun init`: write a commented starter recipe."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import CommandParser
from titanrun.cli.hub_datasets import MAIN, fetch_dataset_card, fetch_dataset_commit
from titanrun.cli.hub_models import WITHOUT_WEIGHTS, fetch_model
from titanrun.cli.messages import print_note
from titanrun.cli.new_file import get_schema_path, write_new_recipe
from titanrun.cli.next_command import print_next
from titanrun.config.problems import problem_error
from titanrun.config.read_source import FORMATS
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.reference.data_settings import build_data_settings, build_hub_settings
from titanrun.recipe.reference.finetuning_template import (
    KINDS,
    build_finetuning_template,
    open_model_folder,
)
from titanrun.recipe.reference.recipe_template import build_recipe_template
from titanrun.recipe.resolving.hub_datasets import find_dataset_commit, record_dataset_commit
from titanrun.recipe.resolving.hub_models import (
    TOKENIZER,
    HubModel,
    find_model_folder,
    parse_hub_name,
)

EXAMPLES = """  titanrun init               writes recipe.yaml
  titanrun init --model llama3:8B -o mine.yaml
  titanrun init --kind sft --model hub:Qwen/Qwen3-0.6B --data chats.jsonl -o mine.yaml
  titanrun init --kind sft --model models/qwen --data hub:HuggingFaceH4/ultrachat_200k
  titanrun init --full        with every setting, commented out
  titanrun init -o mine.toml  the same as TOML"""

EXAMPLE = "titanrun init --kind sft --model hub:Qwen/Qwen3-0.6B --data chats.jsonl"


def run(arguments: list[str]) -> int:
    """Write the recipe; an existing file is never overwritten."""
    parser = CommandParser(
        "init",
        "Write a short commented recipe that trains without changes; nothing is overwritten.",
        EXAMPLES,
    )
    parser.add_argument(
        "--model",
        metavar="M",
        help="a family, or family:flavor, see titanrun ls models; with --kind: a folder, or "
        "hub:OWNER/NAME",
    )
    parser.add_argument(
        "--kind", choices=tuple(KINDS), help="a recipe that fine-tunes --model on --data"
    )
    parser.add_argument(
        "--data",
        metavar="F",
        help="the file or folder to fine-tune on, or hub:OWNER/NAME; its columns are looked at",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="F",
        default="recipe.yaml",
        help="the new file; default: recipe.yaml",
    )
    parser.add_argument(
        "--full", action="store_true", help="write every setting, the others commented out"
    )
    options = parser.parse_args(arguments)
    target = Path(options.output)
    if target.suffix not in FORMATS:
        raise problem_error(
            "usage", f"'{target}' does not end in .yaml or .toml", hint="name it .yaml or .toml"
        )
    text = (
        build_finetuning_recipe(options, target) if options.kind else build_recipe(options, target)
    )
    write_new_recipe(target, text)
    if not options.quiet:
        print(target)
    if options.kind:
        print_next(options, "validate", str(target), "--level", "environment")
    else:
        print_next(options, "train", str(target))
    return 0


def build_recipe(options: Namespace, target: Path) -> str:
    """Return the text of a recipe that trains without changes."""
    if options.data is not None:
        raise problem_error("usage", "--data needs --kind", hint="add --kind sft")
    return build_recipe_template(
        options.model,
        file=str(target),
        schema=get_schema_path(target),
        file_format=FORMATS[target.suffix],
        is_full=options.full,
    )


def build_finetuning_recipe(options: Namespace, target: Path) -> str:
    """Return the text of a recipe that fine-tunes a model."""
    for name in ("model", "data"):
        if getattr(options, name) is None:
            raise problem_error("usage", f"--kind {options.kind} needs --{name}", hint=EXAMPLE)
    if options.full:
        raise problem_error("usage", "--full excludes --kind", hint="omit one of them")
    folder = open_named_model(options)
    return build_finetuning_template(
        options.kind,
        model=options.model,
        folder=folder,
        data=find_data_settings(options),
        file=str(target),
        schema=get_schema_path(target),
        file_format=FORMATS[target.suffix],
    )


def open_named_model(options: Namespace) -> Path:
    """Return the folder of --model; of a model on the Hub only the weights are not fetched."""
    model = parse_hub_name(options.model)
    if model is None:
        return open_model_folder(options.model)
    known = find_model_folder(model, get_environment(), part=TOKENIZER)
    return known or fetch_model(model, options, parts=WITHOUT_WEIGHTS)


def find_data_settings(options: Namespace) -> dict[str, Any]:
    """Return the settings of the dataset: --data, and its columns as far as they are known."""
    kind = KINDS[options.kind]
    named = parse_hub_name(options.data, what="dataset")
    if named is None:
        settings, guess = build_data_settings(kind.dataset, options.data, record=kind.record)
        if guess.doubt:
            print_note(options, f"{guess.doubt}: check it")
        return settings
    commit = find_data_commit(named)
    return build_hub_settings(
        kind.dataset,
        named.repository,
        revision=None if named.revision == MAIN else commit,
        card=fetch_dataset_card(named.repository, commit, options),
    )


def find_data_commit(named: HubModel) -> str:
    """Return the commit of --data, that of main as it was recorded."""
    if named.revision != MAIN:
        return fetch_dataset_commit(named.repository, named.revision)
    known = find_dataset_commit(named.repository, get_environment())
    commit = known or fetch_dataset_commit(named.repository, MAIN)
    record_dataset_commit(named.repository, commit, get_environment())
    return commit
