"""Generators that wait for a trainer: their addresses, and the way of the weights to them."""

from pathlib import Path

import pytest

from tests.rl.parts import TEXT, write_recipe
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

ONE = "urls: ['tcp://10.0.0.2:1'], secret_file: fleet.secret"


def resolve(folder: Path, fleet: str, transport: str = "connection") -> None:
    overrides = [f"rl.fleet={{processes: 1, {fleet}}}", f"rl.sync.transport={transport}"]
    resolve_recipe(write_recipe(folder, TEXT), overrides, environment={})


def test_a_fleet_of_other_machines_is_accepted(tmp_path: Path) -> None:
    resolve(tmp_path, f"carrier: http, {ONE}")
    resolve(tmp_path, "carrier: http, urls: ['tcp://localhost:1']")


@pytest.mark.parametrize(
    ("fleet", "transport", "told"),
    [
        ("carrier: http", "connection", "the fleet has 1 process, but urls names none"),
        (
            "carrier: http, urls: ['tcp://[::1]:1', 'tcp://[::1]:1']",
            "connection",
            r"tcp://\[::1\]:1 is named 2 times",
        ),
        ("carrier: http, urls: ['http://10.0.0.2']", "connection", "expected tcp host and port"),
        (f"carrier: http, {ONE}", "file", "cannot read weights of the transport file"),
        (f"carrier: http, {ONE}", "object_store", "only actors of Ray read weights"),
        ("carrier: local", "connection", "only generators of titanrun fleet get weights"),
        ("carrier: ray", "connection", "actors of Ray cannot read weights"),
        ("carrier: http, urls: ['tcp://node-2:1']", "connection", "and there is no secret"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    tmp_path: Path, fleet: str, transport: str, told: str
) -> None:
    with pytest.raises(ProblemsFound, match=told):
        resolve(tmp_path, fleet, transport)
