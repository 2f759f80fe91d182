"""Installed packages, and code hashes of titanrun and of the plug-ins of a run."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from titanrun.config.base import ComponentConfig, iter_nested_configs
from titanrun.recipe.plugin_files import is_plugin_file
from titanrun.recipe.plugins import get_installed_plugins, get_plugin_places
from titanrun.recipe.recipe import Recipe

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PACKAGE = Path(__file__).parents[2]
# code, flavors, the tiny corpus and its tokenizer;
# the recipes and schemas in a wheel do not affect training by themselves
HASHED_SUFFIXES = {".py", ".yaml", ".json", ".jsonl", ".npy", ".jinja", ".tar"}
SHIPPED = "shipped"
# name of a package's metadata folder
METADATA_FOLDER_PATTERN = re.compile(
    r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist|egg)-info"
)


def get_installed_packages() -> dict[str, str]:
    """Return every installed package with its version.

    It parses folder names: reading each package's metadata takes a tenth of a second.
    """
    found: dict[str, str] = {}
    for folder in reversed([Path(entry) for entry in sys.path if Path(entry).is_dir()]):
        for match in filter(
            None, (METADATA_FOLDER_PATTERN.fullmatch(entry.name) for entry in folder.iterdir())
        ):
            found[match["name"].replace("_", "-").lower()] = match["version"]
    return dict(sorted(found.items()))


def is_installed(package: str) -> bool:
    """Return whether a package can be imported.

    A folder of its name without code, such as the files that wandb leaves, does not count.
    """
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def hash_package_code() -> str:
    """Hash titanrun's own modules, flavors and data.

    In a clone the version alone does not identify the code that runs.
    """
    found = xxhash.xxh3_128()
    for file in sorted(
        path
        for path in PACKAGE.rglob("*")
        if path.suffix in HASHED_SUFFIXES and SHIPPED not in path.parts
    ):
        found.update(file.relative_to(PACKAGE).as_posix().encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def describe_plugins(run: Recipe) -> list[dict[str, Any]]:
    """Return package, version and a digest per module path of the plug-ins a recipe lists."""
    packages = [name for name in run.plugins if not is_plugin_file(name)]
    known = get_installed_plugins() if packages else {}
    places = get_plugin_places()
    found = []
    for name in run.plugins:
        if name in known:
            found.append(describe_plugin(name, known[name], run))
        elif name in places:
            found += [describe_plugin_file(name, path) for path in places[name]]
    return found


def describe_plugin_file(name: str, path: Path) -> dict[str, Any]:
    """Return the digest of a plug-in file."""
    digest = xxhash.xxh3_128_hexdigest(path.read_bytes())
    return {"name": name, "package": None, "version": None, "files": {path.name: digest}}


def describe_plugin(name: str, point: "EntryPoint", run: Recipe) -> dict[str, Any]:
    """Return package, version and module digests of one plug-in."""
    package, version = (None, None) if point.dist is None else (point.dist.name, point.dist.version)
    files = {
        label: xxhash.xxh3_128_hexdigest(path.read_bytes())
        for label, path in iter_module_files(get_top_level_modules(point.module, run))
    }
    return {"name": name, "package": package, "version": version, "files": files}


def get_top_level_modules(module: str, run: Recipe) -> list[str]:
    """Return the top-level modules of the plug-in and of what builds its components."""
    own = module.partition(".")[0]
    configs = [
        config
        for _, config in iter_nested_configs(run)
        if type(config).__module__.partition(".")[0] == own
    ]
    built = [
        config.builds.partition(".")[0].partition(":")[0]
        for config in configs
        if isinstance(config, ComponentConfig)
    ]
    return sorted({own, *built} - {PACKAGE.name})


def iter_module_files(names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of packages and modules, with paths relative to their parent folder."""
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
