"""`titanrun serve`: a model behind OpenAI's HTTP interface.

A separate process with torch does the work.
"""

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import CommandParser
from titanrun.cli.generate import get_weight_source
from titanrun.cli.serve_vllm import check_vllm_options, serve_with_vllm
from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.config.host_port import is_loopback
from titanrun.config.problems import problem_error
from titanrun.launch.launch_env import get_environment
from titanrun.launch.model_process import run_model_process
from titanrun.launch.torch_requirement import require_torch
from titanrun.recipe.rundir.started_from import check_start_exists

SUMMARY = (
    "Answer requests over HTTP as OpenAI's interface does, with the model of a run, a checkpoint "
    "or a Hugging Face folder. Paths are /v1/models, /v1/chat/completions and "
    "/v1/completions, streamed or whole. One request is answered at a time, the others wait: it "
    "is for trying a model. For many users, --engine vllm exports the model and starts vLLM. "
    "Needs the extra serve, or vLLM."
)
EXAMPLES = """  titanrun serve runs/first
  titanrun serve models/llama --port 9000 --max-seq-len 4096
  titanrun serve runs/first --host 0.0.0.0 --api-key-env TITANRUN_KEY
  titanrun serve runs/lora --base                    lora, and lora-base without adapters
  titanrun serve runs/first --engine vllm            exports it, and starts vllm serve
  curl http://127.0.0.1:8000/v1/models"""

DEFAULT_QUEUE = 32
# scheme, host and port, as browsers send them
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+")


def run(arguments: list[str]) -> int:
    """Serve until a signal."""
    parser = build_serve_parser()
    options = parser.parse_args(arguments)
    require_torch()
    check_serve_options(options)
    key = None if options.api_key_env is None else get_environment()[options.api_key_env]
    if options.engine == "vllm":
        check_vllm_options(options)
        serve_with_vllm(options, get_served_name(options), key)
    job = {
        "models": list_served_models(options),
        "host": options.host,
        "port": options.port,
        "queue": DEFAULT_QUEUE if options.queue is None else options.queue,
        "max_concurrent": options.max_concurrent or 1,
        "key": key,
        "origins": options.cors,
        "max_seq_len": options.max_seq_len,
        "is_quiet": options.quiet,
    }
    return run_model_process("serve", job)


def build_serve_parser() -> CommandParser:
    """Build the parser of the command line."""
    parser = CommandParser("serve", SUMMARY, EXAMPLES)
    parser.add_argument("folder", help="a checkpoint, a run directory, or a Hugging Face folder")
    parser.add_argument(
        "--base",
        action="store_true",
        help="also serve the model that the run started from, without its adapters, as NAME-base",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (127.0.0.1: this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="port (8000); 0: a free one"
    )
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="environment variable with the key that clients must send",
    )
    parser.add_argument("--no-key", action="store_true", help="let other machines in without a key")
    parser.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin, such as http://localhost:3000, read answers; '*': of any; "
        "may be repeated",
    )
    add_capacity_options(parser)
    parser.add_moved_option()
    parser.add_argument("--name", help="name of the model for clients; default: the folder's")
    return parser


def add_capacity_options(parser: CommandParser) -> None:
    """Add the options of what generates, and of how much at once."""
    parser.add_argument(
        "--engine",
        choices=("titanrun", "vllm"),
        default="titanrun",
        help="what generates (titanrun); vllm: the program vllm, for many users",
    )
    parser.add_argument(
        "--max-concurrent",
        type=int,
        metavar="N",
        help="most requests that are answered at a time (1; vllm's own default), with one copy of "
        "the weights",
    )
    parser.add_argument(
        "--queue",
        type=int,
        metavar="N",
        help=f"most requests that wait ({DEFAULT_QUEUE}); more get the status 503",
    )
    parser.add_argument(
        "--max-seq-len",
        type=int,
        metavar="N",
        help="most tokens of a prompt with its reply; default: what the model supports",
    )


def list_served_models(options: Namespace) -> list[dict[str, Any]]:
    """Return where the weights of the models are, with their names."""
    model = {
        **get_weight_source(options.folder),
        "name": get_served_name(options),
    }
    return [model, build_base_source(options.folder, model)] if options.base else [model]


def build_base_source(named: str, model: dict[str, Any]) -> dict[str, Any]:
    """Return the model that a run started from, as a second one beside the trained one.

    Raises:
        ProblemsFound: A Hugging Face folder is named, which has no run.
    """
    if "checkpoint" not in model:
        raise problem_error(
            "usage", f"--base needs a run, and '{named}' is none", hint="omit --base"
        )
    check_start_exists(parse_storage_path(model["checkpoint"]), is_base=True)
    return {**model, "name": f"{model['name']}-base", "is_base": True}


def check_serve_options(options: Namespace) -> None:
    """Raise a usage problem for options out of range, and for an open door."""
    wrong = {
        "--port must be 0 to 65535": not 0 <= options.port <= 65535,
        "--queue must be 0 or more": options.queue is not None and options.queue < 0,
        "--max-concurrent must be 1 or more": options.max_concurrent is not None
        and options.max_concurrent < 1,
        "--cors must be an origin, such as http://localhost:3000, or '*'": not all(
            ORIGIN.fullmatch(origin) for origin in options.cors
        ),
        "--max-seq-len must be 2 or more": options.max_seq_len is not None
        and options.max_seq_len < 2,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise problem_error("usage", message)
    if options.api_key_env is not None and not get_environment().get(options.api_key_env):
        raise problem_error(
            "usage",
            f"the environment variable {options.api_key_env} is not set",
            hint=f"export {options.api_key_env}=...",
        )
    if options.api_key_env is None and not options.no_key and not is_loopback(options.host):
        raise problem_error(
            "usage",
            f"--host {options.host} lets other machines in, and there is no key",
            hint="use --api-key-env NAME, or --no-key to allow it",
        )


def get_served_name(options: Namespace) -> str:
    """Return the name of the model for clients."""
    return str(options.name or get_model_name(options.folder))


def get_model_name(named: str) -> str:
    """Return the name of a model: that of its folder, of a checkpoint that of its run."""
    folder = Path(named).absolute()
    if folder.name.startswith("step-") and folder.parent.name == "checkpoint":
        folder = folder.parents[1]
    return folder.name
