"""`titanrun download`: a model's files from the Hugging Face Hub into a folder, with their digests written down."""

import json
from pathlib import Path

import xxhash
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from titanrun.cli.arguments import Parser
from titanrun.config.counted import counted
from titanrun.config.problems import ProblemsFound, fail
from titanrun.launch.environment import environment

SUMMARY = (
    "Fetch a model from the Hugging Face Hub into a folder that model.hf_assets_path and `titanrun generate` take. What is there "
    "already is not fetched again, and what broke off goes on. download.json records the commit and a digest of every file. "
    "HF_TOKEN opens gated models, HF_ENDPOINT names another hub."
)
EXAMPLES = """  titanrun download meta-llama/Llama-3.2-1B -o models/llama-1b
  titanrun download Qwen/Qwen3-0.6B --only tokenizer -o models/qwen
  titanrun download Qwen/Qwen3-0.6B --revision 1a2b3c4 -o models/qwen          one commit, the same files for ever"""
PARTS = {
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
RECORD = "download.json"
BLOCK = 1 << 20


def run(arguments: list[str]) -> int:
    """Fetch, and say where it lies."""
    parser = Parser("download", SUMMARY, EXAMPLES)
    parser.add_argument("repository", help="as the Hub calls it: OWNER/NAME")
    parser.add_argument(
        "--revision", default="main", metavar="R", help="a branch, tag or commit (main)"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=tuple(PARTS),
        help="a part of the files; may be given twice",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to fill")
    options = parser.parse_args(arguments)
    patterns = [pattern for part in options.only or PARTS for pattern in PARTS[part]]
    folder = Path(options.output)
    if folder.exists() and not folder.is_dir():
        raise fail("file", f"'{folder}' is a file, not a folder", help="name a folder")
    commit = fetched(options.repository, options.revision, folder, patterns)
    files = {
        path.relative_to(folder).as_posix(): digest(path)
        for path in sorted(folder.rglob("*"))
        if is_fetched(path, folder)
    }
    if not files:
        raise fail(
            "file",
            f"{options.repository} has none of the files asked for",
            help=f"asked for: {', '.join(patterns)}",
        )
    record = {
        "repository": options.repository,
        "revision": options.revision,
        "commit": commit,
        "files": files,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if not options.quiet:
        print(f"{folder}: {counted(len(files), 'file')} of {options.repository} at {commit[:12]}")
    return 0


def fetched(repository: str, revision: str, folder: Path, patterns: list[str]) -> str:
    """The commit whose files lie in the folder now. Raises ProblemsFound where the Hub does not give them."""
    try:
        commit = HfApi().model_info(repository, revision=revision).sha
        snapshot_download(repository, revision=commit, local_dir=folder, allow_patterns=patterns)
    except (
        Exception
    ) as error:  # also its HTTP client's, which is another package from version to version
        raise refusal(error, repository, revision) from error
    assert commit is not None, "the Hub gives a commit with every revision"
    return str(commit)


def refusal(error: Exception, repository: str, revision: str) -> ProblemsFound:
    """What the Hub's answer means for who asked."""
    if isinstance(error, GatedRepoError):
        return fail(
            "file",
            f"{repository} is gated",
            help="accept its licence on the Hub, and set HF_TOKEN to a token of yours",
        )
    if isinstance(error, RevisionNotFoundError):
        return fail(
            "file",
            f"{repository} has no revision '{revision}'",
            help="name a branch, tag or commit of it",
        )
    if isinstance(error, RepositoryNotFoundError):
        return fail(
            "file",
            f"the Hub has no model '{repository}'",
            help="check the name; a private one needs HF_TOKEN",
        )
    if isinstance(error, HFValidationError):
        return fail("usage", f"'{repository}' is no name of a model", help="write OWNER/NAME")
    where = environment().get("HF_ENDPOINT", "https://huggingface.co")
    return fail(
        "file",
        f"{repository} could not be fetched from {where}: {str(error).splitlines()[0]}",
        help="run the same command again to go on",
    )


def is_fetched(path: Path, folder: Path) -> bool:
    """Whether a file came from the Hub, and is neither the record nor the Hub library's own notes."""
    inside = path.relative_to(folder)
    return path.is_file() and inside.parts[0] != ".cache" and inside != Path(RECORD)


def digest(path: Path) -> dict[str, object]:
    """Bytes and xxh3 of a file."""
    hashed = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hashed.update(block)
    return {"bytes": path.stat().st_size, "xxh3_128": hashed.hexdigest()}
