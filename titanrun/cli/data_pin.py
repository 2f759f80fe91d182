"""`titanrun data pin`: ask the Hub for the commits of a recipe's datasets."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.hub_datasets import MAIN, fetch_dataset_commit
from titanrun.components.data.validators_config import COMMIT_PATTERN
from titanrun.config.problems import DataPath, Fix, Origin, ProblemsFound, problem_error
from titanrun.config.read_source import FORMATS, read_source, read_source_text
from titanrun.config.text_edits import apply_text_edits, find_text_at
from titanrun.config.tree import Node, find_node, format_path

SUMMARY = (
    "Ask the Hub for the commit of each dataset that a recipe reads from it: that of its revision, "
    "a branch or a tag, or else of main. Prints them as overrides; --write writes them into the "
    "recipe. HF_TOKEN gives access to gated datasets, HF_ENDPOINT selects another hub."
)
EXAMPLES = """  titanrun data pin recipe.yaml
  titanrun data pin recipe.yaml --write
  titanrun train recipe.yaml $(titanrun data pin recipe.yaml)"""


@dataclass(frozen=True, slots=True)
class PinnedDataset:
    """Dataset on the Hub in a recipe, with the commit that the Hub names."""

    path: DataPath
    repo: Node
    revision: Node | None
    commit: str


def pin_data(arguments: list[str]) -> int:
    """Print the commits, or write them into the recipe."""
    parser = CommandParser("data pin", SUMMARY, EXAMPLES)
    parser.add_argument("recipe", help="a recipe file; files that it extends are not changed")
    parser.add_argument("--write", action="store_true", help="write the commits into the recipe")
    options = parser.parse_args(arguments)
    tree = read_source(options.recipe)
    pinned = [find_commit(path, node) for path, node in iter_unpinned_datasets(tree)]
    if options.write and pinned:
        write_commits(Path(options.recipe), tree, pinned)
    for one in pinned:
        print(f"{format_path((*one.path, 'revision'))}={one.commit}")
    if not pinned and not options.quiet:
        print("every dataset of the Hub has a commit", file=sys.stderr)
    return 0


def iter_unpinned_datasets(node: Node, path: DataPath = ()) -> Iterator[tuple[DataPath, Node]]:
    """Yield the sections with a repo whose revision is not a commit."""
    if isinstance(node.value, list):
        for number, item in enumerate(node.value):
            yield from iter_unpinned_datasets(item, (*path, number))
    if not isinstance(node.value, dict):
        return
    revision = node.value.get("revision")
    is_pinned = revision is not None and COMMIT_PATTERN.fullmatch(str(revision.value))
    if "repo" in node.value and isinstance(node.value["repo"].value, str) and not is_pinned:
        yield path, node
    for name, item in node.value.items():
        yield from iter_unpinned_datasets(item, (*path, name))


def find_commit(path: DataPath, node: Node) -> PinnedDataset:
    """Ask the Hub for the commit of one dataset.

    Raises:
        ProblemsFound: With the Hub's reason, at the repo or the revision.
    """
    assert isinstance(node.value, dict)
    repo, revision = node.value["repo"], node.value.get("revision")
    name = MAIN if revision is None or revision.value is None else str(revision.value)
    commit = fetch_dataset_commit(str(repo.value), name, path=(*path, "repo"), origin=repo.origin)
    return PinnedDataset(path, repo, revision, commit)


def write_commits(file: Path, tree: Node, pinned: list[PinnedDataset]) -> None:
    """Write the commits into the recipe, and change nothing else in it.

    Raises:
        ProblemsFound: If the recipe is written in a way that cannot be edited.
    """
    text = apply_text_edits(
        tree.origin.source.text, [build_commit_edit(one, file) for one in pinned]
    )
    edited = read_edited(file, tree, text)
    found = [edited and find_node(edited, (*one.path, "revision")) for one in pinned]
    if any(
        node is None or node.value != one.commit for node, one in zip(found, pinned, strict=True)
    ):
        raise uneditable_error(pinned[0])
    file.write_text(text, encoding="utf-8", newline="")


def read_edited(file: Path, tree: Node, text: str) -> Node | None:
    """Return the tree of the edited text, None if it cannot be read."""
    source = type(tree.origin.source)(str(file), text)
    try:
        return read_source_text(source, FORMATS[file.suffix.lower()])
    except ProblemsFound:
        return None


def build_commit_edit(pinned: PinnedDataset, file: Path) -> Fix:
    """Build the edit that writes a commit, beside the repo if there is no revision yet."""
    if pinned.revision is not None:
        return Fix(pinned.revision.origin, f'"{pinned.commit}"')
    written, key = find_text_at(pinned.repo.origin), pinned.repo.key
    if written is None or key is None:
        raise uneditable_error(pinned)
    separator = " = " if file.suffix.lower() == ".toml" else ": "
    entry = f'revision{separator}"{pinned.commit}"'
    line = key.source.get_line(key.line)
    before = line[: key.column - 1]
    if before.strip(" \t-") == "":
        return Fix(pinned.repo.origin, f"{written}\n{before.replace('-', ' ')}{entry}")
    return Fix(pinned.repo.origin, f"{written}, {entry}")


def uneditable_error(pinned: PinnedDataset) -> ProblemsFound:
    """Build the problem of a recipe that cannot be edited in place."""
    origin: Origin = pinned.repo.origin
    return problem_error(
        "file",
        f"the revision of '{pinned.repo.value}' cannot be written here",
        path=pinned.path,
        origin=origin,
        hint=f'write revision: "{pinned.commit}" yourself',
    )
