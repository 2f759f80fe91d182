"""Check the floors of the modules.

A module imports its own floor or lower, and the description wing never imports torch.

Usage: python tools/check_floors.py titanrun

Silent when the floors hold, one line per fault otherwise.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# the first prefix that fits decides; a config.py beside an implementation is description
FLOORS = [
    ("titanrun.config", "D0"),
    ("titanrun.recipe", "D2"),
    ("titanrun.cli", "D3"),
    ("titanrun.launch", "D3"),
    ("titanrun.lsp", "D3"),
    ("titanrun.runs", "D3"),
    ("titanrun.sweep", "D3"),
    ("titanrun.ui", "D3"),
    ("titanrun.__main__", "D3"),
    ("titanrun.api", "D3"),
    ("titanrun.distributed", "E1"),
    ("titanrun.models", "E2"),
    ("titanrun.components", "E2"),
    ("titanrun.training", "E3"),
    ("titanrun.rl", "E3"),
    ("titanrun.worker", "E4"),
    ("titanrun.integrations", "E4"),
]
MAY_IMPORT = {
    "D0": {"D0"},
    "D1": {"D0", "D1"},
    "D2": {"D0", "D1", "D2"},
    "D3": {"D0", "D1", "D2", "D3"},
    "E1": {"D0", "D1", "E1"},
    "E2": {"D0", "D1", "E1", "E2"},
    "E3": {"D0", "D1", "E1", "E2", "E3"},
    "E4": {"D0", "D1", "D2", "E1", "E2", "E3", "E4"},
}
HEAVY = {
    "torch",
    "torchao",
    "datasets",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "rich",
    "tensorboard",
    "wandb",
    "mlflow",
}
# where a function may import: the registry finds components by name, the command line loads one
# command
FUNCTION_IMPORTS_ALLOWED = ("titanrun.config.registry", "titanrun.cli")
# the public API: the only package file with content, whose imports are lazy
PUBLIC_API = "titanrun"
# plug-in files run in both wings, with the user's consent, whose place the environment names
ENVIRONMENT_READERS = {
    "titanrun.launch.launch_env",
    "titanrun.distributed.rank_env",
    "titanrun.recipe.plugin_files",
    # a saved recipe is read in both wings, and its paths may have moved
    "titanrun.recipe.moved_paths",
}
# the rim of each wing; stores, whose libraries share no exception;
# trackers, which are foreign code that must not stop a run; a library that raises nothing narrower;
# ranks that
# would wait for ever for one that failed; the Hub's library, whose HTTP client changes
MAY_CATCH_ALL = {
    "titanrun.components.data.lane_process",
    # foreign code
    "titanrun.recipe.plugins",
    "titanrun.worker.command_ranks",
    "titanrun.worker.rank_main",
    "titanrun.integrations.vllm.vllm_server",
    "titanrun.components.data.hub_records",
    "titanrun.cli.hub_datasets",
    "titanrun.cli.download",
    "titanrun.cli.push",
    "titanrun.cli.error_boundary",
    "titanrun.components.checkpoints.spec.storage_path",
    "titanrun.components.metrics.async_tracker",
    "titanrun.components.metrics.metric_logger",
    "titanrun.components.tokenizers.huggingface",
    "titanrun.distributed.object_collectives",
}


@dataclass(frozen=True)
class Import:
    """One import statement: what it names, where, and whether a function does it."""

    target: str
    line: int
    in_function: bool


def floor_of(module: str) -> str | None:
    """Return the floor of a module of titanrun."""
    *outer, last = module.split(".")
    floor = next(
        (floor for prefix, floor in FLOORS if module == prefix or module.startswith(prefix + ".")),
        None,
    )
    beside = floor is not None and floor.startswith("E")
    if len(outer) > 1 and (
        last == "config" or (beside and (last.endswith("_config") or "spec" in outer))
    ):
        return "D1"
    return floor


def imports(tree: ast.AST, in_function: bool = False) -> Iterator[Import]:
    """Every import of a module; what only a type checker sees is left out."""
    for node in ast.iter_child_nodes(tree):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            continue
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, in_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (
                Import(f"{node.module}.{alias.name}", node.lineno, in_function)
                for alias in node.names
            )
        inner = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports(node, inner)


def module_of(target: str, modules: set[str]) -> str:
    """Return the module behind an imported name."""
    return target if target in modules else target.rpartition(".")[0]


def import_faults(module: str, tree: ast.AST, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Find imports that climb, cross or hide in a function.

    Also those that bring weight into the description wing.
    """
    floor = floor_of(module)
    for found in imports(tree):
        root = found.target.partition(".")[0]
        if (
            found.in_function
            and module != PUBLIC_API
            and not module.startswith(FUNCTION_IMPORTS_ALLOWED)
        ):
            yield found.line, f"imports {found.target} inside a function"
        if floor is None:
            continue
        if floor.startswith("D") and root in HEAVY:
            yield found.line, f"is on floor {floor} and imports {root}"
        if root != "titanrun":
            continue
        target = module_of(found.target, modules)
        other = floor_of(target)
        if other is not None and other not in MAY_IMPORT[floor]:
            yield found.line, f"is on floor {floor} and imports {target} on floor {other}"
        if other == "E2" and floor == "E2" and target.split(".")[1] != module.split(".")[1]:
            yield (
                found.line,
                f"imports {target}: models and components meet in worker/build/build_trainer.py "
                f"and training/ only",
            )


def shape_faults(module: str, path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find files, functions and constructors over their caps.

    Also filled package files and folders without a stated purpose.
    """
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if path.name == "__init__.py" and lines and module != PUBLIC_API:
        yield 1, "a package file stays empty"
    if path.stem in ("utils", "util", "helpers", "helper", "common", "misc"):
        yield 1, "a drawer without an idea"
    if lines > 400:
        yield 1, f"has {lines} lines, more than 400"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            cap = 25 if node.name == "__init__" else 50
            if length > cap:
                yield node.lineno, f"{node.name} has {length} lines, more than {cap}"
        if isinstance(node, ast.ExceptHandler) and is_broad(node) and module not in MAY_CATCH_ALL:
            yield node.lineno, "catches everything"
        environ = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
        if environ and module not in ENVIRONMENT_READERS:
            yield node.lineno, "reads the environment"


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches all exceptions."""
    return handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )


def main() -> int:
    """0 when every floor holds."""
    package = Path(sys.argv[1] if len(sys.argv) > 1 else "titanrun")
    paths = sorted(package.rglob("*.py"))
    named = {
        path: ".".join(path.with_suffix("").relative_to(package.parent).parts).removesuffix(
            ".__init__"
        )
        for path in paths
    }
    modules = set(named.values())
    faults = 0
    for path, module in named.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, fault in sorted(
            {*import_faults(module, tree, modules), *shape_faults(module, path, tree)}
        ):
            print(f"{path}:{line}: {fault}")
            faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
