"""`titanrun push`: export a run and upload it to the Hugging Face Hub, with a model card."""

import subprocess
import sys
import tempfile
from argparse import Namespace
from contextlib import redirect_stderr
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.checkpoint_convert import DEFAULT_SHARD_BYTES, DTYPES, GGUF_DTYPE
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.messages import print_note
from titanrun.cli.next_command import print_next
from titanrun.cli.run_argument import find_checkpoint
from titanrun.components.checkpoints.spec.manifest import is_checkpoint
from titanrun.components.tokenizers.spec.stop_tokens import load_stop_tokens
from titanrun.components.tokenizers.spec.tokenizer_files import load_chat_template_text
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.launch.launch_env import get_environment
from titanrun.launch.torch_requirement import require_torch
from titanrun.launch.worker_command import run_worker_command
from titanrun.models.shared.huggingface_config import HUB_REPOSITORY, is_huggingface_folder
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.hub_models import HUB_PREFIX, RECORD_FILE
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import find_enclosing_run
from titanrun.recipe.rundir.run_files import RESOLVED, read_json_or_empty
from titanrun.recipe.rundir.started_from import check_start_exists
from titanrun.runs.model_card import PushedModel, build_model_card, merge_cards, read_recipe_text

SUMMARY = (
    "Export a checkpoint, or the newest one of a run, and upload it to the Hugging Face Hub. "
    "Its model card states recipe, data, digests and losses. A new repository is private "
    "unless --public is given. The token is that of HF_TOKEN or of `hf auth login`; HF_ENDPOINT "
    "selects another hub."
)
EXAMPLES = """  titanrun push runs/tuned me/my-model
  titanrun push runs/tuned me/my-adapter --format adapter
  titanrun push runs/tuned me/my-model --dry-run  print the card, list the files"""
DRY_RUN = "--dry-run"
CARD = "README.md"
RECIPE_FILE = "titanrun/resolved.yaml"


def run(arguments: list[str]) -> int:
    """Export, describe and upload; return 0."""
    options = parse_push_options(arguments)
    refuse_export(options)
    require_torch()
    checkpoint = Path(str(find_checkpoint(options.run)))
    recipe = load_resolved(checkpoint / RESOLVED)
    has_adapters = find_lora_converter(recipe) is not None
    if options.format == "adapter" and not has_adapters:
        raise problem_error(
            "usage", f"{checkpoint} has no adapters", hint="use --format hf or gguf"
        )
    if options.format != "adapter":
        check_start_exists(checkpoint)
    with tempfile.TemporaryDirectory(prefix="titanrun-push-") as name:
        folder = Path(name) / "model"
        export_model(checkpoint, folder, options, has_adapters=has_adapters)
        model = describe_pushed_model(checkpoint, recipe, options)
        warn_about_local_base(model)
        (folder / RECIPE_FILE).parent.mkdir()
        (folder / RECIPE_FILE).write_text(read_recipe_text(model), encoding="utf-8")
        card = build_model_card(model)
        if options.dry_run:
            print_contents(folder, card)
            print_next(options, "push", *(word for word in arguments if word != DRY_RUN))
            return 0
        address = upload(folder, card, options)
    if model.license is None:
        print_note(options, "the card states no license: that of the base model is not known")
    print(address)
    place = options.repository.rpartition("/")[2]
    print_next(options, "download", options.repository, "-o", f"models/{place}")
    return 0


def refuse_export(options: Namespace) -> None:
    """Refuse a Hugging Face folder: what its model card states is in the run."""
    folder = Path(options.run)
    if is_huggingface_folder(folder) and not is_checkpoint(folder):
        raise problem_error(
            "usage",
            f"'{options.run}' is an exported model, and its model card needs the run",
            hint=f"titanrun push RUN {options.repository} exports and uploads it; "
            f"hf upload {options.repository} {options.run} uploads the folder as it is",
        )


def parse_push_options(arguments: list[str]) -> Namespace:
    """Parse the command line."""
    parser = CommandParser("push", SUMMARY, EXAMPLES)
    parser.add_argument("run", help="a run directory, the name of a run, or a checkpoint")
    parser.add_argument("repository", help="name on the Hub: OWNER/NAME")
    parser.add_argument(
        "--format",
        choices=("hf", "adapter", "gguf"),
        default="hf",
        help="a model for transformers, with adapters merged (hf), adapters for peft, or GGUF",
    )
    parser.add_argument(
        "--dtype", choices=(*DTYPES, GGUF_DTYPE), help="type of the weights; default: as saved"
    )
    seen_by = parser.add_mutually_exclusive_group()
    seen_by.add_argument(
        "--private", action="store_true", help="hide a new repository from others; the default"
    )
    seen_by.add_argument("--public", action="store_true", help="let everyone see a new repository")
    parser.add_argument("--revision", metavar="B", help="an existing branch; default: main")
    parser.add_argument(
        "--create-pr", action="store_true", help="open a pull request instead of a commit"
    )
    parser.add_argument(
        DRY_RUN, action="store_true", help="list the files and print the card, upload nothing"
    )
    parser.add_moved_option()
    options = parser.parse_args(arguments)
    if HUB_REPOSITORY.fullmatch(options.repository) is None:
        raise build_name_error(options.repository)
    if options.dtype == GGUF_DTYPE and options.format != "gguf":
        raise problem_error("usage", f"--dtype {GGUF_DTYPE} is for --format gguf", hint="omit it")
    return options


def export_model(checkpoint: Path, folder: Path, options: Namespace, *, has_adapters: bool) -> None:
    """Write the files of the model into a folder. Raise ProblemsFound if that fails."""
    is_gguf = options.format == "gguf"
    if is_gguf:
        folder.mkdir()
    request = {
        "do": "export",
        "checkpoint": str(checkpoint.resolve()),
        "out": str(folder / f"{options.repository.rpartition('/')[2]}.gguf" if is_gguf else folder),
        "format": "gguf" if is_gguf else "hf",
        "merge": has_adapters and options.format == "hf",
        "dtype": options.dtype,
        "shard_bytes": DEFAULT_SHARD_BYTES,
        "quantize": None,
        "group_size": None,
        "ollama": False,
    }
    done = run_worker_command("checkpoint", request, stdout=subprocess.DEVNULL)
    if done.returncode:
        raise problem_error(
            "checkpoint",
            "the checkpoint could not be exported, as written above",
            hint="run titanrun checkpoint export",
        )


def describe_pushed_model(checkpoint: Path, recipe: Recipe, options: Namespace) -> PushedModel:
    """Return what the card describes."""
    assets = Path(recipe.model.hf_assets_path or checkpoint)
    origin = read_json_or_empty(assets / RECORD_FILE)
    base = (origin["repository"], origin["commit"]) if "repository" in origin else None
    try:
        load_chat_template_text(checkpoint)
        stops, has_template = tuple(sorted(load_stop_tokens(checkpoint))), True
    except ProblemsFound:
        stops, has_template = (), False
    return PushedModel(
        run=find_enclosing_run(checkpoint) or checkpoint,
        checkpoint=checkpoint,
        recipe=recipe,
        repository=options.repository,
        kind=options.format,
        base=base,
        license=find_license(base[0]) if base and not options.dry_run else None,
        stops=stops,
        has_template=has_template,
    )


def warn_about_local_base(model: PushedModel) -> None:
    """Warn of adapters whose base model has no name on the Hub, only a folder here."""
    folder = model.recipe.model.hf_assets_path
    if model.kind != "adapter" or model.base is not None or folder is None:
        return
    told = f"the adapters name their base model '{folder}', a folder that nobody else can fetch"
    hint = f"titanrun download OWNER/NAME -o {folder} records the model that the folder holds"
    print_problems([Problem("file", told, severity="warning", hint=hint)])


def find_license(repository: str) -> str | None:
    """Return the license that a model's own card states, None if it is not known."""
    from huggingface_hub import HfApi

    try:
        card = HfApi().model_info(repository).card_data
    except Exception:  # a base model that is gone or gated has no license that could be stated
        return None
    found = None if card is None else card.get("license")
    return found if isinstance(found, str) else None


def print_contents(folder: Path, card: str) -> None:
    """Print the card, which is long, and then the files with their sizes."""
    print(card)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"{path.relative_to(folder)}  {path.stat().st_size:,} bytes")
    print(f"{CARD}  {len(card.encode()):,} bytes")


def upload(folder: Path, card: str, options: Namespace) -> str:
    """Upload the folder with its card, and return the address of the commit.

    Raises:
        ProblemsFound: If the Hub refuses.
    """
    from huggingface_hub import HfApi

    api, repository = HfApi(), options.repository
    try:
        with redirect_stderr(getattr(sys.stderr, "unsafe_stream", sys.stderr)):
            api.create_repo(repository, private=not options.public, exist_ok=True)
            merged = merge_cards(read_card(repository, options.revision), card)
            if merged is None:
                print_note(
                    options, f"{repository} has a {CARD} of its own, which is left unchanged"
                )
            else:
                (folder / CARD).write_text(merged, encoding="utf-8")
            commit = api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                commit_message="Upload from titanrun",
                revision=options.revision,
                create_pr=options.create_pr,
            )
    except Exception as error:  # also errors of its HTTP client, a package that varies by version
        raise build_push_error(error, repository) from error
    print_note(options, f"{'public' if options.public else 'private'} if the repository is new")
    return str(commit.pr_url or commit.commit_url)


def read_card(repository: str, revision: str | None) -> str | None:
    """Return the card in a repository, None if it has none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with tempfile.TemporaryDirectory() as folder:
        try:
            path = hf_hub_download(repository, CARD, revision=revision, local_dir=folder)
        except EntryNotFoundError:
            return None
        return Path(path).read_text(encoding="utf-8")


def build_name_error(repository: str) -> ProblemsFound:
    """Build the problem for a name that no repository can have."""
    name = Path(repository.removeprefix(HUB_PREFIX)).name
    return problem_error(
        "usage",
        f"'{repository}' is not the name of a repository",
        hint=f"write OWNER/NAME: your name or organization on the Hub, as in me/{name}",
    )


def build_push_error(error: Exception, repository: str) -> ProblemsFound:
    """Build the problem for an error of the Hub."""
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    if isinstance(error, HFValidationError):
        return build_name_error(repository)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, LocalTokenNotFoundError) or status in (401, 403):
        return problem_error(
            "file",
            f"the Hub does not let you write to {repository}",
            hint="set HF_TOKEN to a token with write access, or run hf auth login",
        )
    where = get_environment().get("HF_ENDPOINT", "https://huggingface.co")
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return problem_error(
        "file",
        f"{repository} could not be uploaded to {where}: {said}",
        hint="run the same command again",
    )
