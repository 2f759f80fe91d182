"""`python -m titanrun.worker.commands.fleet RESOLVED LISTENER [SECONDS]`, for `titanrun fleet`.

It generates for trainers that connect to a bound socket, whose descriptor is LISTENER, and ends
after SECONDS without one.
"""

import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TextIO

from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.exit_codes import EXIT_FINISHED
from titanrun.config.host_port import HostPort
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.rank_env import RankInfo
from titanrun.distributed.spec.run_signals import handle_signals, list_stop_signals
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.rl.fleet.generator_server import GeneratorServer
from titanrun.rl.fleet.rollout_messages import RolloutMessages, respond_problem
from titanrun.rl.fleet.spec.secret_file import read_secret
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreReader
from titanrun.worker.build.generation_description import describe_generation, find_difference
from titanrun.worker.rollout_worker import open_worker
from titanrun.worker.worker_job import WorkerJob

# the trainer gets the last message of a generator that fails
LAST_MESSAGE_SECONDS = 5.0


def main() -> int:
    """Generate until a signal, and return the exit code."""
    resolved, descriptor, *idle = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    listener = socket.socket(fileno=int(descriptor))
    try:
        return serve_trainers(Path(resolved), listener, float(idle[0]) if idle else None)
    except ProblemsFound as error:
        sys.stderr.write(render_problems_as_text(error.problems))
        return error.exit_code


def serve_trainers(resolved: Path, listener: socket.socket, idle_seconds: float | None) -> int:
    """Build the generator, then serve one trainer after the other.

    Raises:
        ProblemsFound: the generator cannot be built, or a program of the recipe failed.
    """
    job = WorkerJob(resolved, resolved.read_text(encoding="utf-8"), RankInfo())
    recipe = load_resolved_text(job.resolved_text)
    (request_lines, requests), (response_lines, responses) = open_pipe(), open_pipe()
    server = build_generator_server(recipe, listener, requests, idle_seconds)
    messages = RolloutMessages(request_lines)
    with handle_signals(list_stop_signals(), lambda number, frame: server.stop()):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, list_stop_signals())
        worker = open_worker(job, 0, messages, responses, server.weights)
        messages.start(worker.end_soon)
        forwarding = threading.Thread(
            target=server.forward_responses, args=(response_lines,), daemon=True
        )
        forwarding.start()
        listener.listen()
        threading.Thread(target=server.serve, daemon=True).start()
        host, port = listener.getsockname()[:2]
        print(f"waiting for a trainer at {HostPort(host, port).url}", flush=True)
        try:
            worker.run()
        except ProblemsFound as error:
            respond_problem(error, responses)
            raise
        finally:
            responses.close()
            forwarding.join(LAST_MESSAGE_SECONDS)
            server.weights.close()
            worker.close()
    return EXIT_FINISHED


def build_generator_server(
    recipe: Recipe, listener: socket.socket, requests: TextIO, idle_seconds: float | None
) -> GeneratorServer:
    """Build the server of trainers that generate as this recipe does.

    Raises:
        ProblemsFound: the secret cannot be read.
    """
    assert recipe.rl is not None, "the command checks it"
    file, description = recipe.rl.fleet.secret_file, describe_generation(recipe)
    return GeneratorServer(
        listener,
        None if file is None else read_secret(Path(file)),
        lambda other: find_difference(description, other),
        ObjectStoreReader(lambda bucket: bucket),
        requests,
        idle_seconds,
    )


def open_pipe() -> tuple[TextIO, TextIO]:
    """Open a pipe within this process, and return its ends."""
    reading, writing = os.pipe()
    return os.fdopen(reading, encoding="utf-8"), os.fdopen(writing, "w", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
