"""`titanrun fleet`: a generator that waits for the trainer of an RL run, with torch."""

import math
from argparse import Namespace
from pathlib import Path

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.consent import ask_about_plugin_files, request_consent
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.hub_models import fetch_recipe_models
from titanrun.cli.messages import print_note
from titanrun.config.host_port import HostPort, parse_host_port
from titanrun.config.problems import problem_error
from titanrun.launch.generator_process import bind_listener, exec_generator
from titanrun.launch.launch_env import get_environment
from titanrun.launch.torch_requirement import require_torch
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.rl.fleet.config import FleetConfig
from titanrun.rl.fleet.spec.secret_file import create_secret_file, read_secret

SUMMARY = (
    "Generate completions for the trainer of an RL run, on this or another machine. The recipe "
    "is that of the run, with rl.fleet.carrier http. The process waits for a trainer, serves one "
    "at a time, outlives it and waits for the next, until Ctrl-C or SIGTERM. Trainer and "
    "generator prove to each other that they have the secret in rl.fleet.secret_file, which this "
    "command makes if it is absent; without one only this machine can connect. What they send is "
    "not encrypted."
)
EXAMPLES = """  titanrun fleet rl.yaml --listen 127.0.0.1:7100
  titanrun fleet rl.yaml --listen 10.0.0.2:7100 rl.fleet.secret_file=fleet.secret
  titanrun fleet rl.yaml --listen 10.0.0.2:7100 --idle-timeout 3600"""
DEFAULT_FOLDER = Path("runs") / "fleet"


def run(arguments: list[str]) -> int:
    """Listen until a signal."""
    overrides, others = split_overrides(arguments)
    options = build_fleet_parser().parse_args(others)
    place = check_fleet_options(options)
    ask_about_plugin_files()
    require_torch()
    fetch_recipe_models(options.recipe, overrides, options)
    resolved = resolve_recipe(options.recipe, overrides, environment=get_environment())
    fleet = get_fleet(resolved)
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    request_consent([resolved], options, ["fleet", *arguments])
    prepare_secret(fleet, place, options)
    listener = bind_listener(place)
    port = listener.getsockname()[1]
    folder = Path(options.folder or DEFAULT_FOLDER / f"{resolved.run.name}-{port}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESOLVED).write_text(resolved.text, encoding="utf-8")
    threads = {"OMP_NUM_THREADS": str(fleet.threads)}
    environment = {**get_environment(), **threads}
    exec_generator(folder / RESOLVED, listener, options.idle_timeout, environment)


def build_fleet_parser() -> CommandParser:
    """Build the parser of the command line."""
    parser = CommandParser("fleet", SUMMARY, EXAMPLES)
    parser.add_argument("recipe", help="the recipe of the run")
    parser.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="address of this machine to listen at; port 0: a free one",
    )
    parser.add_argument(
        "--idle-timeout",
        type=float,
        metavar="SECONDS",
        help="end after so long without a trainer; default: never",
    )
    parser.add_argument(
        "--folder",
        metavar="DIR",
        help=f"folder of its recipe and logs ({DEFAULT_FOLDER}/NAME-PORT)",
    )
    parser.add_trust_option()
    parser.allow_overrides()
    return parser


def check_fleet_options(options: Namespace) -> HostPort:
    """Return where to listen.

    Raises:
        ProblemsFound: an option has no useful value.
    """
    idle = options.idle_timeout
    if idle is not None and not 0 < idle < math.inf:
        raise problem_error("usage", "--idle-timeout must be a number of seconds above 0")
    try:
        return parse_host_port(options.listen)
    except ValueError:
        raise problem_error(
            "usage",
            f"--listen must be HOST:PORT, not {options.listen}",
            hint="--listen 127.0.0.1:7100",
        ) from None


def get_fleet(resolved: Resolved) -> FleetConfig:
    """Return the fleet of a recipe.

    Raises:
        ProblemsFound: it has none whose generators wait for a trainer.
    """
    rl = resolved.run.rl
    if rl is None or not rl.fleet.processes or rl.fleet.carrier != "http":
        raise problem_error(
            "usage",
            "the recipe has no generators that wait for a trainer",
            path=("rl", "fleet"),
            hint="set rl.fleet: {processes: 1, carrier: http, urls: [tcp://HOST:PORT]}",
        )
    return rl.fleet


def prepare_secret(fleet: FleetConfig, place: HostPort, options: Namespace) -> None:
    """Make the secret if it is absent, and check it.

    Raises:
        ProblemsFound: other machines reach the address, and the recipe names no secret; or it
            cannot be used.
    """
    if fleet.secret_file is None:
        if not place.is_loopback:
            raise problem_error(
                "usage",
                f"other machines reach {place}, and there is no secret",
                path=("rl", "fleet", "secret_file"),
                hint="add rl.fleet.secret_file=FILE; it is made if it is absent",
            )
        return
    path = Path(fleet.secret_file)
    if create_secret_file(path):
        print_note(
            options, f"secret: {path.absolute()} (copy it to the trainer's machine, mode 600)"
        )
    read_secret(path)
