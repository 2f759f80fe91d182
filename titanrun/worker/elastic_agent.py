"""`python -m titanrun.worker.elastic_agent`: torch.distributed.run with own messages.

It reports rendezvous failures as problems.
"""

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

from titanrun.components.metrics.spec.console_stream import protect_stderr
from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.problems import problem_error

SHELL_SIGNAL_BASE = 128


def main(arguments: list[str]) -> int:
    """Run torch.distributed.run with its arguments.

    Return the exit code of the first failed worker of this machine, else 0.
    """
    protect_stderr()
    # the launcher blocks signals, and children inherit this
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # failed workers report the reason themselves
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
        message = (
            f"rendezvous of {config.min_nodes} machines at {config.rdzv_endpoint} failed, "
            f"or the connection was lost: {format_rendezvous_error(error)}"
        )
        hint = (
            "start the same command on each machine, and check that the endpoint is one of them "
            "and reachable from all"
        )
        problem = problem_error("usage", message, path=("launch", "rdzv_endpoint"), hint=hint)
        sys.stderr.write(render_problems_as_text(problem.problems))
        return problem.exit_code
    return 0


def format_rendezvous_error(error: Exception) -> str:
    """Return the first line of an error's message, or a description of the error."""
    if isinstance(error, RendezvousTimeoutError):
        return "some machines did not join in time"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
