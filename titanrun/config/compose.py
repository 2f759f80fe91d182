"""Joins a recipe with the files it extends: later files win, the recipe itself wins over all of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from os.path import normpath
from pathlib import Path

from titanrun.config.problems import Origin, Problem, ProblemsFound, Related
from titanrun.config.source import read_source
from titanrun.config.suggest import closest
from titanrun.config.tree import Node, ReadInPart, plain

EXTENDS = "extends"
ANCHOR_PREFIX = "x-"
LONGEST_CHAIN = 64
# folders on a shelf, and the file in the last
DEEPEST_SHELF = 4
# the one bare word that never names a component
AUTO = "auto"


def compose(path: str, shelves: Mapping[str, Path] | None = None) -> Node:
    """The recipe at `path` merged over the files it extends; `extends` and `x-*` keys of the top level are gone.

    A base is named relative to the file that extends it, or as `shelf:path` in one of the folders `shelves`.

    Mappings merge key by key, lists and scalars replace, and a changed `name` replaces the whole component. A replaced value is
    remembered in `shadowed`, nearest first. Raises ProblemsFound with the problems of all files, the recipe's own first; ReadInPart
    where all of them belong to single values.
    """
    composer = Composer(shelves or {})
    root = composer.compose(path, ())
    if composer.problems and (root is None or len(composer.problems) > composer.harmless):
        raise ProblemsFound(composer.problems)
    assert root is not None
    if composer.problems:
        raise ReadInPart(composer.problems, root, frozenset(composer.broken))
    return root


@dataclass(frozen=True, slots=True)
class Include:
    """One file on the way from the recipe to the file being read, and the place that names it."""

    file: Path
    name: str
    named_at: Origin | None


@dataclass(slots=True)
class Composer:
    """Reads each file once, however many files extend it, and collects the problems of all.

    `harmless` counts those that belong to single values, `broken` holds the origins of these.
    """

    shelves: Mapping[str, Path]
    problems: list[Problem] = field(default_factory=list)
    composed: dict[Path, Node | None] = field(default_factory=dict)
    broken: set[Origin] = field(default_factory=set)
    harmless: int = 0

    def compose(
        self, path: str, ring: tuple[Include, ...], named_at: Origin | None = None
    ) -> Node | None:
        """The file at `path` over its bases; None where it cannot be read. `ring` holds the files that led here."""
        file = real(path)
        if file in self.composed:
            return self.composed[file]
        ring = (*ring, Include(file, path, named_at))
        if self.refuses(ring):
            return None
        self.composed[file] = None
        own = self.read(path, named_at)
        if own is not None:
            self.composed[file] = self.over_bases(own, path, ring)
        return self.composed[file]

    def refuses(self, ring: tuple[Include, ...]) -> bool:
        """Whether the chain of includes is too long to go on."""
        if len(ring) <= LONGEST_CHAIN:
            return False
        self.problems.append(
            Problem(
                "limit",
                f"more than {LONGEST_CHAIN} files extend one another",
                (EXTENDS,),
                ring[-1].named_at,
            )
        )
        return True

    def read(self, path: str, named_at: Origin | None) -> Node | None:
        """The file alone, or as much of it as has a meaning, with its problems collected; None where nothing has."""
        try:
            return read_source(path, included_from=named_at)
        except ReadInPart as part:
            self.problems += part.problems
            self.broken |= part.broken
            self.harmless += len(part.problems)
            return part.root
        except ProblemsFound as found:
            self.problems += found.problems
            return None

    def over_bases(self, own: Node, path: str, ring: tuple[Include, ...]) -> Node:
        """The file's own tree merged over what it extends."""
        bases = []
        for base, named_at in self.bases(own):
            file = on_shelf(base, self.shelves) or beside(path, base)
            gone = self.is_missing(base, file, named_at) or self.cycle(file, named_at, ring)
            bases.append(None if gone else self.compose(file, ring, named_at))
        kept = {
            key: child
            for key, child in entries(own).items()
            if key != EXTENDS and not key.startswith(ANCHOR_PREFIX)
        }
        merged: dict[str, Node] = {}
        for node in (*bases, replace(own, value=kept)):
            if node is not None:
                # the top level's `name` is the recipe's own, not that of a component
                merged = entries(merge_entries(merged, node))
        return replace(own, value=merged)

    def bases(self, own: Node) -> Iterator[tuple[str, Origin]]:
        """The paths under `extends`, each with its place."""
        extends = entries(own).get(EXTENDS)
        if extends is None:
            return
        items = extends.value if isinstance(extends.value, list) else [extends]
        for item in items:
            if not isinstance(item.value, str) or not item.value:
                message = "extends takes a path or a list of paths"
                self.problems.append(
                    Problem(
                        "wrong-type",
                        message,
                        (EXTENDS,),
                        item.origin,
                        got=plain(item),
                        expected="a path",
                    )
                )
            elif "${" in item.value:
                message = (
                    "extends cannot hold ${...}: files are read before references are resolved"
                )
                self.problems.append(
                    Problem(
                        "interpolation",
                        message,
                        (EXTENDS,),
                        item.origin,
                        help="write the path itself",
                    )
                )
            else:
                yield item.value, item.origin

    def is_missing(self, base: str, file: str, named_at: Origin) -> bool:
        """Whether a base is not there, and a shelf is involved, which can say what was meant."""
        meant = on_some_shelf(base, self.shelves) if is_absent(file) else None
        if meant is None:
            return False
        help = f"did you mean '{meant}'?" if meant else None
        self.problems.append(
            Problem(
                "file",
                f"there is no file {base}",
                (EXTENDS,),
                named_at,
                help=help,
                suggestion=meant or None,
            )
        )
        return True

    def cycle(self, path: str, named_at: Origin, ring: tuple[Include, ...]) -> bool:
        """Whether `path` is one of the files that led to it; reported once, with the ring."""
        file = real(path)
        start = next((index for index, include in enumerate(ring) if include.file == file), None)
        if start is None:
            return False
        members = ring[start:]
        names = " -> ".join([include.name for include in members] + [members[0].name])
        related = tuple(
            Related(include.named_at, f"extends {include.name}") for include in members[1:]
        )
        help = "remove one of these extends"
        self.problems.append(
            Problem(
                "cycle",
                f"files extend one another: {names}",
                (EXTENDS,),
                named_at,
                help=help,
                related=related,
            )
        )
        return True


def on_shelf(base: str, shelves: Mapping[str, Path]) -> str | None:
    """The file that `shelf:path` names; None where `base` names no shelf, or a path that leaves it."""
    shelf, _, path = base.partition(":")
    if shelf not in shelves or not path or ".." in Path(path).parts or Path(path).is_absolute():
        return None
    return str(shelves[shelf] / path)


def is_absent(file: str) -> bool:
    """Whether a path can be looked up, and nothing is there."""
    try:
        Path(file).stat()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # reading it says why
        return False
    return False


def on_some_shelf(base: str, shelves: Mapping[str, Path]) -> str | None:
    """The name of a shelf's file that a base, which is not there, was to be; empty where a shelf has no such file, None where none
    was meant."""
    shelf, _, path = base.partition(":")
    if shelf in shelves:
        files = [
            file.relative_to(shelves[shelf]).as_posix()
            for file in sorted(shelves[shelf].rglob("*"))
            if file.is_file()
        ]
        meant = closest(path, files)
        return f"{shelf}:{meant}" if meant else ""
    parts = Path(base).parts[-DEEPEST_SHELF:]
    ends = [
        Path(*parts[start:])
        for start in range(len(parts))
        if parts[start:] and ".." not in parts[start:]
    ]
    return next(
        (
            f"{name}:{end.as_posix()}"
            for end in ends
            for name, folder in shelves.items()
            if (folder / end).is_file()
        ),
        None,
    )


def beside(path: str, base: str) -> str:
    """`base`, relative to the folder of `path`, as short as it can be said without leaving its links."""
    joined = Path(path).parent / base
    short = Path(normpath(joined))
    return str(short if real(short) == real(joined) else joined)


def real(path: str | Path) -> Path:
    """The file behind a path; a path that cannot be followed stays as it is, and reading it says why."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL character
        return Path(path)


def merge(base: Node, own: Node) -> Node:
    """`own` over `base`, neither of them changed."""
    if own is base:
        return own
    below = as_mapping(base)
    if below is None or not isinstance(own.value, dict) or names_another(below, own.value):
        return shadowing(own, base)
    return merge_entries(below, own)


def merge_entries(below: dict[str, Node], own: Node) -> Node:
    """The mapping `own` over the entries `below`, key by key."""
    merged = dict(below)
    for key, child in entries(own).items():
        merged[key] = merge(below[key], child) if key in below else child
    return replace(own, value=merged)


def entries(node: Node) -> dict[str, Node]:
    """The entries of a node that is known to be a mapping."""
    assert isinstance(node.value, dict)
    return node.value


def as_mapping(node: Node) -> dict[str, Node] | None:
    """The entries of a mapping, or of the component that a bare string is short for."""
    if isinstance(node.value, dict):
        return node.value
    if isinstance(node.value, str) and node.value != AUTO:
        return {"name": replace(node, key=None)}
    return None


def names_another(base: dict[str, Node], own: dict[str, Node]) -> bool:
    """Whether `own` is another component than `base`."""
    return "name" in base and "name" in own and base["name"].value != own["name"].value


def shadowing(own: Node, base: Node) -> Node:
    """`own` in the place of `base`, which it remembers, key by key where both are mappings."""
    value = own.value
    if isinstance(value, dict) and isinstance(base.value, dict):
        below = base.value
        value = {
            key: shadowing(child, below[key]) if key in below else child
            for key, child in value.items()
        }
    return replace(own, value=value, shadowed=(*own.shadowed, base.origin, *base.shadowed))
