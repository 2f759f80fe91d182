"""What a fleet asks of Ray: a cluster, and resources for each actor."""

import logging
from collections import defaultdict
from typing import Any

from titanrun.config.problems import problem_error
from titanrun.rl.fleet.config import FleetConfig, parse_resource

log = logging.getLogger(__name__)

QUIET = {"log_to_driver": False, "configure_logging": False}


def build_init_options(folder: str) -> dict[str, Any]:
    """Build the arguments of `ray.init` that start a Ray of this machine in a folder."""
    # by default Ray would join what RAY_ADDRESS names
    return {**QUIET, "address": "local", "include_dashboard": False, "_temp_dir": folder}


def build_join_options(address: str) -> dict[str, Any]:
    """Build the arguments of `ray.init` that join a cluster."""
    return {**QUIET, "address": address}


def check_resources(config: FleetConfig, available: dict[str, float]) -> None:
    """Refuse what a Ray on this machine alone can never have. A cluster may still grow.

    Raises:
        ProblemsFound: a resource is missing.
    """
    for name, amount in count_resources(config).items():
        needed, found = amount * config.processes, available.get(name, 0.0)
        if needed <= found:
            continue
        message = f"{config.processes} processes need {needed:g} {name}, but Ray has {found:g}"
        if config.address is None:
            raise problem_error(
                "usage",
                message,
                path=("rl", "fleet", "resources"),
                hint="use less, or join a cluster: rl.fleet.address",
            )
        log.warning("%s: they wait until the cluster grows", message)


def count_resources(config: FleetConfig) -> dict[str, float]:
    """Return the amount of each resource that a process takes. Repeated names are added up."""
    amounts: defaultdict[str, float] = defaultdict(float)
    for name, amount in map(parse_resource, config.resources):
        amounts[name] += amount
    return dict(amounts)


def build_actor_options(config: FleetConfig) -> dict[str, Any]:
    """Build Ray's options of each actor."""
    amounts = count_resources(config)
    return {
        "num_cpus": amounts.pop("CPU", 0),
        "num_gpus": amounts.pop("GPU", 0),
        "resources": amounts,
        "scheduling_strategy": "SPREAD",
        # the fleet restarts it
        "max_restarts": 0,
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(config.threads)}},
    }
