"""Rules about replica groups."""

from collections.abc import Callable, Iterator

from titanrun.components.losses.config import ChunkedCrossEntropyConfig, CrossEntropyConfig
from titanrun.components.optimizers.config import ScheduleFreeAdamWConfig
from titanrun.config.problems import DataPath
from titanrun.config.tree import format_path
from titanrun.config.types import AUTO
from titanrun.distributed.fault_tolerance_config import LIGHTHOUSE_EXAMPLE
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.launch.config import LocalLaunchConfig, SlurmLaunchConfig
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rank_rule, rule
from titanrun.recipe.rules.streams import iter_streams

ENABLE: DataPath = ("fault_tolerance", "enable")
GROUP_SIZE: DataPath = ("fault_tolerance", "group_size")
LIGHTHOUSE: DataPath = ("fault_tolerance", "lighthouse")
REPLICA_ID: DataPath = ("fault_tolerance", "replica_id")
BATCH: DataPath = ("training", "global_batch_size")
GROUP_LAUNCHES = (LocalLaunchConfig, SlurmLaunchConfig, KubernetesLaunchConfig)
LOSSES = (CrossEntropyConfig, ChunkedCrossEntropyConfig)

# settings that replica groups are not built for, whether a recipe has them, and what to set instead
Unbuilt = tuple[DataPath, Callable[[Recipe], bool], str]
UNBUILT: tuple[Unbuilt, ...] = (
    (("kind",), lambda run: run.kind not in ("pretrain", "sft"), "use pretrain or sft"),
    (("comm", "mode"), lambda run: run.comm.mode != "default", "use default"),
    (
        ("model", "name"),
        lambda run: run.model.modality != "tokens" or bool(run.model.count_routed_experts()),
        "use a dense language model",
    ),
    (("converters",), lambda run: bool(run.converters), "remove them"),
    (
        ("loss", "name"),
        lambda run: type(run.loss) not in LOSSES or run.loss.mtp_loss_weight is not None,
        "use cross_entropy or chunked_cross_entropy, without mtp_loss_weight",
    ),
    (
        ("optimizer", "name"),
        lambda run: isinstance(run.optimizer, ScheduleFreeAdamWConfig),
        "use adamw",
    ),
    (
        ("optimizer", "early_step_in_backward"),
        lambda run: bool(getattr(run.optimizer, "early_step_in_backward", False)),
        "set it to false: gradients are summed over the groups before the update",
    ),
    (
        ("parallelism", "data_parallel_replicate_degree"),
        lambda run: run.parallelism.data_parallel_replicate_degree > 1,
        "set it to 1: the groups are the copies of the weights",
    ),
    (
        ("parallelism", "pipeline_parallel_degree"),
        lambda run: run.parallelism.pipeline_parallel_degree > 1,
        "set it to 1",
    ),
    (
        ("training", "dataset"),
        lambda run: any(iter_streams(run)),
        "set streaming: false",
    ),
    (
        ("training", "dataloader", "num_workers"),
        lambda run: run.training.dataloader.num_workers not in (0, AUTO),
        "set it to 0: a group's share of a step is known when the step begins",
    ),
    (
        ("checkpoint", "last_save_in_hf"),
        lambda run: run.checkpoint.last_save_in_hf,
        "set it to false, and use titanrun checkpoint export",
    ),
    (("guard", "non_finite"), lambda run: run.guard.non_finite == "rollback", "use stop or skip"),
    (
        ("guard", "replay_interval"),
        lambda run: run.guard.replay_interval is not None,
        "set it to null",
    ),
    (("metrics", "samples", "prompts"), lambda run: bool(run.metrics.samples.prompts), "remove it"),
    (
        ("metrics", "save_for_all_ranks"),
        lambda run: run.metrics.save_for_all_ranks,
        "set it to false",
    ),
    (
        ("profiling", "enable_profiling"),
        lambda run: run.profiling.enable_profiling,
        "set it to false",
    ),
    (
        ("profiling", "enable_memory_snapshot"),
        lambda run: run.profiling.enable_memory_snapshot,
        "set it to false",
    ),
)


@rule("replica-groups-are-built-for-it")
def replica_groups_are_built_for_it(run: Recipe) -> Iterator[RuleViolation]:
    """Reject settings that replica groups are not built for in this version.

    A returning group takes over weights, optimizer state, counters and random states, and a step
    is dealt to the groups when it begins. Some settings keep further state, or read ahead.
    """
    if not run.fault_tolerance.enable:
        return
    for path, is_set, hint in UNBUILT:
        if is_set(run):
            yield RuleViolation(
                f"replica groups are not built for this {format_path(path)}",
                (path, ENABLE),
                hint=hint,
                code="not-built",
            )


@rule("replica-groups-are-on-one-machine")
def replica_groups_are_on_one_machine(run: Recipe) -> Iterator[RuleViolation]:
    """Require each replica group on one machine, and a launch that starts groups.

    The launcher of a machine starts its groups and what has failed: all of the run with their
    lighthouse, or with fault_tolerance.replica_id one. A job of Slurm has a node for each group, on
    Kubernetes each group is a Job. A task of SkyPilot cannot lose a machine and go on.
    """
    if not run.fault_tolerance.enable:
        return
    if not isinstance(run.launch, GROUP_LAUNCHES):
        yield RuleViolation(
            f"launch {run.launch.name} does not start replica groups",
            (("launch", "name"), ENABLE),
            hint="use launch: slurm or kubernetes, or launch: local, on several machines with "
            "fault_tolerance.replica_id, or set fault_tolerance.enable: false",
            code="not-built",
        )
    elif run.launch.num_nodes > 1:
        yield RuleViolation(
            f"a replica group is on one machine, but launch.nnodes is {run.launch.num_nodes}",
            (("launch", "nnodes"), ENABLE),
            hint="set launch.nnodes: 1; a job of Slurm or Kubernetes has a machine for each group, "
            "and with launch: local several machines have a group each with "
            "fault_tolerance.replica_id",
            code="not-built",
        )


@rule("replica-groups-meet-at-a-lighthouse")
def replica_groups_meet_at_a_lighthouse(run: Recipe) -> Iterator[RuleViolation]:
    """Require a number and a lighthouse of a group that has a machine of its own.

    The command on each machine says which group it starts (replica_id), and where all of them meet
    (lighthouse). Without both, one command starts all groups on this machine, and a lighthouse.
    """
    config = run.fault_tolerance
    is_paired = (config.replica_id is None) == (config.lighthouse is None)
    if not config.enable or run.launch.is_submitted or is_paired:
        return
    if config.lighthouse is None:
        yield RuleViolation(
            f"fault_tolerance.replica_id is {config.replica_id}, but there is no lighthouse",
            (REPLICA_ID, LIGHTHOUSE),
            hint=f"set fault_tolerance.lighthouse, such as {LIGHTHOUSE_EXAMPLE}, or remove "
            "replica_id",
        )
    else:
        yield RuleViolation(
            "fault_tolerance.lighthouse is set, but not which group this machine starts",
            (LIGHTHOUSE, REPLICA_ID),
            hint="set fault_tolerance.replica_id, from 0, or remove lighthouse",
        )


@rule("submitted-replica-groups-are-numbered")
def submitted_replica_groups_are_numbered(run: Recipe) -> Iterator[RuleViolation]:
    """Reject a number or a lighthouse of replica groups that a job starts.

    A job of Slurm or Kubernetes starts all groups and a lighthouse, and tells each group both.
    """
    config = run.fault_tolerance
    if not config.enable or not run.launch.is_submitted:
        return
    for path, value in ((REPLICA_ID, config.replica_id), (LIGHTHOUSE, config.lighthouse)):
        if value is not None:
            yield RuleViolation(
                f"launch {run.launch.name} starts all replica groups and their lighthouse, but "
                f"{format_path(path)} is {value}",
                (path, ("launch", "name")),
                hint="remove it",
            )


@rule("replica-groups-need-checkpoints")
def replica_groups_need_checkpoints(run: Recipe) -> Iterator[RuleViolation]:
    """Require checkpoints in the foreground with replica groups.

    A group that returns starts from the newest one, and learns from the last one that the run has
    ended. One group writes while the others wait for the next step.
    """
    if not run.fault_tolerance.enable:
        return
    config = run.checkpoint
    for name, is_wrong, hint in (
        ("enable", not config.enable, "set checkpoint.enable: true"),
        ("load_only", config.load_only, "set it to false"),
        ("create_seed_checkpoint", config.create_seed_checkpoint, "set it to false"),
        ("async_mode", config.async_mode != "disabled", "set checkpoint.async_mode: disabled"),
    ):
        if is_wrong:
            yield RuleViolation(
                f"replica groups need saved checkpoints, but checkpoint.{name} is "
                f"{str(getattr(config, name)).lower()}",
                (("checkpoint", name), ENABLE),
                hint=hint,
            )
            return


@rank_rule("replica-groups-share-the-batch")
def replica_groups_share_the_batch(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require a piece of the global batch for each replica group.

    A piece is one forward pass of a group: local_batch_size sequences on each of its data-parallel
    ranks. The pieces of a step are dealt to the groups that take part in it. Raise
    global_batch_size, or lower local_batch_size or group_size.
    """
    if not run.fault_tolerance.enable:
        return
    degrees = resolve_parallel_dims(run.parallelism, 1 if ranks is None else ranks)
    if degrees is None:
        return
    per_piece = run.training.local_batch_size * degrees.dp_size
    batch = run.training.global_batch_size
    pieces = 1 if batch == AUTO else int(batch) // per_piece
    groups = run.fault_tolerance.group_size
    if pieces < groups:
        yield RuleViolation(
            f"global_batch_size {batch} has {pieces} of the {groups} forward passes of {per_piece} "
            "sequences that the replica groups need",
            (BATCH, GROUP_SIZE, ("training", "local_batch_size")),
            hint=f"set training.global_batch_size to {per_piece * groups} or a multiple of "
            f"{per_piece} above it",
        )


@rule("replica-groups-trust-this-machine", level="environment")
def replica_groups_trust_this_machine(run: Recipe) -> Iterator[RuleViolation]:
    """Warn that the servers of replica groups check nobody.

    torchft has no authentication: every process that reaches the lighthouse and the groups can stop
    the run, or send it gradients. The groups listen on 127.0.0.1 only, or on the one interface that
    leads to fault_tolerance.lighthouse. Weights go to a group that returns at an address that holds
    a random token, and are read as tensors, never as code.
    """
    config = run.fault_tolerance
    if not config.enable:
        return
    if config.lighthouse is None and not run.launch.is_submitted:
        where, who = "on 127.0.0.1", "every user of this machine"
        hint = "train where you trust all users; see SECURITY.md"
    else:
        where = "on the interface that leads to the lighthouse"
        who = "everybody in its network"
        hint = "use a private network of machines that you trust; see SECURITY.md"
    yield RuleViolation(
        f"the servers of replica groups listen {where} without authentication: {who} can disturb "
        "the run",
        (ENABLE,) if config.lighthouse is None else (LIGHTHOUSE, ENABLE),
        hint=hint,
        code="usage",
        severity="warning",
    )
