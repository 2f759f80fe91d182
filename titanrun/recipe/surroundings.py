"""What differs between the starts that run.json records and a start that would be made here and now, one line a difference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.recipe.fingerprints import fingerprint

Data = Mapping[str, Any]
NOT_INSTALLED = "not installed"
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Here:
    """This machine and this working directory, as run.json would record them."""

    environment: Data
    machine: Data


def differences(starts: Sequence[Data], here: Here) -> list[str]:
    """The lines of all starts, each once; a line that is not true of every start says of which."""
    by_line: dict[str, list[str]] = {}
    for number, start in enumerate(starts, start=1):
        for line in [*changed_since(start, number), *of_start(start, here)]:
            by_line.setdefault(line, []).append(str(number))
    if not starts:
        return ["run.json is missing: nothing is known about where the run was made"]
    everywhere = len(starts)
    return [
        line if len(at) == everywhere else f"{line} (start {', '.join(at)} of {everywhere})"
        for line, at in by_line.items()
    ]


def changed_since(start: Data, number: int) -> Iterator[str]:
    """What the recipe that a resume went on with changed: the whole run is made with the last one."""
    if number > 1:
        yield from (f"the recipe was changed: {change}" for change in start.get("changes", ()))


def of_start(start: Data, here: Here) -> Iterator[str]:
    """What one start had otherwise."""
    cwd = start.get("cwd")
    if cwd is not None and not Path(cwd).is_dir():
        yield f"the working directory {cwd} is gone: relative paths begin at {Path.cwd()}"
    yield from of_inputs(start.get("inputs", ()))
    there = start.get("environment")
    if there is None:
        yield "its environment is not recorded"
    else:
        yield from of_environment(there, here.environment)
    if "machine" in start:
        yield from (
            f"{key.replace('_', ' ')} {shown(a)} -> {shown(b)}"
            for key, a, b in unequal(start["machine"], here.machine)
        )


def of_environment(there: Data, here: Data) -> Iterator[str]:
    """Code, packages, plug-ins, the working directory."""
    for key in ("python", "platform", "host"):
        if there[key] != here[key]:
            yield f"{key} {there[key]} -> {here[key]}"
    if there["code"] != here["code"]:
        yield "titanrun itself has other code"
    yield from (
        f"package {name} {a or NOT_INSTALLED} -> {b or NOT_INSTALLED}"
        for name, a, b in unequal(there["packages"], here["packages"])
    )
    plugins = {plugin["name"]: plugin for plugin in here["plugins"]}
    for plugin in there["plugins"]:
        yield from of_plugin(plugin, plugins.get(plugin["name"]))
    yield from of_git(there["git"], here["git"])


def of_plugin(there: Data, here: Data | None) -> Iterator[str]:
    """A plug-in of another version, or with other modules."""
    name = f"plug-in {there['name']}"
    if here is None:
        yield f"{name} is not installed"
        return
    if there["version"] != here["version"]:
        yield f"{name} {shown(there['version'])} -> {shown(here['version'])}"
    others = [file for file, _, _ in unequal(there["files"], here["files"])]
    if others:
        yield f"{name} has other code: {named(others)}"


def of_git(there: Data | None, here: Data | None) -> Iterator[str]:
    """Another commit, or other changes that are not committed."""
    if there is None or here is None:
        if (there is None) != (here is None):
            yield f"the working directory {'was not' if there is None else 'was'} in a git repository"
        return
    if there["commit"] != here["commit"]:
        yield f"git commit {there['commit'][:12]} -> {here['commit'][:12]}"
    if there["dirty"] is None or here["dirty"] is None:
        yield "uncommitted changes are not known: git did not say"
    elif there["diff"] != here["diff"]:
        yield f"uncommitted changes: {there['diff'] or 'none'} -> {'others' if here['diff'] else 'none'}"


def of_inputs(inputs: Sequence[Data]) -> Iterator[str]:
    """Data, tokenizer and weight files that are gone or have another content."""
    for then in inputs:
        now = fingerprint(then["path"], Path(then["absolute"]))
        if then.get("xxh3_128") == now.get("xxh3_128"):
            if then.get("sampled") and then["modified"] != now["modified"]:
                yield f"{then['path']} was written to since, and has the same sampled bytes"
        elif "xxh3_128" not in now:
            yield f"{then['path']} is gone"
        elif "xxh3_128" not in then:
            yield f"{then['path']} was not there"
        else:
            others = [file for file, _, _ in unequal(then.get("each", {}), now.get("each", {}))]
            which = f" ({named(others)})" if others else ""
            yield f"{then['path']} has another content{which}: {then['bytes']:,} -> {now['bytes']:,} bytes"


def unequal(then: Data, now: Data) -> Iterator[tuple[str, Any, Any]]:
    """The keys under which two mappings differ, with both values; None where one lacks it."""
    for key in [*then, *(key for key in now if key not in then)]:
        if then.get(key) != now.get(key):
            yield key, then.get(key), now.get(key)


def shown(value: object) -> str:
    """A value, or that there is none."""
    return "none" if value is None else str(value)


def named(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
