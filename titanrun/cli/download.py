"""`titanrun download`: fetch a model from the Hugging Face Hub and record file digests."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

import xxhash

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_note
from titanrun.cli.next_command import print_next
from titanrun.components.data.spec.hub_advice import advise_again, advise_model, is_unreachable
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.read_source import FORMATS
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.resolving.hub_models import HUB_PREFIX, RECORD_FILE, parse_hub_name

SUMMARY = (
    "Fetch a model from the Hugging Face Hub into a folder for model.hf_assets_path and "
    "`titanrun generate`, or into the cache. Recipes name a model of the cache as hub:OWNER/NAME. "
    "Existing files are not fetched again, and interrupted downloads are "
    "resumed. download.json records the commit and a digest of every file. HF_TOKEN gives access "
    "to gated models, HF_ENDPOINT selects another hub."
)
EXAMPLES = """  titanrun download mine.yaml             its models, and the commits of its data
  titanrun download meta-llama/Llama-3.2-1B -o models/llama-1b
  titanrun download Qwen/Qwen3-0.6B --only tokenizer -o models/qwen
  titanrun download Qwen/Qwen3-0.6B --revision 1a2b3c4 -o models/qwen  pin one commit"""
FILE_PATTERNS = {
    "tokenizer": [
        "tokenizer*",
        "vocab.json",
        "merges.txt",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template*",
    ],
    "config": ["config.json", "generation_config.json"],
    "weights": ["*.safetensors", "*.safetensors.index.json"],
}
BLOCK_BYTES = 1 << 20


def run(arguments: list[str]) -> int:
    """Fetch the files and print their folder."""
    parser = CommandParser("download", SUMMARY, EXAMPLES)
    parser.add_argument(
        "repository",
        help="name on the Hub, OWNER/NAME, or a recipe that names models as hub:OWNER/NAME",
    )
    parser.add_argument(
        "--revision", default="main", metavar="R", help="a branch, tag or commit (main)"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=tuple(FILE_PATTERNS),
        help="only a part of the files; may be given twice",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="the folder to fill; default: the cache, where hub:OWNER/NAME finds it",
    )
    options = parser.parse_args(arguments)
    parts = options.only or list(FILE_PATTERNS)
    if options.output is None:
        return download_into_cache(options, parts)
    patterns = [pattern for part in parts for pattern in FILE_PATTERNS[part]]
    named = parse_hub_name(options.repository)
    if named is not None:
        options.repository, options.revision = named.repository, named.revision
    folder = Path(options.output)
    if folder.exists() and not folder.is_dir():
        raise problem_error("file", f"'{folder}' is a file, not a folder", hint="use a folder")
    commit = fetch_commit(options.repository, options.revision)
    fetch_model_files(options.repository, commit, folder, patterns)
    record_files(folder, options.repository, options.revision, commit, patterns, parts)
    return report_download(folder, options, commit)


def report_download(folder: Path, options: Namespace, commit: str) -> int:
    """Print what was fetched, and the next command."""
    if not options.quiet:
        count = pluralize(len(list_hub_files(folder)), "file")
        print(f"{folder}: {count} of {options.repository} at {commit[:12]}")
    if options.only is None:
        named = f"{HUB_PREFIX}{options.repository}" if options.output is None else str(folder)
        words = ("--model", named, "--data", "chats.jsonl", "-o", "mine.yaml")
        print_next(options, "init", "--kind", "sft", *words)
    return 0


def download_into_cache(options: Namespace, parts: list[str]) -> int:
    """Fetch a model, or all that a recipe names, to where hub:OWNER/NAME finds it."""
    # imported here: it imports this module
    from titanrun.cli.hub_datasets import record_recipe_datasets
    from titanrun.cli.hub_models import fetch_model, list_recipe_models

    if Path(options.repository).suffix in FORMATS:
        named = list_recipe_models(options.repository, [])
        for each in named:
            fetch_model(each, options, parts=parts)
        count = record_recipe_datasets(options.repository, [], options, should_ask_again=True)
        if not named and not count:
            print_note(options, f"{options.repository} names no model as hub:OWNER/NAME")
        print_next(options, "train", options.repository)
        return 0
    text = options.repository.removeprefix(HUB_PREFIX)
    at = "" if "@" in text or options.revision == "main" else f"@{options.revision}"
    model = parse_hub_name(f"{HUB_PREFIX}{text}{at}")
    assert model is not None, "it has the prefix"
    options.repository = model.repository
    folder = fetch_model(model, options, parts=parts)
    return report_download(folder, options, folder.name)


def record_files(
    folder: Path,
    repository: str,
    revision: str,
    commit: str,
    patterns: Sequence[str],
    parts: Sequence[str],
) -> None:
    """Write the record of a download: the commit, the parts and a digest of each file.

    Raises:
        ProblemsFound: If the Hub had none of the files.
    """
    files = {
        path.relative_to(folder).as_posix(): compute_file_digest(path)
        for path in list_hub_files(folder)
    }
    if not files:
        raise problem_error(
            "file",
            f"{repository} has none of the requested files",
            hint=f"requested: {', '.join(patterns)}",
        )
    record = {
        "repository": repository,
        "revision": revision,
        "commit": commit,
        "parts": list(parts),
        "files": files,
    }
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def fetch_commit(repository: str, revision: str) -> str:
    """Ask the Hub for the commit of a revision. Raise ProblemsFound if it refuses."""
    # imported here: the text tools work without it
    from huggingface_hub import HfApi

    try:
        commit = HfApi().model_info(repository, revision=revision).sha
    except Exception as error:  # also errors of its HTTP client, a package that varies by version
        raise build_hub_error(error, repository, revision) from error
    assert commit is not None, "the Hub returns a commit with every revision"
    return str(commit)


def fetch_model_files(repository: str, commit: str, folder: Path, patterns: list[str]) -> None:
    """Fetch the files that match a pattern. Raise ProblemsFound if the Hub refuses."""
    from huggingface_hub import snapshot_download

    try:
        # its progress bars move the cursor
        with redirect_stderr(getattr(sys.stderr, "unsafe_stream", sys.stderr)):
            snapshot_download(
                repository, revision=commit, local_dir=folder, allow_patterns=patterns
            )
    except Exception as error:  # also errors of its HTTP client, a package that varies by version
        raise build_hub_error(error, repository, commit) from error


def build_hub_error(error: Exception, repository: str, revision: str) -> ProblemsFound:
    """Build the problem for an error of the Hub."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return problem_error(
            "file",
            f"{repository} is gated",
            hint="accept its license on the Hub and set HF_TOKEN to your token",
        )
    if isinstance(error, RevisionNotFoundError):
        return problem_error(
            "file",
            f"{repository} has no revision '{revision}'",
            hint="use one of its branches, tags or commits",
        )
    if isinstance(error, RepositoryNotFoundError):
        return problem_error(
            "file",
            f"model '{repository}' not found on the Hub",
            hint="check the name; a private model requires HF_TOKEN",
        )
    if isinstance(error, HFValidationError):
        return problem_error(
            "usage", f"'{repository}' is not a model name", hint="write OWNER/NAME"
        )
    if isinstance(error, OfflineModeIsEnabled):
        return problem_error(
            "file",
            f"{repository} has to be fetched, but HF_HUB_OFFLINE is set",
            hint=advise_model(repository, advise_again(is_offline=True)),
        )
    where = get_environment().get("HF_ENDPOINT", "https://huggingface.co")
    return problem_error(
        "file",
        f"{repository} could not be fetched from {where}: {str(error).splitlines()[0]}",
        hint=advise_model(repository, advise_again(is_offline=False))
        if is_unreachable(error)
        else "run the same command again to resume",
    )


def list_hub_files(folder: Path) -> list[Path]:
    """Return the files of a download."""
    return [path for path in sorted(folder.rglob("*")) if is_hub_file(path, folder)]


def is_hub_file(path: Path, folder: Path) -> bool:
    """Return whether a file came from the Hub.

    This excludes the download record and the Hub library's metadata.
    """
    inside = path.relative_to(folder)
    return path.is_file() and inside.parts[0] != ".cache" and inside != Path(RECORD_FILE)


def compute_file_digest(path: Path) -> dict[str, object]:
    """Return the size in bytes and the xxh3 of a file."""
    hashed = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            hashed.update(block)
    return {"bytes": path.stat().st_size, "xxh3_128": hashed.hexdigest()}
