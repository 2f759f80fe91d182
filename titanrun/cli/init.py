"""`titanrun init`: write a commented starter recipe."""

import shlex
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import CommandParser
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.hub_datasets import MAIN, fetch_dataset_card, fetch_dataset_commit
from titanrun.cli.hub_models import WITHOUT_WEIGHTS, fetch_model
from titanrun.cli.messages import print_note
from titanrun.cli.new_file import get_schema_path, write_new_recipe
from titanrun.cli.next_command import print_next
from titanrun.components.data.spec.hub_advice import (
    OFFLINE_VARIABLE,
    advise_model,
    is_set_offline,
)
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.read_source import FORMATS
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.launch.launch_env import get_environment
from titanrun.models.shared.huggingface_config import find_named_repository
from titanrun.recipe.reference.data_settings import (
    build_data_settings,
    build_hub_settings,
    guess_kind,
)
from titanrun.recipe.reference.file_layouts import ONE_DATASET, join_file_names, split_layouts
from titanrun.recipe.reference.finetuning_template import (
    KINDS,
    FinetunedModel,
    build_finetuning_template,
    open_model_folder,
    suggest_missing_template,
)
from titanrun.recipe.reference.recipe_template import build_recipe_template
from titanrun.recipe.resolving.hub_datasets import find_dataset_commit, record_dataset_commit
from titanrun.recipe.resolving.hub_models import (
    HUB_PREFIX,
    TOKENIZER,
    HubModel,
    find_model_folder,
    parse_hub_name,
)
from titanrun.recipe.resolving.model_folder import (
    build_export_command,
    get_export_name,
    list_model_folders,
)
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_files import RESOLVED

EXAMPLES = """  titanrun init               writes recipe.yaml
  titanrun init --model llama3:8B -o mine.yaml
  titanrun init --kind sft --model hub:Qwen/Qwen3-0.6B --data chats.jsonl -o mine.yaml
  titanrun init --kind sft --model models/qwen --data hub:HuggingFaceH4/ultrachat_200k
  titanrun init --full        with every setting, commented out
  titanrun init -o mine.toml  the same as TOML"""

DEFAULT_OUTPUT = "recipe.yaml"
EXAMPLE_MODEL = "hub:Qwen/Qwen3-0.6B"
EXAMPLE_FILES = {"text": "texts.jsonl", "preference": "pairs.jsonl", "labelled": "labels.jsonl"}
QLORA = "write --kind lora, then converters: [{name: qlora, rank: 16, alpha: 32}] in the recipe"
DORA = "write --kind lora, then magnitude: true beside rank: 16 in the recipe"
RL_HINT = (
    "copy a recipe of kind rl and write your model, data and rewards into it: titanrun ls recipes "
    "rl lists them, such as titanrun cp forge/grpo_qwen3_1_7b mine.yaml"
)
OTHER_KINDS = {
    "qlora": QLORA,
    "dora": DORA,
    "rslora": "write --kind lora, then rank_stabilized: true beside rank: 16 in the recipe",
    **dict.fromkeys(("full", "finetune", "instruct"), "write --kind sft"),
    **dict.fromkeys(("adapter", "peft"), "write --kind lora"),
    **dict.fromkeys(("pretraining", "cpt", "pt", "text"), "write --kind pretrain"),
    **dict.fromkeys(("reward_model", "reward_modeling", "rm"), "write --kind reward"),
    **dict.fromkeys(
        ("distill", "distillation"), "titanrun cp distill_qwen3_8b_to_0.6b mine.yaml to start from"
    ),
    **dict.fromkeys(("rl", "grpo", "ppo", "rlvr"), RL_HINT),
}
"""What to do for kinds of fine-tuning that have no template, and for other names of those."""


def run(arguments: list[str]) -> int:
    """Write the recipe; an existing file is never overwritten."""
    options = parse_init_options(arguments)
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
        print_problems(find_template_warnings(target))
        print_next(options, "validate", str(target), "--level", "environment")
    else:
        print_next(options, "train", str(target))
    return 0


def parse_init_options(arguments: list[str]) -> Namespace:
    """Parse the command line of `init`."""
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
        "--kind",
        type=parse_kind,
        choices=tuple(KINDS),
        help="a recipe that trains --model further on --data; pretrain is for plain texts",
    )
    parser.add_argument(
        "--data",
        metavar="F",
        nargs="+",
        action="extend",
        help="the file, folder or glob to fine-tune on, or hub:OWNER/NAME; its columns are "
        "looked at; several become a mixture",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="F",
        default=DEFAULT_OUTPUT,
        help=f"the new file; default: {DEFAULT_OUTPUT}",
    )
    parser.add_argument(
        "--full", action="store_true", help="write every setting, the others commented out"
    )
    options = parser.parse_args(arguments)
    if options.data is not None:
        options.data = join_file_names(options.data)
        if options.kind is not None and len(options.data) == 1:
            options.data = split_layouts(KINDS[options.kind].dataset, options.data[0])
    return options


def parse_kind(kind: str) -> str:
    """Return a kind of fine-tuning. Raise ProblemsFound if it has no template."""
    if kind in KINDS:
        return kind
    meant = find_closest(kind, KINDS)
    hint = OTHER_KINDS.get(kind.lower().replace("-", "_")) or (
        f"did you mean '{meant}'?" if meant else None
    )
    known = format_word_list(KINDS)
    raise problem_error(
        "usage", f"unknown kind '{kind}'; expected {known}", hint=hint or "see titanrun init --help"
    )


def build_recipe(options: Namespace, target: Path) -> str:
    """Return the text of a recipe that trains without changes."""
    has_weights = options.model is not None and names_weights(options.model)
    if has_weights and parse_hub_name(options.model) is None:
        open_named_model(options)
    if options.data is not None or has_weights:
        model = options.model if has_weights else EXAMPLE_MODEL
        data = options.data or ["FILE"]
        kind = "sft" if options.data is None else guess_kind(options.data[0])
        raise problem_error(
            "usage",
            "--data needs --kind" if options.data else f"--model {options.model} needs --kind",
            hint=format_init_command(kind, model, data, get_named_output(options)),
        )
    return build_recipe_template(
        options.model,
        file=str(target),
        schema=get_schema_path(target),
        file_format=FORMATS[target.suffix],
        is_full=options.full,
    )


def names_weights(model: str) -> bool:
    """Return whether --model names a folder or a model of the Hub, not a family."""
    return "/" in model or model.startswith(HUB_PREFIX) or Path(model).is_dir()


def format_init_command(
    kind: str, model: str, data: Sequence[str], output: str | None = None
) -> str:
    """Return the command that writes a recipe of fine-tuning."""
    words = ["titanrun", "init", "--kind", kind, "--model", model, "--data", *data]
    return shlex.join(words if output is None else [*words, "-o", output])


def build_finetuning_recipe(options: Namespace, target: Path) -> str:
    """Return the text of a recipe that fine-tunes a model."""
    for name in ("model", "data"):
        if getattr(options, name) is None:
            example = EXAMPLE_FILES.get(KINDS[options.kind].dataset, "chats.jsonl")
            data = options.data or [example]
            model = options.model or EXAMPLE_MODEL
            raise problem_error(
                "usage",
                f"--kind {options.kind} needs --{name}",
                hint=format_init_command(options.kind, model, data),
            )
    if options.full:
        raise problem_error("usage", "--full excludes --kind", hint="omit one of them")
    if KINDS[options.kind].dataset in ("preference", "labelled") and len(options.data) > 1:
        raise problem_error(
            "usage",
            f"--kind {options.kind} takes one dataset, not {len(options.data)}",
            hint=ONE_DATASET,
        )
    folder = open_named_model(options)
    reads_template = KINDS[options.kind].dataset != "text"
    templates = suggest_missing_template(folder) if reads_template else []
    if templates:
        print_note(options, describe_guess(options.model, templates))
    return build_finetuning_template(
        options.kind,
        model=FinetunedModel(options.model, folder, next(iter(templates), None)),
        data=[find_data_settings(name, options) for name in options.data],
        file=str(target),
        schema=get_schema_path(target),
        file_format=FORMATS[target.suffix],
    )


def describe_guess(model: str, templates: Sequence[str]) -> str:
    """Return a note about the chat template that was chosen for a model without one."""
    chosen, *others = templates
    fitting = f" ({format_word_list(others, conjunction='and')} fit too)" if others else ""
    return (
        f"{model} has no chat template; {chosen} is a guess by its tokens{fitting}: check "
        "tokenizer.chat_template"
    )


def open_named_model(options: Namespace) -> Path:
    """Return the folder of --model; of a model on the Hub only the weights are not fetched."""
    model = parse_hub_name(options.model)
    if model is None:
        try:
            return open_model_folder(options.model)
        except ProblemsFound as error:
            raise ProblemsFound(
                [add_export_commands(one, options) for one in error.problems]
            ) from None
    known = find_model_folder(model, get_environment(), part=TOKENIZER)
    return known or fetch_model(model, options, parts=WITHOUT_WEIGHTS)


def add_export_commands(problem: Problem, options: Namespace) -> Problem:
    """Return the problem of --model; that of a run tells all commands that start from it.

    That of a model which cannot be fetched tells how to get it.
    """
    run = Path(options.model)
    repository = find_named_repository(options.model)
    if repository and not run.exists() and is_set_offline(get_environment()):
        first = f"unset {OFFLINE_VARIABLE} and write --model {HUB_PREFIX}{repository}"
        return replace(problem, hint=advise_model(repository, first))
    if not (run / RESOLVED).is_file() or options.data is None or list_model_folders(run):
        return problem
    folder = get_export_name(run)
    kind = options.kind or guess_kind(options.data[0])
    again = format_init_command(kind, folder, options.data, get_named_output(options))
    return replace(problem, hint=f"{build_export_command(run, folder)}, then {again}")


def get_named_output(options: Namespace) -> str | None:
    """Return the file that the command line names for the recipe, None for the usual one."""
    return None if options.output == DEFAULT_OUTPUT else str(options.output)


def find_data_settings(name: str, options: Namespace) -> dict[str, Any]:
    """Return the settings of a dataset: its place, and its columns as far as they are known."""
    kind = KINDS[options.kind]
    named = parse_hub_name(name, what="dataset")
    if named is None:
        settings, guess = build_data_settings(kind.dataset, name)
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


def find_template_warnings(recipe: Path) -> list[Problem]:
    """Return why the model's chat template does not render the data, as warnings.

    The first records are rendered. What else is wrong with the recipe is left to validate.
    """
    try:
        run = resolve_recipe(str(recipe), environment=get_environment()).run
    except ProblemsFound:
        return []
    # imported here: the order of rules in the registry depends on the import order
    from titanrun.recipe.rules.chat import ConversationDataset, find_template_problems

    dataset, tokenizer = run.training.dataset, run.tokenizer
    if not isinstance(dataset, ConversationDataset) or not isinstance(tokenizer, TokenizerConfig):
        return []
    found = find_template_problems(dataset, tokenizer, is_learned=True)
    return [replace(problem, severity="warning", path=()) for problem in found]


def find_data_commit(named: HubModel) -> str:
    """Return the commit of --data, that of main as it was recorded."""
    if named.revision != MAIN:
        return fetch_dataset_commit(named.repository, named.revision)
    known = find_dataset_commit(named.repository, get_environment())
    commit = known or fetch_dataset_commit(named.repository, MAIN)
    record_dataset_commit(named.repository, commit, get_environment())
    return commit
