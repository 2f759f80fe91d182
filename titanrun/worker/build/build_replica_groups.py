"""Builder of what a rank in one of several replica groups has beside a plain rank."""

from functools import partial
from typing import Any

from titanrun.components.data.dealt_dataloader import DealtDataLoader
from titanrun.components.metrics.metric_logger import MetricLogger
from titanrun.components.metrics.writer_metrics import WriterMetrics
from titanrun.config.problems import problem_error
from titanrun.distributed.determinism import get_rng_states, set_rng_states
from titanrun.distributed.replica_groups import ReplicaGroups
from titanrun.training.data_source import DataSource
from titanrun.training.replicas.group_checkpoints import GroupCheckpoints
from titanrun.training.replicas.group_engine import GroupEngine
from titanrun.training.replicas.group_loop import GroupTrainLoop
from titanrun.training.replicas.group_signals import GroupSignals
from titanrun.training.replicas.group_source import GroupSource
from titanrun.training.replicas.replica_session import ReplicaSession
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.synced_signals import SyncedSignals
from titanrun.worker.build.build_metrics import METRICS_FILE, build_metric_logger
from titanrun.worker.build.epochs_to_steps import get_num_steps
from titanrun.worker.build.source_parts import LoopParts, SourceParts
from titanrun.worker.worker_job import WorkerJob


def build_replica_session(
    parts: SourceParts, job: WorkerJob, signals: SignalRequests | SyncedSignals
) -> ReplicaSession:
    """Build the attempts of this group at steps, with all state that a returning group takes over.

    Raises:
        ProblemsFound: no launcher started the groups.
    """
    place, engine = job.rank_info, parts.engine
    if place.group is None or place.lighthouse is None:
        raise problem_error(
            "usage",
            "this process is in no replica group, but fault_tolerance.enable is true",
            path=("fault_tolerance", "enable"),
            hint="start the run with titanrun train, which starts the groups",
        )
    assert isinstance(engine, GroupEngine)
    groups = ReplicaGroups(parts.recipe.fault_tolerance, place, job.store)
    groups.register_state("tensors", engine.heal, engine.state_to_heal)
    groups.register_state(
        "progress", partial(load_progress, parts), partial(collect_progress, parts)
    )
    groups.register_state(
        "random",
        lambda states: set_rng_states(states, engine.device),
        lambda: get_rng_states(engine.device),
    )
    engine.session = ReplicaSession(
        groups,
        GroupSignals(signals),
        size=parts.recipe.fault_tolerance.group_size,
        device=engine.device,
        events=job.resolved_path.parent / "logs" / f"group-{place.group}.jsonl"
        if place.is_main_rank
        else None,
    )
    return engine.session


def collect_progress(parts: SourceParts) -> dict[str, Any]:
    """Return counters and the position in the data."""
    return {
        "train": parts.state.to_dict(),
        "steps_done": parts.engine.steps_done,
        "data": parts.dataloader.state_dict(),
    }


def load_progress(parts: SourceParts, state: dict[str, Any]) -> None:
    """Take over counters and the position in the data."""
    parts.state.load_dict(state["train"])
    parts.engine.steps_done = state["steps_done"]
    parts.dataloader.load_state_dict(state["data"])


def build_group_loop_parts(
    parts: SourceParts, job: WorkerJob, signals: SignalRequests | SyncedSignals
) -> LoopParts:
    """Build what ranks of several replica groups have in place of those of one."""
    assert isinstance(parts.source, DataSource) and isinstance(parts.dataloader, DealtDataLoader)
    session = build_replica_session(parts, job, signals)
    store, last_step = parts.checkpoints.store, get_num_steps(parts.recipe)
    source = GroupSource(
        source=parts.source,
        dataloader=parts.dataloader,
        session=session,
        has_run_ended=lambda: last_step in store.list_complete_steps(),
    )
    build = partial(
        GroupTrainLoop,
        session=session,
        source=source,
        signals=session.signals,
        checkpoints=GroupCheckpoints(parts.checkpoints, session),
    )
    return LoopParts(build, build_group_metrics(parts, job, session))


def build_group_metrics(
    parts: SourceParts, job: WorkerJob, session: ReplicaSession
) -> MetricLogger:
    """Build the logger of metrics, which writes the files of the run while this group does."""
    build = partial(build_metric_logger, parts.recipe, job, first_step=parts.state.step)
    metrics = WriterMetrics(
        build(writes_run=False),
        build,
        is_writer=lambda: session.is_writer,
        path=job.resolved_path.parent / METRICS_FILE,
    )
    if job.rank_info.is_main_rank:
        session.add_attempt_listener(metrics.write_missed_line)
    return metrics
