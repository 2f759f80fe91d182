"""The objects of a run on Kubernetes, without a cluster: what each setting changes in them."""

import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from titanrun.config.json_patch import apply_patches, parse_patch
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.launch.kubernetes.group_objects import build_group_objects, build_groups_name
from titanrun.launch.kubernetes.job_objects import build_job_name, build_objects, format_objects
from titanrun.launch.kubernetes.kubectl import Kubectl, find_pending_reason, get_exit_codes

GOLDEN = Path(__file__).parent / "kubernetes"
RESOLVED = "# resolved\nversion: 1\n\nname: \"a $(b) 'c'\"\n"
PLAIN: dict[str, Any] = {"image": "registry.example/titanrun:0.1"}
RUNS = [{"claim": "runs", "path": "/runs"}]
CASES: dict[str, dict[str, Any]] = {
    "one_node_cpu": {**PLAIN, "cpus_per_node": 4, "memory": 8 * 2**30, "volumes": RUNS},
    "two_nodes_gpu": {
        **PLAIN,
        "nnodes": 2,
        "nproc_per_node": 8,
        "gpus_per_node": 8,
        "memory": 512 * 2**30,
        "shared_memory": 64 * 2**30,
        "volumes": RUNS,
        "secrets": ["hf-token"],
        "node_selector": ["gpu=h100"],
        "tolerations": ["nvidia.com/gpu:NoSchedule", "dedicated=train"],
    },
    "queue_and_patch": {
        **PLAIN,
        "nnodes": 2,
        "volumes": RUNS,
        "queue": "team-queue",
        "priority_class": "low",
        "service_account": "trainer",
        "labels": ["team=research"],
        "patch": [
            "add /spec/ttlSecondsAfterFinished 86400",
            "replace /spec/backoffLimit 0",
            'add /spec/template/spec/containers/0/env/- {"name": "NCCL_DEBUG", "value": "WARN"}',
        ],
    },
}

GROUPED: dict[str, Any] = {
    **PLAIN,
    "nproc_per_node": 8,
    "gpus_per_node": 8,
    "volumes": RUNS,
    "tolerations": ["nvidia.com/gpu:NoSchedule"],
    "labels": ["team=research"],
}


def objects_of(launch: dict[str, Any], folder: str = "/runs/first") -> list[dict[str, Any]]:
    config = KubernetesLaunchConfig.model_validate(launch)
    name = build_job_name("first", folder, config.nnodes)
    return build_objects(config, name=name, resolved=RESOLVED, folder=PurePosixPath(folder))


def group_objects_of(launch: dict[str, Any], **groups: Any) -> list[dict[str, Any]]:
    config = KubernetesLaunchConfig.model_validate(launch)
    tolerant = FaultToleranceConfig(enable=True, **groups)
    name = build_groups_name("first", "/runs/first", tolerant)
    return build_group_objects(
        config, tolerant, name=name, resolved=RESOLVED, folder=PurePosixPath("/runs/first")
    )


@pytest.mark.parametrize("name", [*CASES, "replica_groups"])
def test_the_objects_are_the_committed_ones(name: str) -> None:
    objects = group_objects_of(GROUPED) if name == "replica_groups" else objects_of(CASES[name])
    text = format_objects(objects)
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("TITANRUN_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", CASES)
def test_objects_refer_to_each_other_and_a_yaml_reader_reads_them(name: str) -> None:
    objects = objects_of(CASES[name])
    assert [*yaml.safe_load_all(format_objects(objects))] == objects
    by_kind = {item["kind"]: item for item in objects}
    job, recipe = by_kind["Job"], by_kind["ConfigMap"]
    pod = job["spec"]["template"]["spec"]
    assert recipe["data"] == {"resolved.yaml": RESOLVED}
    # a Job with podFailurePolicy needs it
    assert pod["restartPolicy"] == "Never"
    mounts = {item["name"] for item in pod["containers"][0]["volumeMounts"]}
    assert mounts == {item["name"] for item in pod["volumes"]}
    matched = [rule["onExitCodes"] for rule in job["spec"]["podFailurePolicy"]["rules"][1:]]
    assert {rule["containerName"] for rule in matched} == {pod["containers"][0]["name"]}
    if job["spec"]["completions"] == 1:
        assert "Service" not in by_kind and "subdomain" not in pod
        return
    service = by_kind["Service"]
    assert pod["subdomain"] == service["metadata"]["name"]
    # set on each pod by the Job controller
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    endpoint = f"{job['metadata']['name']}-0.{service['metadata']['name']}:29500"
    assert endpoint in " ".join(pod["containers"][0]["command"])


def test_replica_groups_are_a_job_each_that_meet_at_one_lighthouse() -> None:
    times = {"join_timeout_ms": 7000, "heartbeat_timeout_ms": 900, "min_replica_size": 3}
    objects = group_objects_of(GROUPED, group_size=12, **times)
    assert [*yaml.safe_load_all(format_objects(objects))] == objects
    recipe, service, deployment, *jobs = objects
    assert [item["kind"] for item in objects[:3]] == ["ConfigMap", "Service", "Deployment"]
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    command = template["spec"]["containers"][0]["command"]
    assert command[:3] == ["python", "-m", "titanrun.worker.lighthouse"]
    assert command[3:] == ["0.0.0.0", "29510", "3", "7000", "900"]
    assert len(jobs) == 12 and len({job["metadata"]["name"] for job in jobs}) == 12
    address = f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    for group, job in enumerate(jobs):
        pod = job["spec"]["template"]["spec"]
        words = pod["containers"][0]["command"]
        assert f"fault_tolerance.replica_id={group}" in words
        assert f"fault_tolerance.lighthouse={address}" in words
        assert job["spec"]["completions"] == 1 and job["spec"]["backoffLimit"] == 3
        # the lighthouse is not selected, and every pod mounts the one recipe
        labels = job["spec"]["template"]["metadata"]["labels"]
        assert not service["spec"]["selector"].items() <= labels.items()
        assert labels["titanrun.dev/group"] == str(group)
        assert pod["volumes"][0]["configMap"]["name"] == recipe["metadata"]["name"]
    names = [item["metadata"]["name"] for item in objects]
    long = build_groups_name("x" * 90, "/runs/first", FaultToleranceConfig(group_size=12))
    assert len(names) == len(set(names)) + 1 and len(f"{long}-lighthouse") <= 63
    assert long.rsplit("-", 1)[1] == names[0].rsplit("-", 1)[1]


def find(data: Any, value: Any) -> bool:
    """Whether plain data holds a value anywhere."""
    below = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return data == value or any(find(item, value) for item in below)


CHANGES: dict[str, tuple[Any, Any]] = {
    "image": ("other:1", "other:1"),
    "nproc_per_node": (4, "launch={name: local, nproc_per_node: 4}"),
    "nnodes": (12, 12),
    "gpus_per_node": (7, "7"),
    "gpu_resource": ("amd.com/gpu", {"amd.com/gpu": "1"}),
    "cpus_per_node": (6, {"cpu": "6"}),
    "memory": (3 * 2**20, {"memory": "3Mi"}),
    "shared_memory": (1000, {"medium": "Memory", "sizeLimit": "1000"}),
    "volumes.claim": ([{"claim": "c", "path": "/runs"}], {"claimName": "c"}),
    "volumes.path": ([{"claim": "runs", "path": "/v"}], "/v"),
    "secrets": (["token"], [{"secretRef": {"name": "token"}}]),
    "service_account": ("me", "me"),
    "node_selector": (["a/b=c"], {"a/b": "c"}),
    "tolerations": (
        ["k=v:NoExecute"],
        [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute"}],
    ),
    "priority_class": ("high", "high"),
    "queue": ("q", "q"),
    "save_seconds": (77, 77),
    "max_restarts": (9, 9),
    "labels": (["x=y"], "y"),
    "patch": (["remove /spec/podReplacementPolicy"], None),
}


@pytest.mark.parametrize("field", CHANGES)
def test_each_field_is_in_the_objects(field: str) -> None:
    value, made = CHANGES[field]
    more = {"gpus_per_node": 1} if field == "gpu_resource" else {"volumes": RUNS}
    key = field.partition(".")[0]
    plain, changed = objects_of({**PLAIN, **more}), objects_of({**PLAIN, **more, key: value})
    assert changed != plain
    if made is not None:
        assert find(changed, made) and not find(plain, made)


def test_kubectl_gets_context_and_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    config = KubernetesLaunchConfig.model_validate({**PLAIN, "namespace": "team", "context": "c"})
    assert Kubectl(config).build_command("get", "job") == [
        *("/bin/kubectl", "--context", "c", "--namespace", "team", "get", "job")
    ]
    plain = Kubectl(KubernetesLaunchConfig.model_validate(PLAIN))
    assert plain.build_command("get") == ["/bin/kubectl", "get"]


def test_quantities_are_texts_and_dollar_signs_stay_dollar_signs() -> None:
    (_, _, job) = objects_of({**CASES["two_nodes_gpu"]}, "/runs/a$(HOME)")
    container = job["spec"]["template"]["spec"]["containers"][0]
    limits = container["resources"]["limits"]
    assert limits == {"memory": "512Gi", "nvidia.com/gpu": "8"}
    assert 'dump_folder="/runs/a$$(HOME)"' in container["command"]
    assert container["command"][-1] == "launch.node_rank=$(JOB_COMPLETION_INDEX)"


@pytest.mark.parametrize(
    ("run", "nnodes"), [("Llama 3_8B!", 2), ("8b", 1), ("x" * 200, 1000), ("...", 1), ("ä-", 2)]
)
def test_names_are_those_of_hosts_and_stable(run: str, nnodes: int) -> None:
    import re

    name = build_job_name(run, "/runs/a", nnodes)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(f"{name}-{nnodes - 1}") <= 63 and name == build_job_name(run, "/runs/a", nnodes)
    assert name != build_job_name(run, "/runs/b", nnodes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": None}, "image"),
        ({"nproc_per_node": 2, "gpus_per_node": 1}, "exceeds gpus_per_node 1"),
        ({"memory": 5, "shared_memory": 5}, "shared_memory is not below memory"),
        ({"namespace": "Team_A"}, "not a name of Kubernetes"),
        ({"labels": ["team"]}, "not a label"),
        ({"labels": ["a b=c"]}, "not a label"),
        ({"tolerations": ["key:Never"]}, "not a toleration"),
        ({"volumes": [{"claim": "a", "path": "runs"}]}, "not an absolute folder"),
        ({"volumes": [{"claim": "a", "path": "/runs/../etc"}]}, "not an absolute folder"),
        ({"volumes": [*RUNS, *RUNS]}, "two volumes are mounted at '/runs'"),
        ({"patch": ["move /a /b"]}, "'move' is not an operation"),
        ({"patch": ["add spec 1"]}, "'spec' is not a path"),
        ({"patch": ["add /spec {"]}, "'{' is not JSON"),
        ({"patch": ["remove /spec 1"]}, "remove takes no value"),
        ({"patch": ['add /x {"api_key": "AbCdEf0123456789AbCdEf"}']}, "value of a secret"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KubernetesLaunchConfig.model_validate({**PLAIN, **changes})


def test_a_patch_of_what_is_not_there_and_a_long_recipe_are_problems() -> None:
    with pytest.raises(ProblemsFound, match="the Job has no /spec/suspend"):
        objects_of({**PLAIN, "patch": ["replace /spec/suspend true"]})
    config = KubernetesLaunchConfig.model_validate(PLAIN)
    with pytest.raises(ProblemsFound, match="a ConfigMap at most 1,048,576"):
        build_objects(config, name="a", resolved="x" * 2**21, folder=PurePosixPath("/runs"))


@pytest.mark.parametrize(
    ("before", "lines", "after"),
    [
        # the examples of RFC 6902, appendix A, for the operations that there are
        ({"foo": "bar"}, ['add /baz "qux"'], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, ['add /foo/1 "qux"'], {"foo": ["bar", "qux", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, ["remove /baz"], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, ["remove /foo/1"], {"foo": ["bar", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, ['replace /baz "boo"'], {"baz": "boo", "foo": "bar"}),
        (
            {"foo": "bar"},
            ['add /child {"grandchild": {}}'],
            {"foo": "bar", "child": {"grandchild": {}}},
        ),
        ({"foo": ["bar"]}, ['add /foo/- ["abc", "def"]'], {"foo": ["bar", ["abc", "def"]]}),
        ({"/": 9, "~1": 10}, ["replace /~01 1"], {"/": 9, "~1": 1}),
        ({"foo": "bar"}, ["add /baz/bat 1"], KeyError),
        ({"foo": ["bar"]}, ["add /foo/3 1"], KeyError),
        ({"foo": ["bar"]}, ["remove /foo/-"], KeyError),
        ({"foo": "bar"}, ["remove /baz"], KeyError),
    ],
)
def test_patches_do_what_the_standard_says(before: Any, lines: list[str], after: Any) -> None:
    operations = [parse_patch(line) for line in lines]
    if after is KeyError:
        with pytest.raises(KeyError):
            apply_patches(before, operations)
    else:
        assert apply_patches(before, operations) == after


def test_states_of_pods_are_read() -> None:
    message = "0/3 nodes are available: insufficient nvidia.com/gpu."
    waits = {"type": "PodScheduled", "status": "False", "message": message}
    pending = {"metadata": {"name": "p"}, "status": {"phase": "Pending", "conditions": [waits]}}
    assert find_pending_reason([pending]) == f"p waits: {message}"
    reason = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pulling = {"phase": "Pending", "containerStatuses": [{"name": "titanrun", "state": reason}]}
    assert find_pending_reason([{"metadata": {"name": "q"}, "status": pulling}]) == (
        "q waits: no such image"
    )
    assert (
        find_pending_reason([{"metadata": {"name": "q"}, "status": {"phase": "Running"}}]) is None
    )
    ended = [
        {
            "status": {
                "containerStatuses": [
                    {
                        "name": "titanrun",
                        "state": {"terminated": {"exitCode": code, "finishedAt": at}},
                    }
                ]
            }
        }
        for code, at in ((0, "2"), (75, "1"), (3, "0"))
    ]
    assert get_exit_codes(ended) == [3, 75, 0]


RECIPE = f"""
version: 1
extends: [{Path(__file__).parents[2]}/recipes/llama3_debug.yaml]
launch: {{name: kubernetes, image: i, volumes: [{{claim: runs, path: /runs}}]}}
"""


def launch(folder: Path, *words: str, program: str = "/nowhere") -> tuple[int, str, str]:
    (folder / "recipe.yaml").write_text(RECIPE)
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "launch", "recipe.yaml", *words],
        cwd=folder,
        env={**os.environ, "PATH": program},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_dry_run_needs_no_cluster_and_writes_nothing(tmp_path: Path) -> None:
    code, shown, said = launch(
        tmp_path,
        "dump_folder=/runs/a",
        "training.dataset={name: text, path: /data/x}",
        "validation.enable=false",
        "--dry-run",
    )
    assert code == 0 and "warning" in said and "/data/x" in said
    kinds = [item["kind"] for item in yaml.safe_load_all(shown)]
    assert kinds == ["ConfigMap", "Job"] and [item.name for item in tmp_path.iterdir()] == [
        "recipe.yaml"
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "dump_folder is not set"),
        (("dump_folder=/home/a",), "'/home/a' is in no volume of the launch section"),
        (("dump_folder=/runs/../a",), "is in no volume"),
        (("dump_folder=/runs/a",), "needs kubectl, which is not installed"),
        (("dump_folder=/runs/a", "launch.partition=x"), "unknown key 'partition'"),
    ],
)
def test_a_run_that_would_be_lost_or_cannot_be_submitted_says_so(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    code, _, shown = launch(tmp_path, *words)
    assert code == 2 and said in shown, shown
