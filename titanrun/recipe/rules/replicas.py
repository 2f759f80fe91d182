"""Rules about replica groups, and about ranks that are only simulated."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rank_rule, rule
from titanrun.recipe.rules.ranks import at

SIZE: DataPath = ("fault_tolerance", "group_size")


@rule("replica-groups-add-up")
def replica_groups_add_up(run: Recipe) -> Iterator[Finding]:
    """Fault tolerance shares the data among fault_tolerance.group_size groups: the number must be given, replica_id counts them from
    0, and no more of them can be required (min_replica_size) than there are."""
    section = run.fault_tolerance
    if not section.enable:
        return
    size = section.group_size
    if size is None:
        yield Finding(
            "replica groups are on, and nobody says how many", (("fault_tolerance", "enable"), SIZE), help="set fault_tolerance.group_size"
        )
        return
    if section.replica_id >= size:
        message = f"there is no group {section.replica_id}: {size} groups are counted from 0"
        yield Finding(message, (("fault_tolerance", "replica_id"), SIZE), help=f"use 0 to {size - 1}")
    if section.min_replica_size > size:
        message = f"{section.min_replica_size} groups are required, and there are {size}"
        yield Finding(message, (("fault_tolerance", "min_replica_size"), SIZE), help=f"use at most {size}")


@rank_rule("simulation-needs-ranks")
def simulation_needs_ranks(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """comm.mode fake_backend and local_tensor simulate many ranks in one process: how many must be said, in launch.nproc_per_node or
    by --world-size."""
    if run.comm.mode != "default" and ranks is None:
        paths = (("comm", "mode"), ("launch", "nproc_per_node"), at("data_parallel_shard_degree"))
        yield Finding(f"comm.mode {run.comm.mode} simulates ranks, and nobody says how many", paths, help="set launch.nproc_per_node")
