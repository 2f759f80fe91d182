"""`python -m titanrun.worker.agent`: torch.distributed.run, which says in titanrun's words why machines did not meet."""

import logging
import signal
import sys

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from titanrun.config.problems import fail
from titanrun.config.render import render_text

SHELL_SIGNAL_BASE = 128


def main(arguments: list[str]) -> int:
    """Takes the arguments of torch.distributed.run. Returns the exit code of the worker of this machine that failed first, else 0."""
    # the launcher holds them back, which its children inherit
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # why a worker failed it says itself
    logging.disable(logging.CRITICAL)
    options = parse_args(arguments)
    config, program, program_arguments = config_from_args(options)
    try:
        elastic_launch(config=config, entrypoint=program)(*program_arguments)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return SHELL_SIGNAL_BASE - code if code < 0 else code
    except SignalException as error:
        return SHELL_SIGNAL_BASE + int(error.sigval)
    except (RendezvousError, DistError, TimeoutError) as error:
        message = f"{config.min_nodes} machines do not meet at {config.rdzv_endpoint}, or lose each other: {reason_of(error)}"
        help = "start the same command on each, and see that the endpoint is one of them and reachable from all"
        problem = fail("usage", message, path=("launch", "rdzv_endpoint"), help=help)
        sys.stderr.write(render_text(problem.problems))
        return problem.exit_code
    return 0


def reason_of(error: Exception) -> str:
    """The first line of what an error says, in our words where it says nothing."""
    if isinstance(error, RendezvousTimeoutError):
        return "some have not come in time"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
