"""Composition of a recipe with the files it extends; the recipe wins over all files.

Later files win over earlier ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from os.path import normpath
from pathlib import Path

from titanrun.config.list_additions import find_added_key, merge_list_additions
from titanrun.config.problems import Origin, Problem, ProblemsFound, RelatedLocation
from titanrun.config.read_source import read_source
from titanrun.config.source_streams import is_open_stream, is_provided
from titanrun.config.suggest import find_closest
from titanrun.config.tree import Node, PartialReadError, to_plain_data

EXTENDS = "extends"
ANCHOR_PREFIX = "x-"
MAX_EXTENDS_DEPTH = 64
# folders inside a named folder, plus the file in the last one
MAX_NAMED_FOLDER_DEPTH = 4
# the only bare word that never names a component
AUTO = "auto"
ADDRESS_MARK = "://"
SUFFIX = ".yaml"


def compose(path: str, named_folders: Mapping[str, Path] | None = None) -> Node:
    """Return the recipe at `path` merged over the files that it extends.

    `extends` and `x-*` keys of the top level are removed. A base is named relative to the file that
    extends it, or as `folder:path` in one of `named_folders`.

    Mappings merge key by key, lists and scalars replace, `key+` adds to the list under `key`, and
    a changed `name` replaces the whole component. A replaced value is kept in `shadowed`, nearest
    first.

    Raises:
        IncompleteTreeError: With the problems of all files, those of the recipe first, if the
            recipe can be read and one of the files it extends cannot.
        PartialReadError: If each problem belongs to a single value.
        ProblemsFound: If the recipe cannot be read.
    """
    composer = Composer(named_folders or {})
    root = composer.compose(path, ())
    if root is None:
        raise ProblemsFound(composer.problems)
    if composer.problems:
        is_whole = len(composer.problems) == composer.num_value_problems
        error = PartialReadError if is_whole else IncompleteTreeError
        raise error(composer.problems, root, frozenset(composer.invalid_origins))
    return root


class IncompleteTreeError(PartialReadError):
    """A file that the recipe extends cannot be read: the tree lacks what it holds."""


@dataclass(frozen=True, slots=True)
class Include:
    """One file on the way from the recipe to the current file, and the origin that names it."""

    file: Path
    name: str
    extends_origin: Origin | None


@dataclass(slots=True)
class Composer:
    """Reader that reads each file once, even if several extend it, and collects all problems.

    `num_value_problems` counts the problems that belong to single values, `invalid_origins` holds
    the origins of these values.
    """

    named_folders: Mapping[str, Path]
    problems: list[Problem] = field(default_factory=list)
    composed_files: dict[Path, Node | None] = field(default_factory=dict)
    invalid_origins: set[Origin] = field(default_factory=set)
    num_value_problems: int = 0

    def compose(
        self, path: str, include_chain: tuple[Include, ...], extends_origin: Origin | None = None
    ) -> Node | None:
        """Return the file at `path` merged over its bases, or None if it cannot be read.

        `include_chain` holds the files that led here.
        """
        file = resolve_links(path)
        if file in self.composed_files:
            return self.composed_files[file]
        include_chain = (*include_chain, Include(file, path, extends_origin))
        if self.is_chain_too_long(include_chain):
            return None
        self.composed_files[file] = None
        own = self.read_file(path, extends_origin)
        if own is not None:
            self.composed_files[file] = self.merge_over_bases(own, path, include_chain)
        return self.composed_files[file]

    def is_chain_too_long(self, include_chain: tuple[Include, ...]) -> bool:
        """Report whether the chain of includes is too long to continue."""
        if len(include_chain) <= MAX_EXTENDS_DEPTH:
            return False
        self.problems.append(
            Problem(
                "limit",
                f"extends chain is longer than {MAX_EXTENDS_DEPTH} files",
                (EXTENDS,),
                include_chain[-1].extends_origin,
            )
        )
        return True

    def read_file(self, path: str, extends_origin: Origin | None) -> Node | None:
        """Return the readable part of one file, or None, and collect its problems."""
        try:
            return read_source(path, included_from=extends_origin)
        except PartialReadError as part:
            self.problems += part.problems
            self.invalid_origins |= part.invalid_origins
            self.num_value_problems += len(part.problems)
            return part.root
        except ProblemsFound as found:
            self.problems += found.problems
            return None

    def merge_over_bases(self, own: Node, path: str, include_chain: tuple[Include, ...]) -> Node:
        """Return the file's own tree merged over its bases."""
        bases = []
        for base, named_at in self.iter_bases(own):
            file = find_in_named_folder(base, self.named_folders) or resolve_base_path(path, base)
            gone = self.is_missing(base, file, named_at) or self.is_cycle(
                file, named_at, include_chain
            )
            bases.append(None if gone else self.compose(file, include_chain, named_at))
        kept = {
            key: child
            for key, child in get_mapping_entries(own).items()
            if key != EXTENDS and not key.startswith(ANCHOR_PREFIX)
        }
        merged: dict[str, Node] = {}
        for node in (*bases, replace(own, value=kept)):
            if node is not None:
                # `name` at the top level names the recipe, not a component
                merged = get_mapping_entries(merge_entries(merged, node))
        return replace(own, value=merged)

    def iter_bases(self, own: Node) -> Iterator[tuple[str, Origin]]:
        """Yield the paths under `extends`, each with its origin."""
        extends = get_mapping_entries(own).get(EXTENDS)
        if extends is None:
            return
        items = extends.value if isinstance(extends.value, list) else [extends]
        for item in items:
            if not isinstance(item.value, str) or not item.value:
                message = "extends must be a path or a list of paths"
                self.problems.append(
                    Problem(
                        "wrong-type",
                        message,
                        (EXTENDS,),
                        item.origin,
                        got=to_plain_data(item),
                        expected="a path",
                    )
                )
            elif "${" in item.value:
                message = (
                    "extends cannot contain ${...}: files are read before references are resolved"
                )
                self.problems.append(
                    Problem(
                        "interpolation",
                        message,
                        (EXTENDS,),
                        item.origin,
                        hint="write the path itself",
                    )
                )
            else:
                yield item.value, item.origin

    def is_missing(self, base: str, file: str, extends_origin: Origin) -> bool:
        """Report a missing base with an address, or with a named folder, to suggest a file.

        Return whether it was reported.
        """
        meant = suggest_named_file(base, self.named_folders) if is_absent(file) else None
        is_address = ADDRESS_MARK in base and is_absent(file)
        if meant is None and not is_address:
            return False
        hint = f"did you mean '{meant}'?" if meant else None
        hint = "extends reads local files: download it first" if is_address else hint
        self.problems.append(
            Problem(
                "file",
                f"file not found: {base}",
                (EXTENDS,),
                extends_origin,
                hint=hint,
                suggestion=meant or None,
            )
        )
        return True

    def is_cycle(
        self, path: str, extends_origin: Origin, include_chain: tuple[Include, ...]
    ) -> bool:
        """Return whether `path` is one of the files that led to it; report each cycle once."""
        file = resolve_links(path)
        start = next(
            (index for index, include in enumerate(include_chain) if include.file == file), None
        )
        if start is None:
            return False
        members = include_chain[start:]
        names = " -> ".join([include.name for include in members] + [members[0].name])
        related = tuple(
            RelatedLocation(include.extends_origin, f"extends {include.name}")
            for include in members[1:]
        )
        hint = "remove one of these extends"
        self.problems.append(
            Problem(
                "cycle",
                f"circular extends: {names}",
                (EXTENDS,),
                extends_origin,
                hint=hint,
                related=related,
            )
        )
        return True


def find_in_named_folder(base: str, named_folders: Mapping[str, Path]) -> str | None:
    """Return the file that `folder:path` names.

    Return None if `base` names no known folder, or a path that leaves it.
    """
    shelf, _, path = base.partition(":")
    if (
        shelf not in named_folders
        or not path
        or ".." in Path(path).parts
        or Path(path).is_absolute()
    ):
        return None
    return str(named_folders[shelf] / path)


def is_absent(file: str) -> bool:
    """Return whether a path can be looked up and does not exist."""
    if is_provided(file):
        return False
    try:
        Path(file).stat()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # reading the file reports the reason
        return False
    return False


def suggest_named_file(base: str, named_folders: Mapping[str, Path]) -> str | None:
    """Return the most similar file name of a named folder for a missing base.

    Return empty text if a named folder has no such file, None if no named folder was meant.
    """
    shelf, _, path = base.partition(":")
    if shelf in named_folders:
        files = [
            file.relative_to(named_folders[shelf]).as_posix()
            for file in sorted(named_folders[shelf].rglob("*"))
            if file.is_file()
        ]
        meant = f"{path}{SUFFIX}" if f"{path}{SUFFIX}" in files else find_closest(path, files)
        return f"{shelf}:{meant}" if meant else ""
    parts = Path(base).parts[-MAX_NAMED_FOLDER_DEPTH:]
    ends = [
        Path(*parts[start:-1], f"{parts[-1]}{suffix}")
        for start in range(len(parts))
        if ".." not in parts[start:]
        for suffix in ("", SUFFIX)
    ]
    return next(
        (
            f"{name}:{end.as_posix()}"
            for end in ends
            for name, folder in named_folders.items()
            if (folder / end).is_file()
        ),
        None,
    )


def resolve_base_path(path: str, base: str) -> str:
    """Return `base` relative to the folder of `path`, shortened without leaving its links."""
    if is_open_stream(path):  # no folder has it, so what it extends is found from here
        return base
    joined = Path(path).parent / base
    short = Path(normpath(joined))
    return str(short if resolve_links(short) == resolve_links(joined) else joined)


def resolve_links(path: str | Path) -> Path:
    """Resolve the links of a path.

    Return an unresolvable path unchanged: reading it reports the reason.
    """
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links or a NUL character
        return Path(path)


def merge_nodes(base: Node, own: Node) -> Node:
    """Merge `own` over `base` without changing either."""
    if own is base:
        return own
    below = find_mapping_entries(base)
    if below is None or not isinstance(own.value, dict) or is_other_component(below, own.value):
        return record_shadowed(own, base)
    return merge_entries(below, own)


def merge_entries(below: dict[str, Node], own: Node) -> Node:
    """Merge the mapping `own` over the entries `below`, key by key."""
    merged, entries = dict(below), get_mapping_entries(own)
    for key, child in entries.items():
        if find_added_key(key) is None:
            merged[key] = merge_nodes(below[key], child) if key in below else child
    merge_list_additions(merged, entries)
    return replace(own, value=merged)


def get_mapping_entries(node: Node) -> dict[str, Node]:
    """Return the entries of a node that is known to be a mapping."""
    assert isinstance(node.value, dict)
    return node.value


def find_mapping_entries(node: Node) -> dict[str, Node] | None:
    """Return the entries of a mapping, or of the component that a bare string is short for."""
    if isinstance(node.value, dict):
        return node.value
    if isinstance(node.value, str) and node.value != AUTO:
        return {"name": replace(node, key=None)}
    return None


def is_other_component(base: dict[str, Node], own: dict[str, Node]) -> bool:
    """Return whether `own` is a different component than `base`."""
    return "name" in base and "name" in own and base["name"].value != own["name"].value


def record_shadowed(own: Node, base: Node) -> Node:
    """Return `own` with `base` recorded as shadowed, key by key if both are mappings."""
    value = own.value
    if isinstance(value, dict) and isinstance(base.value, dict):
        below = base.value
        value = {
            key: record_shadowed(child, below[key]) if key in below else child
            for key, child in value.items()
        }
    return replace(
        own,
        value=value,
        shadowed_origins=(*own.shadowed_origins, base.origin, *base.shadowed_origins),
    )
