"""What is installed: every package by name, and the code of titanrun and of the plug-ins that a run uses."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from titanrun.config.base import ComponentConfig, nested
from titanrun.recipe.plugins import plugins_installed
from titanrun.recipe.recipe import Recipe

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PACKAGE = Path(__file__).parents[1]
# code, flavors, the tiny corpus and its tokenizer; the recipes and schemas that a wheel carries train nothing by themselves
RUNS = {".py", ".yaml", ".json", ".jsonl", ".npy", ".jinja", ".tar"}
SHIPPED = "shipped"
# what a package's folder of metadata is called
METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist|egg)-info")


def packages() -> dict[str, str]:
    """Every installed package with its version. The names of folders say it: reading each one's metadata takes a tenth of a second."""
    found: dict[str, str] = {}
    for folder in reversed([Path(entry) for entry in sys.path if Path(entry).is_dir()]):
        for match in filter(None, (METADATA.fullmatch(entry.name) for entry in folder.iterdir())):
            found[match["name"].replace("_", "-").lower()] = match["version"]
    return dict(sorted(found.items()))


def is_installed(package: str) -> bool:
    """Whether a package can be imported. A folder of its name without code, such as the files that wandb leaves, is none."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def code_digest() -> str:
    """Of titanrun's own modules, flavors and data: in a clone the version alone does not say what runs."""
    found = xxhash.xxh3_128()
    for file in sorted(
        path for path in PACKAGE.rglob("*") if path.suffix in RUNS and SHIPPED not in path.parts
    ):
        found.update(file.relative_to(PACKAGE).as_posix().encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def plugins(run: Recipe) -> list[dict[str, Any]]:
    """The plug-ins that a recipe lists: package, version, and a digest of each of their modules by its path."""
    known = plugins_installed() if run.plugins else {}
    return [plugin(name, known[name], run) for name in run.plugins if name in known]


def plugin(name: str, point: "EntryPoint", run: Recipe) -> dict[str, Any]:
    """One plug-in."""
    package, version = (None, None) if point.dist is None else (point.dist.name, point.dist.version)
    files = {
        label: xxhash.xxh3_128_hexdigest(path.read_bytes())
        for label, path in module_files(top_modules(point.module, run))
    }
    return {"name": name, "package": package, "version": version, "files": files}


def top_modules(module: str, run: Recipe) -> list[str]:
    """The plug-in's own top-level module, and those that its components in this run are built by."""
    own = module.partition(".")[0]
    configs = [
        config for _, config in nested(run) if type(config).__module__.partition(".")[0] == own
    ]
    built = [
        config.builds.partition(".")[0].partition(":")[0]
        for config in configs
        if isinstance(config, ComponentConfig)
    ]
    return sorted({own, *built} - {PACKAGE.name})


def module_files(names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """The files of packages and modules, with their paths from where the package lies."""
    for name in names:
        spec = find_spec(name)
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        for folder in map(Path, folders):
            yield from (
                (path.relative_to(folder.parent).as_posix(), path)
                for path in sorted(folder.rglob("*.py"))
            )
        if spec is not None and spec.origin is not None and not folders:
            yield Path(spec.origin).name, Path(spec.origin)
