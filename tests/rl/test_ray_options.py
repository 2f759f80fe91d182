"""What a fleet asks of Ray, without Ray."""

import importlib
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.rl.parts import TEXT, write_recipe
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.object_collectives import RankGroup
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rules import data
from titanrun.recipe.rules.data import extras_installed
from titanrun.rl.config import RlConfig
from titanrun.rl.fleet.ray_options import (
    build_actor_options,
    build_init_options,
    build_join_options,
    check_resources,
)
from titanrun.rl.weight_sync import object_store_transport
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreReader, ObjectStoreTransport
from titanrun.worker.build import build_fleet
from titanrun.worker.worker_job import WorkerJob

BUILDER = "titanrun.worker.build.build_ray_fleet"


def resolve(folder: Path, fleet: str) -> tuple[Recipe, RlConfig]:
    overrides = [
        f"rl.fleet={{processes: 2, carrier: ray, {fleet}}}",
        "rl.sync.transport=object_store",
    ]
    recipe = resolve_recipe(write_recipe(folder, TEXT), overrides, environment={}).run
    assert recipe.rl is not None
    return recipe, recipe.rl


def test_ray_is_asked_for_where_the_recipe_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (data, build_fleet):
        monkeypatch.setattr(module, "is_installed", lambda package: package != "ray")
    recipe, config = resolve(tmp_path, "")
    (found,) = extras_installed(recipe)
    assert found.paths == (("rl", "fleet"),) and found.hint == 'pip install "titanrun[ray]"'
    job = WorkerJob(tmp_path / "resolved.yaml", "", RankInfo())
    with pytest.raises(ProblemsFound, match="needs the package 'ray', which is not installed"):
        build_fleet.build_fleet(recipe, config, job, None)


def test_a_ray_of_its_own_or_a_cluster() -> None:
    own = build_init_options("/tmp/short")
    assert own["address"] == "local" and own["_temp_dir"] == "/tmp/short"
    joined = build_join_options("head:6379")
    assert joined["address"] == "head:6379" and "_temp_dir" not in joined


def test_a_cluster_at_whose_address_nobody_listens_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = SimpleNamespace(OwnerDiedError=OSError, RayError=OSError)
    without = SimpleNamespace(is_initialized=lambda: False, exceptions=errors)
    for name in (BUILDER, "titanrun.rl.fleet.ray_cluster", "titanrun.rl.fleet.ray_process"):
        # imported anew in this test, and again after it
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    monkeypatch.setitem(sys.modules, "ray", without)
    monkeypatch.setitem(sys.modules, "ray.exceptions", errors)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        _, config = resolve(tmp_path, f"address: '{address}'")
        job = WorkerJob(tmp_path / "resolved.yaml", "", RankInfo())
        builder = importlib.import_module(BUILDER)
        with ExitStack() as exit_stack, pytest.raises(ProblemsFound, match=address):
            builder.build_owner(config, job, tmp_path, exit_stack)


def test_each_actor_takes_its_resources(tmp_path: Path) -> None:
    _, config = resolve(tmp_path, "threads: 3, resources: [GPU=0.5, CPU=2, generator=1]")
    options = build_actor_options(config.fleet)
    assert (options["num_gpus"], options["num_cpus"]) == (0.5, 2)
    assert options["resources"] == {"generator": 1}
    assert options["runtime_env"]["env_vars"] == {"OMP_NUM_THREADS": "3"}
    assert options["max_restarts"] == 0


def test_a_ray_of_its_own_never_gets_what_it_lacks(tmp_path: Path, caplog: Any) -> None:
    available = {"CPU": 2.0, "GPU": 1.0}
    _, config = resolve(tmp_path, "resources: [GPU=0.5]")
    check_resources(config.fleet, available)
    _, config = resolve(tmp_path, "resources: [GPU=1]")
    with pytest.raises(ProblemsFound, match="2 processes need 2 GPU, but Ray has 1"):
        check_resources(config.fleet, available)
    _, config = resolve(tmp_path, "resources: [GPU=1], address: auto")
    check_resources(config.fleet, available)
    assert "they wait until the cluster grows" in caplog.text


@pytest.mark.parametrize("text", ["GPU", "GPU=0", "GPU=-1", "=1", "GPU=1.", "GPU=a"])
def test_a_resource_has_an_amount(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProblemsFound, match="expected a resource and its amount"):
        resolve(tmp_path, f"resources: ['{text}']")


def test_weights_come_out_of_the_store_as_they_went_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store_transport, "BUCKET_BYTES", 30)
    store: list[Any] = []

    def put(bucket: Any) -> int:
        store.append(bucket)
        return len(store) - 1

    transport = ObjectStoreTransport(put, keep=2, ranks=RankGroup())
    weights = {
        "matrix": torch.arange(6.0).reshape(2, 3),
        "half": torch.tensor([0.1, 3.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "nothing": torch.zeros(0, 4),
        "larger than an object": torch.arange(30.0),
    }
    for version in (1, 2, 3):
        transport.publish(version, weights.items())
    assert transport.list_versions() == [2, 3] and len(store) == 9
    assert not transport.find_references(1)
    reader = ObjectStoreReader(store.__getitem__)
    reader.receive(3, transport.find_references(3))
    found = dict(reader.pull(3))
    assert list(found) == list(weights)
    for name, tensor in weights.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    # what is read is a copy: nobody changes the store's
    found["matrix"].zero_()
    assert torch.equal(dict(reader.pull(3))["matrix"], weights["matrix"])
    reader.receive(4, [])
    for gone in (3, 4):
        with pytest.raises(KeyError):
            next(reader.pull(gone))
