"""Manifest of a run on Kubernetes, as plain data: ConfigMap, headless Service and Indexed Job.

Each pod is a node: it runs `titanrun train` with its index as the rank of its node, and finds the
others at the pod of index 0. Exit code 75 (saved, please start again) and lost nodes do not count
as failures; codes that another start would meet again end the Job.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from titanrun.config.exit_codes import EXIT_PREEMPTED, LASTING_EXIT_CODES
from titanrun.config.json_patch import apply_patches, parse_patch
from titanrun.config.problems import problem_error
from titanrun.config.serialize import to_flow_yaml, to_yaml
from titanrun.config.trust import TRUST_FLAG
from titanrun.launch.kubernetes.config import TOLERATION, KubernetesLaunchConfig

Manifest = dict[str, Any]
RESOLVED = "resolved.yaml"
RECIPE_FOLDER = "/etc/titanrun"
CONTAINER = "titanrun"
PORT = 29500
MAX_CONFIG_BYTES = 2**20
MAX_NAME = 63
DIGEST = 5
KIB, MIB, GIB = 2**10, 2**20, 2**30
INDEX = "JOB_COMPLETION_INDEX"
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
JOB_LABEL = "batch.kubernetes.io/job-name"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def build_job_name(run: str, folder: str, nnodes: int, *, suffix: str = "") -> str:
    """Build the name of a run's objects: the same for every start in the same run directory.

    Host names of pods are the name, a dash and the index: all of it has at most 63 characters, also
    with `suffix` in between.
    """
    digest = hashlib.sha256(folder.encode()).hexdigest()[:DIGEST]
    longest = MAX_NAME - len(f"{suffix}-{nnodes - 1}") - DIGEST - 1
    words = re.sub(r"[^a-z0-9]+", "-", run.lower())[:longest].strip("-")
    # names of Services begin with a letter
    named = words if words[:1].isalpha() else f"run-{words}".strip("-")[:longest].strip("-")
    return f"{named}-{digest}"


def build_objects(
    config: KubernetesLaunchConfig,
    *,
    name: str,
    resolved: str,
    folder: PurePosixPath,
    allows_code: bool = False,
) -> list[Manifest]:
    """Build the objects of a run.

    Args:
        config: The launch section.
        name: Name of all objects.
        resolved: Text of the resolved recipe.
        folder: The run directory in the pods.
        allows_code: Whether the user allowed code that the recipe names.
    """
    labels = {"app.kubernetes.io/name": CONTAINER, **parse_labels(config.labels)}
    head = {"name": name, "labels": labels}
    command = build_command(config, name, folder, allows_code=allows_code)
    job = build_job(config, name, labels, command)
    recipe = build_config_map(head, resolved)
    service = [build_service(head)] if config.nnodes > 1 else []
    return [recipe, *service, patch_job(config, job)]


def patch_job(config: KubernetesLaunchConfig, job: Manifest) -> Manifest:
    """Return the Job with the changes of the recipe."""
    try:
        patched: Manifest = apply_patches(job, [parse_patch(line) for line in config.patch])
    except KeyError as error:
        raise problem_error(
            "usage",
            f"the Job has no {error.args[0]}, which launch.patch changes",
            path=("launch", "patch"),
            hint="see titanrun launch --dry-run without the patch",
        ) from error
    return patched


def build_config_map(head: Manifest, resolved: str) -> Manifest:
    """Build the ConfigMap with the recipe. Raise ProblemsFound if it is too long."""
    if len(resolved.encode()) > MAX_CONFIG_BYTES:
        raise problem_error(
            "usage",
            f"the resolved recipe has {len(resolved.encode()):,} bytes, a ConfigMap at most "
            f"{MAX_CONFIG_BYTES:,}",
            path=("launch",),
            hint="put long lists of the recipe into files",
        )
    data = {RESOLVED: resolved}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": data}


def build_service(head: Manifest) -> Manifest:
    """Build the Service that gives the pods their host names."""
    spec = {
        "clusterIP": "None",
        # the pods meet before they are ready
        "publishNotReadyAddresses": True,
        "selector": {JOB_LABEL: head["name"]},
        "ports": [{"name": "rendezvous", "port": PORT}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": spec}


def build_job(
    config: KubernetesLaunchConfig,
    name: str,
    labels: Mapping[str, str],
    command: Sequence[str],
    *,
    recipe: str | None = None,
) -> Manifest:
    """Build the Job, without its patches.

    Args:
        config: The launch section.
        name: Name of the Job.
        labels: Labels of Job and pods.
        command: Words of the container's command.
        recipe: Name of the ConfigMap with the recipe. None: that of the Job.
    """
    queue = {} if config.queue is None else {QUEUE_LABEL: config.queue}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**labels, **queue}},
        "spec": {
            "completionMode": "Indexed",
            "completions": config.nnodes,
            "parallelism": config.nnodes,
            # one failure ends every pod
            "backoffLimit": config.max_restarts * config.nnodes,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": build_failure_rules()},
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": build_pod(config, name, command, recipe=recipe or name),
            },
        },
    }


def build_failure_rules() -> list[Manifest]:
    """Build what the ends of pods mean; the first rule that fits decides."""

    def match_codes(action: str, codes: Sequence[int]) -> Manifest:
        matched = {"containerName": CONTAINER, "operator": "In", "values": list(codes)}
        return {"action": action, "onExitCodes": matched}

    disrupted = {"type": "DisruptionTarget", "status": "True"}
    return [
        {"action": "Ignore", "onPodConditions": [disrupted]},
        match_codes("Ignore", [EXIT_PREEMPTED]),
        match_codes("FailJob", LASTING_EXIT_CODES),
    ]


def build_pod(
    config: KubernetesLaunchConfig, name: str, command: Sequence[str], *, recipe: str
) -> Manifest:
    """Build the spec of each pod."""
    memory = {"medium": "Memory"}
    if config.shared_memory is not None:
        memory["sizeLimit"] = format_quantity(config.shared_memory)
    pod: Manifest = {
        # podFailurePolicy demands it: the Job makes new pods
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": config.save_seconds,
        "containers": [build_container(config, command)],
        "volumes": [
            {"name": "recipe", "configMap": {"name": recipe}},
            {"name": "shared-memory", "emptyDir": memory},
            *(
                {"name": f"volume-{at}", "persistentVolumeClaim": {"claimName": volume.claim}}
                for at, volume in enumerate(config.volumes)
            ),
        ],
    }
    optional = {
        "subdomain": name if config.nnodes > 1 else None,
        "serviceAccountName": config.service_account,
        "priorityClassName": config.priority_class,
        "nodeSelector": parse_labels(config.node_selector),
        "tolerations": [build_toleration(text) for text in config.tolerations],
    }
    return {**pod, **{key: value for key, value in optional.items() if value}}


def build_container(config: KubernetesLaunchConfig, command: Sequence[str]) -> Manifest:
    """Build the container of each pod."""
    # Kubernetes sets the index too, but $(...) in the command is replaced for what is listed here
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}}
    container: Manifest = {
        "name": CONTAINER,
        "image": config.image,
        "command": list(command),
        "env": [{"name": INDEX, "valueFrom": index}],
        "volumeMounts": [
            {"name": "recipe", "mountPath": RECIPE_FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            *(
                {"name": f"volume-{at}", "mountPath": volume.path}
                for at, volume in enumerate(config.volumes)
            ),
        ],
    }
    if config.secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in config.secrets]
    resources = build_resources(config)
    return {**container, **({"resources": resources} if resources else {})}


def build_command(
    config: KubernetesLaunchConfig, name: str, folder: PurePosixPath, *, allows_code: bool
) -> list[str]:
    """Build the words of the container's command."""
    if config.nnodes == 1:
        return build_train_command(config, {}, folder, allows_code=allows_code)
    meeting = {
        "nnodes": config.nnodes,
        "rdzv_endpoint": f"{name}-0.{name}:{PORT}",
        "rdzv_id": name,
    }
    rank = f"launch.node_rank=$({INDEX})"
    return build_train_command(config, meeting, folder, rank, allows_code=allows_code)


def build_train_command(
    config: KubernetesLaunchConfig,
    meeting: Mapping[str, object],
    folder: PurePosixPath,
    *overrides: str,
    allows_code: bool,
) -> list[str]:
    """Build the words of `titanrun train` in a pod.

    Args:
        config: The launch section.
        meeting: What the launch section in the pod has beside the number of its ranks.
        folder: The run directory in the pods.
        overrides: Further overrides, in which `$(...)` stands for a variable.
        allows_code: Whether the user allowed code that the recipe names.
    """
    launch = {"name": "local", "nproc_per_node": config.nproc_per_node, **meeting}
    words = [
        CONTAINER,
        "train",
        f"{RECIPE_FOLDER}/{RESOLVED}",
        f"dump_folder={to_flow_yaml(str(folder))}",
        f"launch={to_flow_yaml(launch)}",
    ]
    # $(...) stands for a variable, and $$ for a dollar sign
    words = [word.replace("$", "$$") for word in words]
    return [*words, *overrides, *([TRUST_FLAG] if allows_code else [])]


def build_resources(config: KubernetesLaunchConfig) -> Manifest:
    """Build requests and limits. All quantities are texts: typed clients accept nothing else."""
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    if config.cpus_per_node is not None:
        requests["cpu"] = str(config.cpus_per_node)
    if config.memory is not None:
        requests["memory"] = limits["memory"] = format_quantity(config.memory)
    if config.gpus_per_node is not None:
        requests[config.gpu_resource] = limits[config.gpu_resource] = str(config.gpus_per_node)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def format_quantity(size: int) -> str:
    """Format bytes as a quantity of Kubernetes: `512Gi`."""
    for unit, name in ((GIB, "Gi"), (MIB, "Mi"), (KIB, "Ki")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def parse_labels(labels: Sequence[str]) -> dict[str, str]:
    """Return labels by key."""
    return dict(label.split("=", 1) for label in labels)


def build_toleration(text: str) -> Manifest:
    """Build a toleration from `key=value:Effect`."""
    found = TOLERATION.fullmatch(text)
    assert found is not None
    key, value, effect = found["key"], found["value"], found["effect"]
    matched = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {"key": key, **matched, **({} if effect is None else {"effect": effect})}


def format_objects(objects: Sequence[Manifest]) -> str:
    """Format objects as the documents of one YAML file."""
    return "---\n".join(["# written by titanrun launch\n", *map(format_object, objects)])


def format_object(item: Manifest) -> str:
    """Format one object as YAML; the recipe is a block that a person reads."""
    if item["kind"] != "ConfigMap":
        return to_yaml(item)
    head = to_yaml({key: value for key, value in item.items() if key != "data"})
    lines = item["data"][RESOLVED].removesuffix("\n").split("\n")
    block = "".join(f"    {line}\n" if line else "\n" for line in lines)
    return f"{head}data:\n  {RESOLVED}: |\n{block}"
