"""The rank of saved adapters, which no run changes, and the way to another one."""

import shlex
from pathlib import Path

from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.tree import find_origin, format_path
from titanrun.recipe.recipe import find_lora_converter
from titanrun.recipe.resolving.resolve import Resolved, load_resolved
from titanrun.recipe.rundir.run_files import RESOLVED

RULE = "rank-stays"


def check_same_rank(run_dir: Path, resolved: Resolved) -> None:
    """Raise a problem if the run in a folder has adapters of another rank."""
    saved = find_lora_converter(load_resolved(run_dir / RESOLVED))
    now = find_lora_converter(resolved.run)
    if saved is None or now is None or saved.rank == now.rank:
        return
    path: DataPath = ("converters", resolved.run.converters.index(now), "rank")
    merging = suggest_merge(
        str(run_dir),
        path,
        now.rank,
        recipe=str(run_dir / RESOLVED),
        new_run=f"{run_dir}-rank-{now.rank}",
    )
    problem = Problem(
        "conflict",
        f"rank is {now.rank}, but '{run_dir}' has adapters of rank {saved.rank}, and the rank of "
        "saved adapters cannot change",
        path,
        find_origin(resolved.tree, path),
        rule=RULE,
        hint=f"write rank: {saved.rank}, or {merging}",
    )
    raise ProblemsFound([problem])


def suggest_merge(
    source: str, path: DataPath, rank: int, *, recipe: str = "RECIPE", new_run: str | None = None
) -> str:
    """Return the commands that merge adapters and train new ones of another rank on the result.

    Args:
        source: the run or checkpoint of the adapters.
        path: the setting of the rank.
        rank: the other rank.
        recipe: the recipe of the new run.
        new_run: the folder of the new run, None for that of the recipe.
    """
    merged = f"{Path(source).name}-merged"
    export = ["titanrun", "checkpoint", "export", source, merged, "--format", "hf", "--merge"]
    start = [f"model.hf_assets_path={merged}", "checkpoint.initial_load_path=null"]
    start += ["checkpoint.initial_load_in_hf=true", f"{format_path(path)}={rank}"]
    start += [] if new_run is None else [f"dump_folder={new_run}"]
    train = ["titanrun", "train", recipe, *start]
    return f"merge them: {shlex.join(export)}, then {shlex.join(train)}"
