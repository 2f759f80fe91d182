"""Rules about generators that `titanrun fleet` has started, for rl.fleet.carrier http."""

from collections import Counter
from collections.abc import Iterator

from titanrun.config.host_port import parse_tcp_url
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.rl.config import RlConfig

FLEET: DataPath = ("rl", "fleet")
URLS: DataPath = (*FLEET, "urls")
TRANSPORT: DataPath = ("rl", "sync", "transport")


def find_http_fleet(run: Recipe) -> RlConfig | None:
    """Return the rl section of a run with carrier http, None for any other run."""
    rl = run.rl
    return rl if rl is not None and rl.fleet.processes and rl.fleet.carrier == "http" else None


@rule("http-fleet-names-its-generators")
def http_fleet_names_its_generators(run: Recipe) -> Iterator[RuleViolation]:
    """Require one address in rl.fleet.urls for each of rl.fleet.processes with carrier http.

    A generator of `titanrun fleet` serves one trainer at a time, at one address: start as many as
    there are processes, and name each once.
    """
    rl = find_http_fleet(run)
    if rl is None:
        return
    count, urls = rl.fleet.processes, rl.fleet.urls
    if count != len(urls):
        yield RuleViolation(
            f"the fleet has {pluralize(count, 'process', 'processes')}, but urls names "
            + (pluralize(len(urls), "address", "addresses") if urls else "none"),
            ((*FLEET, "processes"), URLS) if urls else ((*FLEET, "carrier"), URLS),
            hint=f"use processes: {len(urls)}, or name each generator's address"
            if urls
            else "start titanrun fleet, and add rl.fleet.urls: [tcp://HOST:PORT]",
        )
    for place, number in Counter(map(parse_tcp_url, urls)).items():
        if number > 1:
            yield RuleViolation(
                f"{place.url} is named {number} times, and a generator serves one process",
                (URLS,),
                hint="name another generator",
            )


@rule("http-carries-weights-itself")
def http_carries_weights_itself(run: Recipe) -> Iterator[RuleViolation]:
    """Require rl.sync.transport connection with rl.fleet.carrier http, and only there.

    Generators of `titanrun fleet` may be on other machines, and get weights over the connection
    through which they get everything else. Other generators have no such connection.
    """
    rl = run.rl
    if rl is None:
        return
    uses_http, transport = find_http_fleet(run) is not None, rl.sync.transport
    paths: tuple[DataPath, ...] = (TRANSPORT, (*FLEET, "carrier"))
    if uses_http and transport not in ("connection", "object_store"):
        yield RuleViolation(
            f"generators of titanrun fleet cannot read weights of the transport {transport}",
            paths,
            hint="use rl.sync.transport: connection",
        )
    is_of_ray = rl.fleet.processes > 0 and rl.fleet.carrier == "ray"
    if not uses_http and not is_of_ray and transport == "connection":
        yield RuleViolation(
            "only generators of titanrun fleet get weights over a connection",
            paths,
            hint="set rl.fleet: {carrier: http} with processes and urls, or use shared_memory",
        )


@rule("http-generators-need-a-secret")
def http_generators_need_a_secret(run: Recipe) -> Iterator[RuleViolation]:
    """Require rl.fleet.secret_file for generators on other machines.

    Whoever reaches the port of a generator could use it, and whoever takes its place could answer
    for it. `titanrun fleet` makes the file; copy it to the trainer's machine.
    """
    rl = find_http_fleet(run)
    if rl is None or rl.fleet.secret_file is not None:
        return
    for index, place in enumerate(map(parse_tcp_url, rl.fleet.urls)):
        if not place.is_loopback:
            yield RuleViolation(
                f"other machines reach {place.url}, and there is no secret",
                ((*URLS, index), (*FLEET, "secret_file")),
                hint="set rl.fleet.secret_file: titanrun fleet makes the file",
            )
            return
