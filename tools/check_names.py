"""Check the names of modules, functions and classes.

Usage: check_names.py titanrun

Print one line per fault, then the counts. Exit with 1 if there are faults.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
# functions are verbs: these are results, not actions
PARTICIPLES = """
    accepted added agreed allowed answered applied asked assembled averaged awaited begun bounded
    broken built called changed checked chosen claimed closed coded collected compared composed
    computed continued converted copied counted covered cut damaged dealt decided declared
    delivered dequantized derived described divided done dragged drawn dropped ended entered
    examined expanded expected explained failed filled finished flattened folded followed forced
    forgotten found gathered given gone grouped guarded heard held hidden imported interpolated
    joined judged kept known lacking laid learned left listed loaded looked lost made mapped marked
    matched measured merged met missed moved needed noted numbered offered opened ordered owed
    packed paired parsed paused placed planned printed proven quoted raised reached reading
    recorded refused removed renamed repeated replaced reported resolved restored resumed returned
    revealed saved scaled scored seen selected sent shaped shared shown shuffled skipped sorted
    spoken started stopped stored summed taken talking thrown tied told took
    trained tried turned unpacked unwrapped used validated weighed wrapped written
"""
# names that other libraries use
KEPT_FUNCTIONS = frozenset({"masked_sum"})
PROPERTY_DECORATORS = frozenset({"property", "cached_property", "functools.cached_property"})
RULE_DECORATORS = frozenset({"rule", "rank_rule"})
OF = re.compile(r"^_*of(_|$)|_of(_|$)")
OUT_OF = re.compile(r"out_of_(memory|range|bounds|order|place)")
# names used before the vocabulary of docs/vocabulary.md
OLD_WORDS = """
    begun beside claim claims company correspondence doubt drift evidence fewbits further
    happenings heard hush ingredients ledger likeliest liveness meeting meetings menu nucleus
    patience patient picture pictures rollouter rubric saying sheet spoken stopwatch supplies
    surroundings talk theirs together told verdict voice watched worth
"""
REPEATED_FILES = frozenset(
    {"__init__.py", "__main__.py", "config.py", "huggingface.py", "model.py", "parallelize.py"}
)
REPEATED_FOLDERS = ("rules", "cli", "commands")
REPEATED_FUNCTIONS = frozenset(
    {
        "build_tensor_plan",
        "convert",
        "from_huggingface",
        "main",
        "run",
        # of each actor system
        "spawn",
        "to_huggingface",
        "to_huggingface_config",
    }
)
# the public API has the names of what it calls
PUBLIC_API = "api.py"


@dataclass(frozen=True)
class Fault:
    """Name that breaks a rule."""

    path: Path
    line: int
    kind: str
    message: str


def iter_definitions(tree: ast.AST) -> Iterator[Function | ast.ClassDef]:
    """Yield all functions and classes of a module."""
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            yield node


def get_decorator_names(node: Function) -> set[str]:
    """Return the dotted names of the decorators, without their arguments."""
    return {
        ast.unparse(item.func if isinstance(item, ast.Call) else item)
        for item in node.decorator_list
    }


def split_words(name: str) -> list[str]:
    """Split a snake or camel case name into lower case words."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def find_function_faults(path: Path, node: Function) -> Iterator[Fault]:
    """Find faults in the name of a function."""
    decorators = get_decorator_names(node)
    words = split_words(node.name)
    is_action = not decorators & (PROPERTY_DECORATORS | RULE_DECORATORS)
    if is_action and words and words[0] in PARTICIPLES.split() and node.name not in KEPT_FUNCTIONS:
        yield Fault(path, node.lineno, "participle", f"{node.name} begins with a participle")
    if is_action and OF.search(OUT_OF.sub("", node.name)):
        yield Fault(path, node.lineno, "of", f"{node.name}: use get_x(y) or a verb for x_of(y)")


def find_word_faults(path: Path, tree: ast.AST) -> Iterator[Fault]:
    """Find old words in the names of the module and its definitions."""
    names = [(1, path.stem)]
    names += [
        (node.lineno, node.name)
        for node in iter_definitions(tree)
        if isinstance(node, ast.ClassDef) or not get_decorator_names(node) & RULE_DECORATORS
    ]
    for line, name in names:
        for word in sorted(set(OLD_WORDS.split()) & set(split_words(name))):
            message = f"{name} has the old word '{word}' (see docs/vocabulary.md)"
            yield Fault(path, line, "old word", message)


def find_repeated_modules(paths: list[Path]) -> Iterator[Fault]:
    """Find modules with equal file names, except where equal names are the point."""
    by_name: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        if path.name not in REPEATED_FILES and path.parent.name not in REPEATED_FOLDERS:
            by_name[path.name].append(path)
    for same in by_name.values():
        for path in same[1:]:
            yield Fault(path, 1, "module", f"has the file name of {same[0]}")


def find_repeated_functions(trees: dict[Path, ast.Module]) -> Iterator[Fault]:
    """Find top-level functions that several modules define."""
    first: dict[str, Path] = {}
    for path, tree in trees.items():
        if path.name == PUBLIC_API or path.name == "__init__.py":
            continue
        for node in tree.body:
            if not isinstance(node, Function) or node.name in REPEATED_FUNCTIONS:
                continue
            other = first.setdefault(node.name, path)
            if other != path:
                message = f"{node.name} is defined in {other} too"
                yield Fault(path, node.lineno, "function", message)


def find_faults(package: Path) -> tuple[list[Fault], dict[str, int]]:
    """Find all faults of a package, and count what was checked."""
    trees = {path: ast.parse(path.read_bytes()) for path in sorted(package.rglob("*.py"))}
    faults = [*find_repeated_modules(list(trees)), *find_repeated_functions(trees)]
    counts = {"modules": len(trees), "functions": 0, "classes": 0}
    for path, tree in trees.items():
        faults += find_word_faults(path, tree)
        for node in iter_definitions(tree):
            is_class = isinstance(node, ast.ClassDef)
            counts["classes" if is_class else "functions"] += 1
            if not isinstance(node, ast.ClassDef):
                faults += find_function_faults(path, node)
    return sorted(faults, key=lambda fault: (str(fault.path), fault.line)), counts


def main() -> int:
    """Print the faults and counts. Return 1 if there are faults."""
    faults, counts = find_faults(Path(sys.argv[1] if len(sys.argv) > 1 else "titanrun"))
    for fault in faults:
        print(f"{fault.path}:{fault.line}: {fault.message}")
    for kind in ("participle", "of", "module", "function", "old word"):
        counts[f"faults ({kind})"] = sum(fault.kind == kind for fault in faults)
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
