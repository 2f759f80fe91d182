"""Manifest of replica groups on Kubernetes: a Job for each, and their lighthouse.

The lighthouse is a Deployment with a Service, so that a new pod has the same address. Each Job has
one pod, which Kubernetes replaces as that of a run without groups.
"""

from pathlib import PurePosixPath

from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.launch.kubernetes.job_objects import (
    CONTAINER,
    Manifest,
    build_config_map,
    build_job,
    build_job_name,
    build_toleration,
    build_train_command,
    parse_labels,
    patch_job,
)
from titanrun.launch.lighthouse_process import LIGHTHOUSE as LIGHTHOUSE_MODULE
from titanrun.launch.lighthouse_process import build_lighthouse_arguments

RUN_LABEL = "titanrun.dev/run"
GROUP_LABEL = "titanrun.dev/group"
PART_LABEL = "titanrun.dev/part"
LIGHTHOUSE = "lighthouse"
LIGHTHOUSE_PORT = 29510


def build_groups_name(run: str, folder: str, groups: FaultToleranceConfig) -> str:
    """Build the name that all objects of a run with replica groups begin with."""
    suffixes = [f"-{LIGHTHOUSE}", f"-{groups.group_size - 1}"]
    return build_job_name(run, folder, 1, suffix=max(suffixes, key=len))


def list_group_jobs(name: str, groups: FaultToleranceConfig) -> list[str]:
    """List the names of the Jobs of a run, in the order of the groups."""
    return [f"{name}-{group}" for group in range(groups.group_size)]


def build_group_objects(
    config: KubernetesLaunchConfig,
    groups: FaultToleranceConfig,
    *,
    name: str,
    resolved: str,
    folder: PurePosixPath,
    allows_code: bool = False,
) -> list[Manifest]:
    """Build the objects of a run with replica groups.

    Args:
        config: The launch section.
        groups: The section with the groups.
        name: What the names of all objects begin with.
        resolved: Text of the resolved recipe.
        folder: The run directory in the pods.
        allows_code: Whether the user allowed code that the recipe names.
    """
    labels = {
        "app.kubernetes.io/name": CONTAINER,
        **parse_labels(config.labels),
        RUN_LABEL: name,
    }
    meeting = f"fault_tolerance.lighthouse=http://{name}-{LIGHTHOUSE}:{LIGHTHOUSE_PORT}"
    jobs = []
    for group, job in enumerate(list_group_jobs(name, groups)):
        number = f"fault_tolerance.replica_id={group}"
        command = build_train_command(config, {}, folder, number, meeting, allows_code=allows_code)
        own = {**labels, GROUP_LABEL: str(group)}
        jobs.append(patch_job(config, build_job(config, job, own, command, recipe=name)))
    return [
        build_config_map({"name": name, "labels": labels}, resolved),
        *build_lighthouse_objects(config, groups, name, labels),
        *jobs,
    ]


def build_lighthouse_objects(
    config: KubernetesLaunchConfig, groups: FaultToleranceConfig, name: str, labels: dict[str, str]
) -> list[Manifest]:
    """Build the Service and the Deployment of the lighthouse."""
    chosen = {RUN_LABEL: name, PART_LABEL: LIGHTHOUSE}
    head = {"name": f"{name}-{LIGHTHOUSE}", "labels": {**labels, PART_LABEL: LIGHTHOUSE}}
    service = {
        "selector": chosen,
        "ports": [{"name": LIGHTHOUSE, "port": LIGHTHOUSE_PORT}],
    }
    deployment = {
        "replicas": 1,
        # two lighthouses would part the groups
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": chosen},
        "template": {
            "metadata": {"labels": head["labels"]},
            "spec": build_lighthouse_pod(config, groups),
        },
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": service},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": head, "spec": deployment},
    ]


def build_lighthouse_pod(config: KubernetesLaunchConfig, groups: FaultToleranceConfig) -> Manifest:
    """Build the spec of the lighthouse's pod, which needs neither accelerators nor volumes."""
    arguments = ["0.0.0.0", *build_lighthouse_arguments(groups, LIGHTHOUSE_PORT)]
    container = {
        "name": LIGHTHOUSE,
        "image": config.image,
        "command": ["python", "-m", LIGHTHOUSE_MODULE, *arguments],
        "ports": [{"containerPort": LIGHTHOUSE_PORT}],
    }
    optional = {
        "serviceAccountName": config.service_account,
        "priorityClassName": config.priority_class,
        "nodeSelector": parse_labels(config.node_selector),
        "tolerations": [build_toleration(text) for text in config.tolerations],
    }
    return {
        # the groups save while they are deleted, and need it for that
        "terminationGracePeriodSeconds": config.save_seconds,
        "containers": [container],
        **{key: value for key, value in optional.items() if value},
    }
