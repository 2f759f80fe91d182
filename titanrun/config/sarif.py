"""Problems as a SARIF 2.1.0 log, the format of code scanning."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path
from urllib.parse import quote

from titanrun.config.problems import Fix, Origin, Problem
from titanrun.config.version import VERSION

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT_ID = "SRCROOT"
JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class DocumentationSite:
    """Address of the documentation, and of the place in it that explains a problem."""

    address: str
    find_address: Callable[[Problem], str]


def build_sarif_log(
    problems: Sequence[Problem], folder: Path, site: DocumentationSite | None = None
) -> JsonObject:
    """Convert all problems to one log. Files below `folder` get paths relative to it.

    The addresses in `site` are those that viewers of the log link to.
    """
    lines: Counter[str] = Counter()
    information = {} if site is None else {"informationUri": site.address}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "titanrun",
                        "version": VERSION,
                        **information,
                        "rules": build_rules(problems, site),
                    }
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {ROOT_ID: {"uri": f"{folder.as_uri().rstrip('/')}/"}},
                "results": [build_result(problem, folder, lines) for problem in problems],
            }
        ],
    }


def build_rules(problems: Iterable[Problem], site: DocumentationSite | None) -> list[JsonObject]:
    """Describe every rule and problem code that the results name, once."""
    first = {problem.label: problem for problem in reversed(list(problems))}
    return [
        {
            "id": label,
            "shortDescription": {"text": label.rpartition("/")[2].replace("-", " ")},
            "help": {"text": f"titanrun explain {label}"},
            **({} if site is None else {"helpUri": site.find_address(problem)}),
            "defaultConfiguration": {"level": problem.severity},
        }
        for label, problem in sorted(first.items())
    ]


def build_result(problem: Problem, folder: Path, lines: Counter[str]) -> JsonObject:
    """Convert one problem.

    `lines` counts the results of each rule on lines with the same text, which a fingerprint of the
    text alone could not tell apart.
    """
    text = problem.message + (f"; {problem.hint}" if problem.hint else "")
    result: JsonObject = {
        "ruleId": problem.label,
        "level": problem.severity,
        "message": {"text": text},
    }
    origin = problem.origin
    if origin is None:
        return result
    if origin.source.kind == "override":
        result["locations"] = [{"logicalLocations": [{"fullyQualifiedName": origin.source.name}]}]
        return result
    result["locations"] = [{"physicalLocation": build_location(origin, folder)}]
    shown = origin.source.get_redacted_line(origin.line)
    line = hashlib.sha256(
        "\n".join([problem.label, origin.source.name, shown]).encode()
    ).hexdigest()[:16]
    lines[line] += 1
    result["partialFingerprints"] = {"primaryLocationLineHash": f"{line}:{lines[line]}"}
    if problem.fix is not None:
        result["fixes"] = [build_fix(problem.fix, folder)]
    return result


def build_fix(fix: Fix, folder: Path) -> JsonObject:
    """Convert a correction."""
    place = build_location(fix.origin, folder)
    replacement = {
        "deletedRegion": place["region"],
        "insertedContent": {"text": fix.replacement},
    }
    change = {"artifactLocation": place["artifactLocation"], "replacements": [replacement]}
    return {"artifactChanges": [change]}


def build_location(origin: Origin, folder: Path) -> JsonObject:
    """Convert an origin in a file."""
    region = {
        "startLine": origin.line,
        "startColumn": origin.column,
        "endColumn": origin.end_column,
    }
    return {
        "artifactLocation": build_artifact_location(origin.source.name, folder),
        "region": region,
    }


def build_artifact_location(name: str, folder: Path) -> JsonObject:
    """Return the URI of a file, relative to `folder` if it lies in it.

    GitHub drops results in files outside the repository.
    """
    path = Path(normpath(folder / name))
    if path.is_relative_to(folder):
        return {"uri": quote(path.relative_to(folder).as_posix()), "uriBaseId": ROOT_ID}
    return {"uri": path.as_uri()}
