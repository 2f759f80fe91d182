"""`titanrun download`: fetch a model from the Hugging Face Hub and record file digests."""

import json
import sys
from contextlib import redirect_stderr
from pathlib import Path

import xxhash

from titanrun.cli.arguments import CommandParser
from titanrun.cli.next_command import print_next
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.launch.launch_env import get_environment

SUMMARY = (
    "Fetch a model from the Hugging Face Hub into a folder for model.hf_assets_path and "
    "`titanrun generate`. Existing files are not fetched again, and interrupted downloads are "
    "resumed. download.json records the commit and a digest of every file. HF_TOKEN gives access "
    "to gated models, HF_ENDPOINT selects another hub."
)
EXAMPLES = """  titanrun download meta-llama/Llama-3.2-1B -o models/llama-1b
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
RECORD_FILE = "download.json"
BLOCK_BYTES = 1 << 20


def run(arguments: list[str]) -> int:
    """Fetch the files and print their folder."""
    parser = CommandParser("download", SUMMARY, EXAMPLES)
    parser.add_argument("repository", help="name on the Hub: OWNER/NAME")
    parser.add_argument(
        "--revision", default="main", metavar="R", help="a branch, tag or commit (main)"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=tuple(FILE_PATTERNS),
        help="only a part of the files; may be given twice",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to fill")
    options = parser.parse_args(arguments)
    patterns = [
        pattern for part in options.only or FILE_PATTERNS for pattern in FILE_PATTERNS[part]
    ]
    folder = Path(options.output)
    if folder.exists() and not folder.is_dir():
        raise problem_error("file", f"'{folder}' is a file, not a folder", hint="use a folder")
    commit = fetch_snapshot(options.repository, options.revision, folder, patterns)
    files = {
        path.relative_to(folder).as_posix(): compute_file_digest(path)
        for path in sorted(folder.rglob("*"))
        if is_hub_file(path, folder)
    }
    if not files:
        raise problem_error(
            "file",
            f"{options.repository} has none of the requested files",
            hint=f"requested: {', '.join(patterns)}",
        )
    record = {
        "repository": options.repository,
        "revision": options.revision,
        "commit": commit,
        "files": files,
    }
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if not options.quiet:
        print(f"{folder}: {pluralize(len(files), 'file')} of {options.repository} at {commit[:12]}")
    if options.only is None:
        words = ("--model", str(folder), "--data", "chats.jsonl", "-o", "mine.yaml")
        print_next(options, "init", "--kind", "sft", *words)
    return 0


def fetch_snapshot(repository: str, revision: str, folder: Path, patterns: list[str]) -> str:
    """Fetch the files and return their commit. Raise ProblemsFound if the Hub refuses."""
    # imported here: the text tools work without it
    from huggingface_hub import HfApi, snapshot_download

    try:
        commit = HfApi().model_info(repository, revision=revision).sha
        # its progress bars move the cursor
        with redirect_stderr(getattr(sys.stderr, "unsafe_stream", sys.stderr)):
            snapshot_download(
                repository, revision=commit, local_dir=folder, allow_patterns=patterns
            )
    except Exception as error:  # also errors of its HTTP client, a package that varies by version
        raise build_hub_error(error, repository, revision) from error
    assert commit is not None, "the Hub returns a commit with every revision"
    return str(commit)


def build_hub_error(error: Exception, repository: str, revision: str) -> ProblemsFound:
    """Build the problem for an error of the Hub."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
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
    where = get_environment().get("HF_ENDPOINT", "https://huggingface.co")
    return problem_error(
        "file",
        f"{repository} could not be fetched from {where}: {str(error).splitlines()[0]}",
        hint="run the same command again to resume",
    )


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
