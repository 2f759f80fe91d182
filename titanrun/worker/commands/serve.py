"""`python -m titanrun.worker.commands.serve`: answer requests over HTTP, for `titanrun serve`.

The job is a JSON object in the file whose descriptor is the first argument.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.exit_codes import EXIT_INTERRUPTED
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.worker.serving.chat_model import load_chat_models
from titanrun.worker.serving.generation_queue import GenerationQueue
from titanrun.worker.worker_failures import classify_failure

MISSING = "serving needs starlette and uvicorn, which are not installed"


def main() -> int:
    """Serve until a signal, and return the exit code."""
    with os.fdopen(int(sys.argv[1])) as file:
        job = json.load(file)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        return serve(job)
    except ProblemsFound as error:
        sys.stderr.write(render_problems_as_text(error.problems))
        return error.exit_code
    except (OSError, MemoryError) as error:
        failure = classify_failure(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def serve(job: Mapping[str, Any]) -> int:
    """Load the model and answer requests until a signal.

    Raises:
        ProblemsFound: The model cannot be loaded, or the address cannot be used.
    """
    try:
        # an extra: the other commands do without them
        uvicorn = import_module("uvicorn")
        openai_app = import_module("titanrun.worker.serving.openai_app")
    except ImportError:
        raise problem_error("usage", MISSING, hint='pip install "titanrun[serve]"') from None
    sources = [{**source, "max_seq_len": job["max_seq_len"]} for source in job["models"]]
    models = load_chat_models(sources, num_threads=job["max_concurrent"])
    queue = GenerationQueue(job["queue"], job["max_concurrent"])
    app = openai_app.OpenAIApp(models, queue, job["key"], job["origins"]).build()
    config = uvicorn.Config(
        app, host=job["host"], port=job["port"], log_level="warning", timeout_graceful_shutdown=5
    )
    try:
        socket = config.bind_socket()
    except SystemExit:
        # uvicorn has logged the reason
        address = f"{job['host']}:{job['port']}"
        raise problem_error(
            "usage", f"cannot listen at {address}", hint="use another --port; 0 takes a free one"
        ) from None
    # from here on requests wait until they are answered
    socket.listen()
    host, port = socket.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/v1"
    names = " and ".join(model.name for model in models)
    print(f"{names} {'answers' if len(models) == 1 else 'answer'} at {address}", flush=True)
    if not job["is_quiet"]:
        key = "" if job["key"] is None else ' -H "Authorization: Bearer KEY"'
        print(f"next: curl {address}/models{key}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[socket])
    return 0


if __name__ == "__main__":
    sys.exit(main())
