"""Registry of rules: cross-section checks of a resolved recipe."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from titanrun.config import registry
from titanrun.config.checksum import get_checksum_state
from titanrun.config.conflict import find_value_origin, get_distance_from_user, order_locations
from titanrun.config.problems import DataPath, Problem
from titanrun.config.text_edits import build_word_fix
from titanrun.config.tree import Node, find_node, to_plain_data
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.schema_queries import SchemaQueries

RuleLevel = Literal["rules", "environment"]


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """Violation of a rule: a message and the paths involved, the one to change first in front.

    `applies_only_if_written` drops the violation unless the user wrote a value other than the
    default at the first path. `section` is one in which every value may matter: while one of them
    cannot be read, the violation is dropped. `replacement` is what certainly belongs in place of
    the text at the first path. Where null is written at `waived_by_null`, that is what the user
    wants, and the violation is dropped.
    """

    message: str
    paths: tuple[DataPath, ...]
    hint: str | None = None
    code: Literal[
        "conflict", "no-effect", "slow", "not-built", "data", "file", "usage", "unknown-name"
    ] = "conflict"
    severity: Literal["error", "warning"] = "error"
    shows_rule_id: bool = True
    applies_only_if_written: bool = False
    section: DataPath | None = None
    replacement: str | None = None
    waived_by_null: DataPath | None = None


RuleCheck = Callable[[Recipe], Iterator[RuleViolation]]
RankRuleCheck = Callable[[Recipe, int | None], Iterator[RuleViolation]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Registered check with its id and its level in `validate`.

    `documentation` is the docstring of the check: cause and fix.
    """

    id: str
    check: RankRuleCheck
    level: RuleLevel
    documentation: str
    module: str


EXTENDED = 2
"""Distance from the user of a value in an extended file."""
RULES: dict[str, Rule] = {}


def rule(rule_id: str, *, level: RuleLevel = "rules") -> Callable[[RuleCheck], RuleCheck]:
    """Register a function as the rule `rule_id`."""

    def register(check: RuleCheck) -> RuleCheck:
        add_rule(
            Rule(rule_id, lambda run, _: check(run), level, check.__doc__ or "", check.__module__)
        )
        return check

    return register


def rank_rule(rule_id: str) -> Callable[[RankRuleCheck], RankRuleCheck]:
    """Register a function as the rule `rule_id` that also takes the number of ranks.

    The number is None if it is unknown.
    """

    def register(check: RankRuleCheck) -> RankRuleCheck:
        add_rule(Rule(rule_id, check, "rules", check.__doc__ or "", check.__module__))
        return check

    return register


def add_rule(entry: Rule) -> None:
    """Add a rule to the registry.

    Raises:
        ValueError: If another rule has the same id.
    """
    if entry.id in RULES:
        raise ValueError(f"rule '{entry.id}' is registered twice")
    RULES[entry.id] = entry


def remove_rules(module: str) -> None:
    """Remove the rules of a module, which is loaded anew."""
    for entry in [entry for entry in RULES.values() if entry.module == module]:
        del RULES[entry.id]


def get_active_rules() -> list[Rule]:
    """Return all rules except those of plug-ins that are not in use."""
    active = (entry for entry in RULES.values() if not registry.is_hidden_module(entry.module))
    return sorted(active, key=lambda entry: entry.id)


def apply_rules(
    run: Recipe,
    tree: Node,
    level: RuleLevel,
    *,
    ranks: int | None = None,
    excluded_paths: Collection[DataPath] = (),
) -> list[Problem]:
    """Return the problems of all rules of one level.

    Each problem is shown at the location nearest to the user. Problems are dropped if one of their
    paths is at or below an excluded path, or is a list that contains an excluded path.
    """
    expected = SchemaQueries(to_plain_data(tree))
    violations = [
        (entry.id, violation)
        for entry in get_active_rules()
        if entry.level == level
        for violation in entry.check(run, ranks)
    ]
    violations = [
        case
        for case in violations
        if not is_repeated_warning(case[1], tree, level) and not is_waived(case[1], tree)
    ]
    violations = drop_repetitions(violations)
    unbuilt = {violation.paths[0] for _, violation in violations if violation.code == "not-built"}
    return [
        to_problem(rule_id, violation, tree)
        for rule_id, violation in violations
        if not (
            violation.applies_only_if_written
            and (
                not is_user_request(tree, violation.paths[0], expected)
                or is_inherited_and_switched_off(tree, violation.paths)
            )
        )
        and not (
            violation.code == "no-effect" and violation.paths[0] in unbuilt
        )  # the not-built problem is more specific
        and not any(
            depends_on(path, excluded, tree)
            for path in violation.paths
            for excluded in excluded_paths
        )
        and not (
            violation.section is not None
            and any(path[: len(violation.section)] == violation.section for path in excluded_paths)
        )
    ]


def drop_repetitions(
    violations: Iterable[tuple[str, RuleViolation]],
) -> list[tuple[str, RuleViolation]]:
    """Return the violations, each message about a place once.

    Several rules read the same file, and find that it cannot be read.
    """
    found: dict[tuple[object, ...], tuple[str, RuleViolation]] = {}
    for rule_id, violation in violations:
        key = (violation.code, violation.severity, violation.message, violation.paths)
        found.setdefault(key, (rule_id, violation))
    return list(found.values())


def is_repeated_warning(violation: RuleViolation, tree: Node, level: RuleLevel) -> bool:
    """Return whether a warning was already shown when a resolved recipe was written.

    That is so unless an override has a part in it. Warnings about files and machines are shown
    again, since these may have changed.
    """
    if violation.severity == "error" or level == "environment":
        return False
    origin = order_locations(tree, violation.paths).origin
    return origin is not None and get_checksum_state(origin.source.text) == "good"


def is_waived(violation: RuleViolation, tree: Node) -> bool:
    """Return whether null is written where that waives a violation."""
    if violation.waived_by_null is None:
        return False
    node = find_node(tree, violation.waived_by_null)
    return node is not None and node.value is None


def depends_on(path: DataPath, excluded: DataPath, tree: Node) -> bool:
    """Return whether a violation at `path` may disappear once `excluded` is fixed.

    True if `path` is `excluded` or below it, or is a list that contains `excluded`.
    """
    if path[: len(excluded)] == excluded:
        return True
    node = find_node(tree, path) if excluded[: len(path)] == path else None
    return node is not None and isinstance(node.value, list)


def is_user_request(tree: Node, path: DataPath, expected: SchemaQueries) -> bool:
    """Return whether a user asked for the value at `path`.

    That is a written value other than the default which does not come from a resolved recipe.
    """
    node = find_node(tree, path)
    if node is None or get_checksum_state(node.origin.source.text) == "good":
        return False
    try:
        return bool(to_plain_data(node) != expected.get_default(path))
    except LookupError:
        return True


def is_inherited_and_switched_off(tree: Node, paths: tuple[DataPath, ...]) -> bool:
    """Return whether a setting comes from an extended file, and a false switch from the user.

    That recipe can only switch off what the other one sets, not remove it.
    """
    distance = get_distance_from_user(find_value_origin(tree, paths[0]))
    return distance == EXTENDED and any(
        (node := find_node(tree, path)) is not None
        and node.value is False
        and get_distance_from_user(node.origin) < distance
        for path in paths[1:]
    )


def to_problem(rule_id: str, violation: RuleViolation, tree: Node) -> Problem:
    """Convert a violation to a problem with origins.

    The value that the user wrote last is the location of the problem, the other places are related.
    """
    location = order_locations(tree, violation.paths)
    meant = violation.replacement if location.path == violation.paths[0] else None
    node = find_node(tree, location.path)
    written = node.value if node is not None else None
    return Problem(
        violation.code,
        violation.message,
        location.path,
        location.origin,
        severity=violation.severity,
        hint=violation.hint,
        rule=rule_id if violation.shows_rule_id else None,
        related=location.related,
        suggestion=meant,
        fix=build_word_fix(location.origin, written, meant)
        if meant is not None and isinstance(written, str)
        else None,
    )
