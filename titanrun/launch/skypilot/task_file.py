"""Task of a run for SkyPilot, as plain data.

Every machine runs `titanrun train` with its rank and finds the others at the first machine. Exit
code 75 (saved, please start again) starts the run again without counting as a failure.
"""

import hashlib
import re
import shlex
from pathlib import PurePosixPath
from typing import Any

from titanrun.config.exit_codes import EXIT_PREEMPTED
from titanrun.config.serialize import to_flow_yaml, to_yaml
from titanrun.config.trust import TRUST_FLAG
from titanrun.launch.skypilot.config import SkyPilotLaunchConfig

Task = dict[str, Any]
RESOLVED = "resolved.yaml"
# folder on the machines, outside sky's working directory
RECIPE_FOLDER = "~/titanrun"
PORT = 29500
GIB = 2**30
MAX_NAME = 40
DIGEST = 5
# addresses of the machines, one per line; the first is that of rank 0
FIRST_ADDRESS = '$(printf "%s\\n" "$SKYPILOT_NODE_IPS" | head -n 1)'


def build_task_name(run: str, folder: str) -> str:
    """Build the name of a run's task: the same for every start with the same folder."""
    digest = hashlib.sha256(folder.encode()).hexdigest()[:DIGEST]
    words = re.sub(r"[^a-z0-9]+", "-", run.lower())[:MAX_NAME].strip("-")
    # names of clusters begin with a letter
    named = words if words[:1].isalpha() else f"run-{words}".strip("-")
    return f"{named}-{digest}"


def build_task(
    config: SkyPilotLaunchConfig,
    *,
    name: str,
    recipe: str,
    folder: PurePosixPath | None,
    allows_code: bool = False,
) -> Task:
    """Build the task of a run.

    Args:
        config: The launch section.
        name: Name of the task.
        recipe: File of the resolved recipe on this machine.
        folder: The run directory on the machines; None if each start makes a new one.
        allows_code: Whether the user allowed code that the recipe names.
    """
    mounted = f"{RECIPE_FOLDER}/{name}/{RESOLVED}"
    task: Task = {
        "name": name,
        "num_nodes": config.nnodes,
        "resources": build_machine_resources(config),
        "file_mounts": {mounted: recipe},
        "volumes": {volume.path: volume.volume for volume in config.volumes},
        # values come from --secret: none is written into the file
        "secrets": dict.fromkeys(config.secrets),
        "setup": "\n".join(config.setup),
        "run": build_machine_command(config, name, mounted, folder, allows_code=allows_code),
    }
    return {key: value for key, value in task.items() if value not in ({}, "")}


def build_machine_resources(config: SkyPilotLaunchConfig) -> Task:
    """Build what each machine must have."""
    resources: Task = {
        "infra": config.infra,
        "accelerators": config.accelerators,
        "cpus": None if config.cpus_per_node is None else f"{config.cpus_per_node}+",
        "memory": None if config.memory is None else f"{to_gib(config.memory)}+",
        "disk_size": None if config.disk_size is None else to_gib(config.disk_size),
        "use_spot": config.use_spot or None,
        "image_id": None if config.image is None else f"docker:{config.image}",
    }
    if config.managed:
        resources["job_recovery"] = {
            "max_restarts_on_errors": config.max_restarts,
            "recover_on_exit_codes": [EXIT_PREEMPTED],
        }
    return {key: value for key, value in resources.items() if value is not None}


def build_machine_command(
    config: SkyPilotLaunchConfig,
    name: str,
    recipe: str,
    folder: PurePosixPath | None,
    *,
    allows_code: bool,
) -> str:
    """Build the shell command of each machine."""
    launch: dict[str, object] = {"name": "local", "nproc_per_node": config.nproc_per_node}
    words = [f"exec titanrun train {recipe}"]
    if folder is not None:
        words.append(shlex.quote(f"dump_folder={to_flow_yaml(str(folder))}"))
    if config.nnodes > 1:
        launch |= {"nnodes": config.nnodes, "rdzv_id": name}
    words.append(shlex.quote(f"launch={to_flow_yaml(launch)}"))
    if config.nnodes > 1:
        words.append('launch.node_rank="$SKYPILOT_NODE_RANK"')
        words.append(f'launch.rdzv_endpoint="{FIRST_ADDRESS}:{PORT}"')
    return " \\\n  ".join([*words, *([TRUST_FLAG] if allows_code else [])])


def to_gib(size: int) -> int:
    """Return bytes as GiB, rounded up: SkyPilot counts in whole units."""
    return -(-size // GIB)


def format_task(task: Task) -> str:
    """Format a task as YAML, the script and the command as blocks that a person reads."""
    scripts = [key for key in ("setup", "run") if key in task]
    head = to_yaml({key: value for key, value in task.items() if key not in scripts})
    blocks = (f"{key}: |\n{indent_lines(task[key])}" for key in scripts)
    return "# written by titanrun launch\n" + head + "".join(blocks)


def indent_lines(text: str) -> str:
    """Return the lines of a block of YAML."""
    return "".join(f"  {line}\n" for line in text.split("\n"))
