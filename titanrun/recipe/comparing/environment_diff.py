"""Differences between the recorded starts of a run and the current environment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.recipe.rundir.input_hashes import hash_input

Data = Mapping[str, Any]
NOT_INSTALLED = "not installed"
MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class CurrentEnvironment:
    """This machine and working directory, in the form recorded in run.json."""

    environment: Data
    machine: Data


def diff_starts(starts: Sequence[Data], here: CurrentEnvironment) -> list[str]:
    """Return the differences of all starts, one line each, without duplicates.

    A line that does not apply to every start names the starts that it applies to.
    """
    by_line: dict[str, list[str]] = {}
    for number, start in enumerate(starts, start=1):
        for line in [*iter_recipe_changes(start, number), *diff_start(start, here)]:
            by_line.setdefault(line, []).append(str(number))
    if not starts:
        return ["run.json not found: the environment of the run is unknown"]
    everywhere = len(starts)
    return [
        line if len(at) == everywhere else f"{line} (start {', '.join(at)} of {everywhere})"
        for line, at in by_line.items()
    ]


def iter_recipe_changes(start: Data, number: int) -> Iterator[str]:
    """Yield the recipe changes of a resumed start.

    A rerun uses the last recipe for the whole run.
    """
    if number > 1:
        yield from (f"recipe changed: {change}" for change in start.get("changes", ()))


def diff_start(start: Data, here: CurrentEnvironment) -> Iterator[str]:
    """Yield the differences of one start."""
    cwd = start.get("cwd")
    if cwd is not None and not Path(cwd).is_dir():
        yield f"working directory {cwd} not found: relative paths start at {Path.cwd()}"
    yield from diff_inputs(start.get("inputs", ()))
    there = start.get("environment")
    if there is None:
        yield "environment is not recorded"
    else:
        yield from diff_environment(there, here.environment)
    if "machine" in start:
        yield from (
            f"{key.replace('_', ' ')} {format_optional_value(a)} -> {format_optional_value(b)}"
            for key, a, b in iter_differing_items(start["machine"], here.machine)
        )


def diff_environment(there: Data, here: Data) -> Iterator[str]:
    """Yield differences in Python, machine, packages, plug-ins and working directory."""
    for key in ("python", "platform", "host"):
        if there[key] != here[key]:
            yield f"{key} {there[key]} -> {here[key]}"
    if there["code"] != here["code"]:
        yield "titanrun has different code"
    yield from (
        f"package {name} {a or NOT_INSTALLED} -> {b or NOT_INSTALLED}"
        for name, a, b in iter_differing_items(there["packages"], here["packages"])
    )
    plugins = {plugin["name"]: plugin for plugin in here["plugins"]}
    for plugin in there["plugins"]:
        yield from diff_plugin(plugin, plugins.get(plugin["name"]))
    yield from diff_git(there["git"], here["git"])


def diff_plugin(there: Data, here: Data | None) -> Iterator[str]:
    """Yield differences in version and code of a plug-in."""
    name = f"plug-in {there['name']}"
    if here is None:
        yield f"{name} is not installed"
        return
    if there["version"] != here["version"]:
        yield (
            f"{name} {format_optional_value(there['version'])} -> "
            f"{format_optional_value(here['version'])}"
        )
    differing = [file for file, _, _ in iter_differing_items(there["files"], here["files"])]
    if differing:
        yield f"{name} has different code: {format_first_names(differing)}"


def diff_git(there: Data | None, here: Data | None) -> Iterator[str]:
    """Yield differences in commit and uncommitted changes."""
    if there is None or here is None:
        if (there is None) != (here is None):
            yield (
                f"the working directory {'was not' if there is None else 'was'} in a git repository"
            )
        return
    if there["commit"] != here["commit"]:
        yield f"git commit {there['commit'][:12]} -> {here['commit'][:12]}"
    if there["dirty"] is None or here["dirty"] is None:
        yield "uncommitted changes are unknown: git failed"
    elif there["diff"] != here["diff"]:
        yield (
            f"uncommitted changes: {there['diff'] or 'none'} -> "
            f"{'different' if here['diff'] else 'none'}"
        )


def diff_inputs(inputs: Sequence[Data]) -> Iterator[str]:
    """Yield data, tokenizer and weight files that are missing or have different content."""
    for then in inputs:
        now = hash_input(then["path"], Path(then["absolute"]))
        if then.get("xxh3_128") == now.get("xxh3_128"):
            if then.get("sampled") and then["modified"] != now["modified"]:
                yield f"{then['path']} was modified since, but its sampled bytes are unchanged"
        elif "xxh3_128" not in now:
            yield f"{then['path']} not found"
        elif "xxh3_128" not in then:
            yield f"{then['path']} did not exist"
        else:
            differing = [
                file
                for file, _, _ in iter_differing_items(then.get("each", {}), now.get("each", {}))
            ]
            which = f" ({format_first_names(differing)})" if differing else ""
            yield (
                f"{then['path']} has different content{which}: {then['bytes']:,} -> "
                f"{now['bytes']:,} bytes"
            )


def iter_differing_items(then: Data, now: Data) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys with different values in two mappings, with both values.

    A value is None if a mapping lacks the key.
    """
    for key in [*then, *(key for key in now if key not in then)]:
        if then.get(key) != now.get(key):
            yield key, then.get(key), now.get(key)


def format_optional_value(value: object) -> str:
    """Format a value, `none` for None."""
    return "none" if value is None else str(value)


def format_first_names(names: Sequence[str]) -> str:
    """Format the first names and the number of further names."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
