"""Interpolation of environment variables and references to other values in recipe texts.

Forms: `${env:NAME}`, `${env:NAME,default}` and `${section.key}`. `$${` stands for a literal `${`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from titanrun.config.compose import AUTO
from titanrun.config.path_syntax import KEY
from titanrun.config.problems import DataPath, Origin, Problem, RelatedLocation
from titanrun.config.redaction import is_secret_variable
from titanrun.config.references import (
    ENVIRONMENT_PREFIX,
    REFERENCE_HINT,
    REFERENCE_START,
    UnresolvedReferenceError,
    ValueReference,
    correct_reference,
    parse_reference_path,
    reference_error,
    split_references,
)
from titanrun.config.serialize import SURROGATE, format_embedded_scalar
from titanrun.config.suggest import find_closest
from titanrun.config.tree import Node, PartialReadError, Scalar, find_node, format_path, iter_nodes
from titanrun.config.yaml_scalars import ScalarRejection, parse_scalar

MAX_REFERENCE_DEPTH = 64
# each level of references can double a text: 20 levels would fill the memory
MAX_TEXT_LENGTH = 65_536
MAX_PIECES = 1000


def interpolate(
    root: Node,
    environment: Mapping[str, str],
    *,
    get_default: Callable[[DataPath], object] | None = None,
    is_text: Callable[[DataPath], bool] = lambda path: False,
    is_secret: Callable[[DataPath], bool] = lambda path: False,
) -> Node:
    """Return the tree with every reference replaced. `root` is not modified.

    A reference that is the whole value keeps the type of its target, which must be a scalar; inside
    longer text it becomes text. An environment variable that is the whole value is read as a YAML
    number, boolean or null if it looks like one, unless `is_text(path)` says that its field holds
    text. References see the values written in the recipe; `get_default(path)` adds values left to
    defaults and raises LookupError if there is no default. If `is_secret(path)`, the text is
    unchanged and references cannot point there.

    Raises PartialReadError with all problems, and the tree in which only the values with problems
    are left unchanged.
    """
    resolver = ReferenceResolver(root, environment, get_default, is_text, is_secret)
    result = resolver.resolve_tree(root, ())
    if resolver.problems:
        # the value of an anchor is visited once per alias
        found = {
            (problem.origin, problem.message): problem for problem in reversed(resolver.problems)
        }
        raise PartialReadError(tuple(found.values()), result, frozenset(resolver.failed_origins))
    return result


def escape_references(data: Any, keep: Collection[DataPath] = (), path: DataPath = ()) -> Any:
    """Return plain data in which every text reads back literally as a recipe.

    References at the paths in `keep` stay references.
    """
    if path in keep:
        return data
    if isinstance(data, dict):
        return {key: escape_references(value, keep, (*path, key)) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [escape_references(item, keep, (*path, index)) for index, item in enumerate(data)]
    return data.replace(REFERENCE_START, "$${") if isinstance(data, str) else data


@dataclass(slots=True)
class ReferenceResolver:
    """Resolver of the references of one tree that resolves each value once."""

    root: Node
    environment: Mapping[str, str]
    get_default: Callable[[DataPath], object] | None
    is_text: Callable[[DataPath], bool]
    is_secret: Callable[[DataPath], bool]
    problems: list[Problem] = field(default_factory=list)
    resolved_nodes: dict[DataPath, Node | None] = field(default_factory=dict)
    failed_origins: set[Origin] = field(default_factory=set)
    reference_chain: list[ValueReference] = field(default_factory=list)

    def resolve_tree(self, node: Node, path: DataPath) -> Node:
        """Return the node with all references at and below it replaced.

        References with problems are left unchanged.
        """
        if isinstance(node.value, dict):
            entries = {
                key: self.resolve_tree(child, (*path, key)) for key, child in node.value.items()
            }
            same = all(child is entries[key] for key, child in node.value.items())
            return node if same else replace(node, value=entries)
        if isinstance(node.value, list):
            items = [
                self.resolve_tree(item, (*path, index)) for index, item in enumerate(node.value)
            ]
            same = all(new is old for new, old in zip(items, node.value, strict=True))
            return node if same else replace(node, value=items)
        return self.resolve_scalar(node, path) or node

    def resolve_scalar(self, node: Node, path: DataPath) -> Node | None:
        """Return the scalar with its references replaced.

        Return None after a failure, with the problem collected.
        """
        if (
            not isinstance(node.value, str)
            or REFERENCE_START not in node.value
            or self.is_secret(path)
        ):
            return node
        if path not in self.resolved_nodes:
            try:
                self.resolved_nodes[path] = self.substitute_references(node, path)
            except UnresolvedReferenceError as unresolved:
                self.resolved_nodes[path] = None
                self.failed_origins.add(node.origin)
                self.problems += [unresolved.problem] if unresolved.problem else []
        return self.resolved_nodes[path]

    def substitute_references(self, node: Node, path: DataPath) -> Node:
        """Return the text of `node` joined from its literal pieces and reference values."""
        pieces = list(split_references(node, path))
        if len(pieces) > MAX_PIECES:
            message = f"text has more than {MAX_PIECES} references and pieces between them"
            raise UnresolvedReferenceError(Problem("limit", message, path, node.origin))
        if len(pieces) == 1 and isinstance(pieces[0], ValueReference):
            return self.look_up(pieces[0], is_whole_value=True)
        texts: list[str] = []
        also: list[Origin] = []
        for piece in pieces:
            found = (
                self.look_up(piece, is_whole_value=False)
                if isinstance(piece, ValueReference)
                else None
            )
            also += found.alias_origins if found else ()
            texts.append(format_embedded_scalar(found.value) if found else str(piece))
        text = "".join(texts)
        if len(text) > MAX_TEXT_LENGTH:
            raise UnresolvedReferenceError(
                Problem(
                    "limit",
                    f"the text grows beyond {MAX_TEXT_LENGTH:,} characters",
                    path,
                    node.origin,
                )
            )
        via = node.via if all(isinstance(piece, str) for piece in pieces) else "interpolation"
        return replace(node, value=text, alias_origins=(*node.alias_origins, *also), via=via)

    def look_up(self, reference: ValueReference, *, is_whole_value: bool) -> Node:
        """Return the value of a reference, with the origin of the reference."""
        if REFERENCE_START in reference.inner:
            raise reference_error(reference, "references do not nest")
        if reference.inner.startswith(ENVIRONMENT_PREFIX):
            text = self.get_variable(reference)
            value = (
                parse_environment_value(text)
                if is_whole_value and not self.is_text(reference.path)
                else text
            )
            return replace(reference.node, value=value, via="interpolation")
        target = self.resolve_target(reference, is_whole_value=is_whole_value)
        return replace(
            reference.node,
            value=target.value,
            alias_origins=(*reference.node.alias_origins, target.origin),
            via="interpolation",
        )

    def get_variable(self, reference: ValueReference) -> str:
        """Return the text of an environment variable, or the default given with its name."""
        name, comma, default = reference.inner.removeprefix(ENVIRONMENT_PREFIX).partition(",")
        if KEY.fullmatch(name) is None:
            meant = correct_reference(reference.inner)
            raise reference_error(
                reference,
                f"'{name}' is not the name of an environment variable"
                if name
                else "env: needs a name",
                hint=f"write {meant}" if meant else REFERENCE_HINT,
            )
        text = self.environment.get(name)
        if is_secret_variable(name, text or ""):
            rename = "; rename variables that are not secret" if is_secret_variable(name) else ""
            raise reference_error(
                reference,
                f"environment variable '{name}' looks like a secret, which this field would "
                "write into files",
                hint=f"only secret fields may use it{rename}",
            )
        if text is None and not comma:
            suggestion = find_closest(name, self.environment)
            hint = (
                f"did you mean '{suggestion}'?"
                if suggestion
                else f"set it, or give a default: ${{env:{name},default}}"
            )
            raise reference_error(
                reference,
                f"environment variable '{name}' is not set",
                hint=hint,
                suggestion=suggestion,
            )
        if text is not None and SURROGATE.search(text):
            raise reference_error(
                reference, f"environment variable '{name}' is not UTF-8 text", hint=None
            )
        return default.strip() if text is None else text

    def resolve_target(self, reference: ValueReference, *, is_whole_value: bool) -> Node:
        """Return the resolved scalar at the target of a reference."""
        path = parse_reference_path(reference)
        if self.is_secret(path):
            raise reference_error(
                reference,
                f"'{reference.inner}' is a secret, which references cannot read",
                hint="refer to another value",
            )
        node = self.find_written_node(path)
        if node is None:
            node = self.get_default_node(reference, path)
            self.check_default_has_text(reference, node, is_whole_value=is_whole_value)
        if isinstance(node.value, dict | list):
            kind = "a mapping" if isinstance(node.value, dict) else "a list"
            raise reference_error(
                reference,
                f"'{reference.inner}' is {kind}, but a reference must point to a single value",
                hint="refer to a value in it",
            )
        self.check_no_cycle(reference, path)
        self.reference_chain.append(reference)
        resolved = self.resolve_scalar(node, path)
        self.reference_chain.pop()
        if resolved is None:
            raise UnresolvedReferenceError
        return resolved

    def check_default_has_text(
        self, reference: ValueReference, node: Node, *, is_whole_value: bool
    ) -> None:
        """Raise an error for a reference within a text to a default that is decided later."""
        if not is_whole_value and node.value in (None, AUTO):
            shown = format_embedded_scalar(node.value)
            raise reference_error(
                reference,
                f"'{reference.inner}' has the default {shown}, which cannot be part of a text",
                hint=f"set {reference.inner} in the recipe, or write the text itself",
            )

    def find_written_node(self, path: DataPath) -> Node | None:
        """Return the node written at `path`, or a bare string for a component's name."""
        node = find_node(self.root, path)
        if node is None and path[-1] == "name":
            holder = find_node(self.root, path[:-1])
            return holder if holder is not None and isinstance(holder.value, str) else None
        return node

    def get_default_node(self, reference: ValueReference, path: DataPath) -> Node:
        """Return the default at `path`, which the recipe does not write."""
        try:
            if self.get_default is None:
                raise LookupError(path)
            value = self.get_default(path)
        except LookupError:
            raise self.build_unknown_path_error(reference, path) from None
        scalar = value is None or isinstance(value, bool | int | float | str)
        return Node(value if scalar else {}, reference.origin)  # type: ignore[arg-type]

    def build_unknown_path_error(
        self, reference: ValueReference, path: DataPath
    ) -> UnresolvedReferenceError:
        """Build the error of a reference to a missing path, with a suggestion."""
        known = [
            place
            for place, node in iter_nodes(self.root)
            if not isinstance(node.value, dict | list)
        ]
        suggestion = find_closest(reference.inner, {format_path(place) for place in known})
        same_key = {format_path(place) for place in known if place[-1] == path[-1]}
        if suggestion is None and len(same_key) == 1:
            suggestion = same_key.pop()
        meant = correct_reference(reference.inner)
        hint = f"write {meant}" if meant else REFERENCE_HINT
        if suggestion:
            hint = f"did you mean '{suggestion}'?"
        return reference_error(
            reference, f"the recipe has no '{reference.inner}'", hint=hint, suggestion=suggestion
        )

    def check_no_cycle(self, reference: ValueReference, path: DataPath) -> None:
        """Raise an error for a reference that leads back to itself, or for a too long chain."""
        chain = [*self.reference_chain, reference]
        start = next((index for index, member in enumerate(chain) if member.path == path), None)
        if start is not None:
            ring = chain[start:]
            names = " -> ".join(
                format_path(place) for place in [*(member.path for member in ring), path]
            )
            related = tuple(
                RelatedLocation(member.origin, f"refers to {member.inner}", member.path)
                for member in ring[:-1]
            )
            hint = "write one of these values literally"
            raise reference_error(
                reference,
                f"circular reference: {names}",
                code="cycle",
                hint=hint,
                related=related,
            )
        if len(chain) > MAX_REFERENCE_DEPTH:
            raise reference_error(
                reference,
                f"reference chain is longer than {MAX_REFERENCE_DEPTH}",
                code="limit",
                hint=None,
            )


def parse_environment_value(text: str) -> Scalar:
    """Parse text from the environment as a number, boolean or null, else return it unchanged."""
    word = text.strip()
    value = parse_scalar(word) if word else text
    return text if isinstance(value, str | ScalarRejection) else value
