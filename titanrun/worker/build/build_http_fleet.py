"""Builder of a fleet whose generators `titanrun fleet` has started."""

import hashlib
import platform
from pathlib import Path

from titanrun.config.host_port import parse_tcp_url
from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.rl.config import RlConfig
from titanrun.rl.fleet.http_process import HttpProcess
from titanrun.rl.fleet.spec.secret_file import read_secret
from titanrun.rl.fleet.weight_frames import copy_bucket
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreTransport
from titanrun.worker.build.generation_description import describe_generation
from titanrun.worker.worker_job import WorkerJob


def build_connection_transport(config: RlConfig) -> ObjectStoreTransport:
    """Build the trainer's side of the transfer of weights: they wait here until they are sent."""
    return ObjectStoreTransport(
        copy_bucket, keep=config.sync.keep_versions, ranks=get_default_rank_group()
    )


def build_http_processes(
    config: RlConfig, job: WorkerJob, transport: ObjectStoreTransport
) -> list[HttpProcess]:
    """Build the processes of a fleet, one for each address.

    Raises:
        ProblemsFound: the secret cannot be read.
    """
    file, recipe = config.fleet.secret_file, load_resolved_text(job.resolved_text)
    secret = None if file is None else read_secret(Path(file))
    folder = f"{platform.node()}:{job.resolved_path.parent.absolute()}"
    run = hashlib.sha256(folder.encode()).hexdigest()
    return [
        HttpProcess(
            number=number,
            place=parse_tcp_url(url),
            secret=secret,
            description=describe_generation(recipe),
            run=run,
            find_weights=transport.find_references,
            log_file=job.resolved_path.parent / "logs" / f"generator-{number}.log",
            starts_left=config.fleet.max_restarts + 1,
        )
        for number, url in enumerate(config.fleet.urls)
    ]
