"""`titanrun lsp`: language server of recipes for editors, over stdin and stdout."""

import sys
from typing import BinaryIO, cast

from titanrun.cli.arguments import CommandParser
from titanrun.config.problems import problem_error
from titanrun.config.version import VERSION
from titanrun.launch.launch_env import get_environment
from titanrun.launch.torch_requirement import get_install_name

SUMMARY = (
    "Language server of recipes for editors: the problems that `titanrun validate` finds while "
    "you type, descriptions, completion, corrections and go to definition. An editor starts it; "
    "messages go over stdin and stdout."
)
EXAMPLES = """  titanrun lsp     as the command of a language server in the settings of an editor"""


def run(arguments: list[str]) -> int:
    """Serve until the client ends the session; 1 if it leaves without a shutdown."""
    parser = CommandParser("lsp", SUMMARY, EXAMPLES)
    parser.add_argument(
        "--stdio", action="store_true", help="the only way of communication, and the default"
    )
    parser.parse_args(arguments)
    try:
        from titanrun.lsp.server import build_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise problem_error(
            "usage",
            "titanrun lsp needs pygls",
            hint=f'install it: pip install "{get_install_name("lsp")}"',
        ) from None
    server = build_server(VERSION, get_environment())
    # what recipes and plug-ins print must not reach the protocol
    protocol = sys.__stdout__
    sys.stdout = sys.stderr
    server.start_io(stdout=cast(BinaryIO, protocol.buffer) if protocol else None)
    return 0 if server.is_shut_down else 1
