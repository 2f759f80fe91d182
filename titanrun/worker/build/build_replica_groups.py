"""Builder of what a rank in one of several replica groups has beside a plain rank."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from titanrun.components.data.dealt_dataloader import DealtDataLoader
from titanrun.components.metrics.metric_logger import MetricLogger
from titanrun.components.metrics.writer_metrics import WriterMetrics
from titanrun.config.problems import problem_error
from titanrun.distributed.determinism import get_rng_states, set_rng_states
from titanrun.distributed.replica_groups import ReplicaGroups
from titanrun.distributed.semi_sync import SemiSync
from titanrun.training.data_source import DataSource
from titanrun.training.replicas.group_checkpoints import GroupCheckpoints
from titanrun.training.replicas.group_engine import GroupEngine
from titanrun.training.replicas.group_loop import GroupTrainLoop, RetryingTrainLoop
from titanrun.training.replicas.group_session import GROUPS_OF_LAYOUT, GroupSession
from titanrun.training.replicas.group_signals import GroupSignals
from titanrun.training.replicas.group_source import GroupSource
from titanrun.training.replicas.healed_engine import HealedEngine
from titanrun.training.replicas.replica_session import ReplicaSession
from titanrun.training.replicas.sync_session import SyncSession
from titanrun.training.replicas.synced_engine import SyncedEngine
from titanrun.training.replicas.synced_source import SyncedSource
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.synced_signals import SyncedSignals
from titanrun.training.train_hook import StepSource
from titanrun.worker.build.build_metrics import METRICS_FILE, build_metric_logger
from titanrun.worker.build.epochs_to_steps import get_num_steps
from titanrun.worker.build.source_parts import LoopParts, SourceParts
from titanrun.worker.worker_job import WorkerJob


def build_groups(parts: SourceParts, job: WorkerJob) -> ReplicaGroups:
    """Build the communication with the other groups, and what one that returns takes over.

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
    assert isinstance(engine, HealedEngine)
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
    return groups


def locate_events(job: WorkerJob) -> Path | None:
    """Return the file of a group's events on its first rank, None on others."""
    if not job.rank_info.is_main_rank:
        return None
    return job.resolved_path.parent / "logs" / f"group-{job.rank_info.group}.jsonl"


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
    store, last_step = parts.checkpoints.store, get_num_steps(parts.recipe)
    groups, requests = build_groups(parts, job), GroupSignals(signals)
    build = (
        build_shared_steps
        if parts.recipe.fault_tolerance.semi_sync_method is None
        else build_synced_steps
    )
    steps = build(
        parts,
        groups,
        requests,
        locate_events(job),
        lambda: last_step in store.list_complete_steps(),
    )
    return LoopParts(
        partial(
            steps.loop,
            session=steps.session,
            source=steps.source,
            signals=requests,
            checkpoints=steps.checkpoints,
        ),
        build_group_metrics(parts, job, steps.session),
    )


@dataclass(frozen=True, slots=True)
class GroupSteps:
    """Loop of a group with the parts that depend on how often the groups agree."""

    loop: type[GroupTrainLoop]
    session: GroupSession
    source: StepSource
    checkpoints: GroupCheckpoints


def build_shared_steps(
    parts: SourceParts,
    groups: ReplicaGroups,
    signals: GroupSignals,
    events: Path | None,
    has_run_ended: Callable[[], bool],
) -> GroupSteps:
    """Build the parts of groups that agree on every step."""
    engine, source, dataloader = parts.engine, parts.source, parts.dataloader
    assert isinstance(engine, GroupEngine) and isinstance(dataloader, DealtDataLoader)
    assert isinstance(source, DataSource)
    session = ReplicaSession(
        groups,
        signals,
        size=parts.recipe.fault_tolerance.group_size,
        device=engine.device,
        events=events,
        saved_groups=find_saved_groups(parts),
    )
    engine.session = session
    return GroupSteps(
        RetryingTrainLoop,
        session,
        GroupSource(
            source=source, dataloader=dataloader, session=session, has_run_ended=has_run_ended
        ),
        GroupCheckpoints(parts.checkpoints, session),
    )


def find_saved_groups(parts: SourceParts) -> int | None:
    """Return how many groups took part in the step that was loaded, None if none was."""
    layout = parts.checkpoints.loaded_layout
    return None if layout is None else int(layout.get(GROUPS_OF_LAYOUT, 1))


def build_synced_steps(
    parts: SourceParts,
    groups: ReplicaGroups,
    signals: GroupSignals,
    events: Path | None,
    has_run_ended: Callable[[], bool],
) -> GroupSteps:
    """Build the parts of groups that sync weights every few steps."""
    engine, source, dataloader = parts.engine, parts.source, parts.dataloader
    assert isinstance(engine, SyncedEngine) and isinstance(dataloader, DealtDataLoader)
    assert isinstance(source, DataSource)
    config = parts.recipe.fault_tolerance
    session = SyncSession(groups, signals, parts.state, config=config, events=events)
    sync = SemiSync(
        config,
        session,
        parameters=engine.trained_parameters,
        modules=parts.recipe.model.module_names(),
        outer_momentum=engine.outer_momentum,
    )
    groups.register_state("synced", sync.load_synced_weights, sync.read_synced_weights)
    if config.semi_sync_method == "diloco":
        engine.synced_weights = sync.read_synced_weights
    return GroupSteps(
        GroupTrainLoop,
        session,
        SyncedSource(
            source=source,
            dataloader=dataloader,
            session=session,
            sync=sync,
            engine=engine,
            num_groups=config.group_size,
            has_run_ended=has_run_ended,
        ),
        GroupCheckpoints(parts.checkpoints, session, engine.use_synced_weights),
    )


def build_group_metrics(parts: SourceParts, job: WorkerJob, session: GroupSession) -> MetricLogger:
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
