"""Replaces `${env:NAME}`, `${env:NAME,default}` and `${section.key}` in a recipe's texts; `$${` stands for `${` itself."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from titanrun.config.emit import SURROGATE, plain_scalar
from titanrun.config.names import KEY, PathMistake, parse_path
from titanrun.config.problems import Code, DataPath, Origin, Problem, Related
from titanrun.config.scalars import Refusal, resolve
from titanrun.config.suggest import closest
from titanrun.config.tree import Node, ReadInPart, Scalar, find, path_text, walk

MARK = "${"
ENVIRONMENT = "env:"
# an escape, a reference, or a reference that is never closed
PIECE = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<inner>[^}]*)\}|(?P<open>\$\{)")
LONGEST_CHAIN = 64
# references double a text at each level: 20 levels would fill the memory
LONGEST_TEXT = 65_536
MOST_PIECES = 1000
FORMS = "write ${section.key}, ${env:NAME} or ${env:NAME,default}; $${ stands for the characters ${"


def interpolate(
    root: Node,
    environment: Mapping[str, str],
    *,
    default_of: Callable[[DataPath], object] | None = None,
    is_text: Callable[[DataPath], bool] = lambda path: False,
    is_secret: Callable[[DataPath], bool] = lambda path: False,
) -> Node:
    """The tree with every reference replaced; `root` stays as it is.

    A reference that is the whole value keeps the type of what it refers to, which must be a scalar; inside longer text it becomes
    text. An environment variable that is the whole value is read as a YAML number, boolean or null where it looks like one and
    `is_text(path)` does not say that its field holds text. References see what the recipe writes; `default_of(path)` adds what it
    leaves to defaults, and raises LookupError where there is nothing. Where `is_secret(path)`, the text stays as it is, and no
    reference leads there. Raises ReadInPart with all problems, and the tree in which only
    the values with problems are left as they were.
    """
    resolver = Resolver(root, environment, default_of, is_text, is_secret)
    result = resolver.tree(root, ())
    if resolver.problems:
        # an anchor's value is visited once for each of its aliases
        found = {
            (problem.origin, problem.message): problem for problem in reversed(resolver.problems)
        }
        raise ReadInPart(tuple(found.values()), result, frozenset(resolver.failed))
    return result


def escaped(data: Any, keep: Collection[DataPath] = (), path: DataPath = ()) -> Any:
    """Plain data in which every text means itself when it is read as a recipe again; the references at `keep` stay references."""
    if path in keep:
        return data
    if isinstance(data, dict):
        return {key: escaped(value, keep, (*path, key)) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [escaped(item, keep, (*path, index)) for index, item in enumerate(data)]
    return data.replace(MARK, "$${") if isinstance(data, str) else data


@dataclass(frozen=True, slots=True)
class Reference:
    """One `${...}` in the value at `path`, with its place there and what stands between the braces."""

    node: Node
    path: DataPath
    start: int
    end: int
    inner: str

    @property
    def origin(self) -> Origin:
        """The columns of the reference where the value stands on one line as it is, else the whole value."""
        origin, text = self.node.origin, str(self.node.value)
        line = origin.source.line(origin.line)
        for quote in (0, 1):
            begin = origin.column - 1 + quote
            if line[begin : begin + len(text)] == text:
                return replace(
                    origin, column=begin + self.start + 1, end_column=begin + self.end + 1
                )
        return origin


class Unresolved(Exception):
    """A reference has no value; `problem` says why, unless another problem has said it already."""

    def __init__(self, problem: Problem | None = None) -> None:
        self.problem = problem
        super().__init__()


@dataclass(slots=True)
class Resolver:
    """Resolves the references of one tree, each value once."""

    root: Node
    environment: Mapping[str, str]
    default_of: Callable[[DataPath], object] | None
    is_text: Callable[[DataPath], bool]
    is_secret: Callable[[DataPath], bool]
    problems: list[Problem] = field(default_factory=list)
    done: dict[DataPath, Node | None] = field(default_factory=dict)
    failed: set[Origin] = field(default_factory=set)
    ring: list[Reference] = field(default_factory=list)

    def tree(self, node: Node, path: DataPath) -> Node:
        """The node with all references at and below it replaced, those with problems left as they are."""
        if isinstance(node.value, dict):
            entries = {key: self.tree(child, (*path, key)) for key, child in node.value.items()}
            same = all(child is entries[key] for key, child in node.value.items())
            return node if same else replace(node, value=entries)
        if isinstance(node.value, list):
            items = [self.tree(item, (*path, index)) for index, item in enumerate(node.value)]
            same = all(new is old for new, old in zip(items, node.value, strict=True))
            return node if same else replace(node, value=items)
        return self.resolved(node, path) or node

    def resolved(self, node: Node, path: DataPath) -> Node | None:
        """The scalar with its references replaced; None where that failed, with the problem collected."""
        if not isinstance(node.value, str) or MARK not in node.value or self.is_secret(path):
            return node
        if path not in self.done:
            try:
                self.done[path] = self.replaced(node, path)
            except Unresolved as unresolved:
                self.done[path] = None
                self.failed.add(node.origin)
                self.problems += [unresolved.problem] if unresolved.problem else []
        return self.done[path]

    def replaced(self, node: Node, path: DataPath) -> Node:
        """The text of `node` put together from its pieces."""
        pieces = list(split(node, path))
        if len(pieces) > MOST_PIECES:
            message = f"a text with more than {MOST_PIECES} references and words between them"
            raise Unresolved(Problem("limit", message, path, node.origin))
        if len(pieces) == 1 and isinstance(pieces[0], Reference):
            return self.looked_up(pieces[0], whole=True)
        texts: list[str] = []
        also: list[Origin] = []
        for piece in pieces:
            found = self.looked_up(piece, whole=False) if isinstance(piece, Reference) else None
            also += found.also if found else ()
            texts.append(plain_scalar(found.value) if found else str(piece))
        text = "".join(texts)
        if len(text) > LONGEST_TEXT:
            raise Unresolved(
                Problem(
                    "limit", f"the text grows beyond {LONGEST_TEXT} characters", path, node.origin
                )
            )
        via = node.via if all(isinstance(piece, str) for piece in pieces) else "interpolation"
        return replace(node, value=text, also=(*node.also, *also), via=via)

    def looked_up(self, reference: Reference, *, whole: bool) -> Node:
        """The value that a reference stands for, at the place of the reference."""
        if MARK in reference.inner:
            raise mistake(reference, "references do not nest")
        if reference.inner.startswith(ENVIRONMENT):
            text = self.variable(reference)
            value = scalar_of(text) if whole and not self.is_text(reference.path) else text
            return replace(reference.node, value=value, via="interpolation")
        target = self.target(reference)
        return replace(
            reference.node,
            value=target.value,
            also=(*reference.node.also, target.origin),
            via="interpolation",
        )

    def variable(self, reference: Reference) -> str:
        """The text of an environment variable, or the default beside its name."""
        name, comma, default = reference.inner.removeprefix(ENVIRONMENT).partition(",")
        if KEY.fullmatch(name) is None:
            raise mistake(
                reference,
                f"'{name}' is not the name of an environment variable"
                if name
                else "env: needs a name",
            )
        text = self.environment.get(name)
        if text is None and not comma:
            suggestion = closest(name, self.environment)
            help = (
                f"did you mean '{suggestion}'?"
                if suggestion
                else f"set it, or give a default: ${{env:{name},default}}"
            )
            raise mistake(
                reference,
                f"environment variable '{name}' is not set",
                help=help,
                suggestion=suggestion,
            )
        if text is not None and SURROGATE.search(text):
            raise mistake(reference, f"environment variable '{name}' is not UTF-8 text", help=None)
        return default.strip() if text is None else text

    def target(self, reference: Reference) -> Node:
        """The resolved scalar that a reference to another value leads to."""
        path = parsed(reference)
        if self.is_secret(path):
            raise mistake(
                reference,
                f"'{reference.inner}' is a secret, and nothing refers to it",
                help="refer to something else",
            )
        node = self.written(path) or self.default(reference, path)
        if isinstance(node.value, dict | list):
            kind = "a mapping" if isinstance(node.value, dict) else "a list"
            raise mistake(
                reference,
                f"'{reference.inner}' is {kind}, and a reference takes a single value",
                help="refer to a value in it",
            )
        self.refuse_ring(reference, path)
        self.ring.append(reference)
        resolved = self.resolved(node, path)
        self.ring.pop()
        if resolved is None:
            raise Unresolved
        return resolved

    def written(self, path: DataPath) -> Node | None:
        """What the recipe says at `path`; the name of a component may be written as a bare string."""
        node = find(self.root, path)
        if node is None and path[-1] == "name":
            holder = find(self.root, path[:-1])
            return holder if holder is not None and isinstance(holder.value, str) else None
        return node

    def default(self, reference: Reference, path: DataPath) -> Node:
        """The default at `path`, which the recipe does not write."""
        try:
            if self.default_of is None:
                raise LookupError(path)
            value = self.default_of(path)
        except LookupError:
            raise self.unknown(reference, path) from None
        scalar = value is None or isinstance(value, bool | int | float | str)
        return Node(value if scalar else {}, reference.origin)  # type: ignore[arg-type]

    def unknown(self, reference: Reference, path: DataPath) -> Unresolved:
        """The problem of a reference to nothing, with what was probably meant."""
        known = [
            place for place, node in walk(self.root) if not isinstance(node.value, dict | list)
        ]
        suggestion = closest(reference.inner, {path_text(place) for place in known})
        same_key = {path_text(place) for place in known if place[-1] == path[-1]}
        if suggestion is None and len(same_key) == 1:
            suggestion = same_key.pop()
        help = f"did you mean '{suggestion}'?" if suggestion else FORMS
        return mistake(
            reference, f"the recipe has no '{reference.inner}'", help=help, suggestion=suggestion
        )

    def refuse_ring(self, reference: Reference, path: DataPath) -> None:
        """Stops references that lead back to themselves, and chains too long to follow."""
        chain = [*self.ring, reference]
        start = next((index for index, member in enumerate(chain) if member.path == path), None)
        if start is not None:
            ring = chain[start:]
            names = " -> ".join(
                path_text(place) for place in [*(member.path for member in ring), path]
            )
            related = tuple(
                Related(member.origin, f"refers to {member.inner}", member.path)
                for member in ring[:-1]
            )
            help = "write one of these values out"
            raise mistake(
                reference,
                f"references go in a ring: {names}",
                code="cycle",
                help=help,
                related=related,
            )
        if len(chain) > LONGEST_CHAIN:
            raise mistake(
                reference, f"more than {LONGEST_CHAIN} references in a row", code="limit", help=None
            )


def split(node: Node, path: DataPath) -> Iterator[str | Reference]:
    """The text of `node` as literal pieces and references."""
    text, position = str(node.value), 0
    for found in PIECE.finditer(text):
        if found.start() > position:
            yield text[position : found.start()]
        position = found.end()
        if found["escape"]:
            yield MARK
            continue
        reference = Reference(node, path, found.start(), found.end(), found["inner"] or "")
        if found["open"]:
            raise mistake(reference, "'${' is never closed")
        yield reference
    if position < len(text):
        yield text[position:]


def parsed(reference: Reference) -> DataPath:
    """The path that a reference names."""
    inner = reference.inner
    if not inner:
        raise mistake(reference, "the reference is empty")
    if re.match(r"\w+:", inner):
        raise mistake(reference, f"there is no kind of reference '{inner.partition(':')[0]}:'")
    try:
        return parse_path(inner)
    except PathMistake:
        raise mistake(reference, f"'{inner}' is not a path, and there are no expressions") from None


def mistake(
    reference: Reference,
    message: str,
    *,
    code: Code = "interpolation",
    help: str | None = FORMS,
    suggestion: str | None = None,
    related: tuple[Related, ...] = (),
) -> Unresolved:
    """A problem at the place of a reference."""
    problem = Problem(
        code,
        message,
        reference.path,
        reference.origin,
        help=help,
        suggestion=suggestion,
        related=related,
    )
    return Unresolved(problem)


def scalar_of(text: str) -> Scalar:
    """Text from outside as the number, boolean or null it looks like, else as it is."""
    word = text.strip()
    value = resolve(word) if word else text
    return text if isinstance(value, str | Refusal) else value
