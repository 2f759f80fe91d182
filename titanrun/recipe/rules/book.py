"""The rule book: one function per cross-section check, run on a resolved recipe."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from titanrun.config import registry
from titanrun.config.conflict import place_together
from titanrun.config.problems import DataPath, Problem
from titanrun.config.signature import check_signature
from titanrun.config.tree import Node, find, plain
from titanrun.recipe.expected import Expected
from titanrun.recipe.recipe import Recipe

Level = Literal["rules", "environment"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found: a sentence and the paths involved, the one to change first in front.

    `if_written` drops the finding unless the user wrote the first path, and something else than its default. `section` is one of which
    every value may matter to it: while one of them cannot be read, nothing is said.
    """

    message: str
    paths: tuple[DataPath, ...]
    help: str | None = None
    code: Literal["conflict", "no-effect", "not-built", "data", "file", "usage", "unknown-name"] = (
        "conflict"
    )
    severity: Literal["error", "warning"] = "error"
    named: bool = True
    if_written: bool = False
    section: DataPath | None = None


Check = Callable[[Recipe], Iterator[Finding]]
RankCheck = Callable[[Recipe, int | None], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A check with its id, the level of `validate` it belongs to, and its docstring as documentation: cause and fix."""

    id: str
    check: RankCheck
    level: Level
    documentation: str
    module: str


RULES: dict[str, Rule] = {}


def rule(id: str, *, level: Level = "rules") -> Callable[[Check], Check]:
    """Register a function as the rule `id`."""

    def register(check: Check) -> Check:
        add_rule(Rule(id, lambda run, _: check(run), level, check.__doc__ or "", check.__module__))
        return check

    return register


def rank_rule(id: str) -> Callable[[RankCheck], RankCheck]:
    """Register a function as the rule `id` that also takes the number of ranks, None where nobody said it."""

    def register(check: RankCheck) -> RankCheck:
        add_rule(Rule(id, check, "rules", check.__doc__ or "", check.__module__))
        return check

    return register


def add_rule(entry: Rule) -> None:
    """Put a rule into the book."""
    if entry.id in RULES:
        raise ValueError(f"two rules are called {entry.id}")
    RULES[entry.id] = entry


def rules_in_use() -> list[Rule]:
    """All rules but those of plug-ins that are not in use."""
    return [entry for entry in RULES.values() if not registry.is_hidden_module(entry.module)]


def apply_rules(
    run: Recipe,
    tree: Node,
    level: Level,
    *,
    ranks: int | None = None,
    beside: Collection[DataPath] = (),
) -> list[Problem]:
    """The problems of all rules of one level, each shown at the place nearest the user; none that involves what is at or below a path
    of `beside`, or a list with such a path in it."""
    expected = Expected(plain(tree))
    findings = [
        (entry.id, finding)
        for entry in rules_in_use()
        if entry.level == level
        for finding in entry.check(run, ranks)
    ]
    unbuilt = {finding.paths[0] for _, finding in findings if finding.code == "not-built"}
    return [
        to_problem(id, finding, tree)
        for id, finding in findings
        if not (finding.if_written and not is_wish(tree, finding.paths[0], expected))
        and not (
            finding.code == "no-effect" and finding.paths[0] in unbuilt
        )  # that it is not built says more
        and not any(hangs_on(path, gone, tree) for path in finding.paths for gone in beside)
        and not (
            finding.section is not None
            and any(gone[: len(finding.section)] == finding.section for gone in beside)
        )
    ]


def hangs_on(path: DataPath, gone: DataPath, tree: Node) -> bool:
    """Whether what is said of `path` may be otherwise once `gone` is mended: it is there or below, or an entry of the list `path`."""
    if path[: len(gone)] == gone:
        return True
    node = find(tree, path) if gone[: len(path)] == path else None
    return node is not None and isinstance(node.value, list)


def is_wish(tree: Node, path: DataPath, expected: Expected) -> bool:
    """Whether a person asked for the value at `path`: it is written, is not the default, and no resolved recipe brought it along."""
    node = find(tree, path)
    if node is None or check_signature(node.origin.source.text) == "good":
        return False
    try:
        return bool(plain(node) != expected.default_of(path))
    except LookupError:
        return True


def to_problem(id: str, finding: Finding, tree: Node) -> Problem:
    """A finding with origins: what the user wrote last is shown, the other places are related."""
    place = place_together(tree, finding.paths)
    return Problem(
        finding.code,
        finding.message,
        place.path,
        place.origin,
        severity=finding.severity,
        help=finding.help,
        rule=id if finding.named else None,
        related=place.related,
    )
