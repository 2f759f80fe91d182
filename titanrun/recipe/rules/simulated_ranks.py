"""Rules about simulated ranks."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.parallel_dims import get_parallelism_path
from titanrun.recipe.rules.registry import RuleViolation, rank_rule, rule


@rank_rule("simulation-needs-ranks")
def simulation_needs_ranks(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require a number of ranks with comm.mode fake_backend.

    It simulates many ranks in one process. Set their number in launch.nproc_per_node or with
    --nproc.
    """
    if run.comm.mode != "default" and run.launch.world_size is None:
        paths = (
            ("comm", "mode"),
            ("launch", "nproc_per_node"),
            get_parallelism_path("data_parallel_shard_degree"),
        )
        yield RuleViolation(
            f"comm.mode {run.comm.mode} needs a number of ranks to simulate",
            paths,
            hint="set launch.nproc_per_node",
        )


@rule("simulation-saves-nothing")
def simulation_saves_nothing(run: Recipe) -> Iterator[RuleViolation]:
    """Require checkpoints and validation to be off with simulated ranks.

    Messages between ranks that comm.mode simulates are discarded: the weights are meaningless, and
    the other ranks' parts do not exist, so there is nothing to save and nothing to evaluate on
    held-out data. Set checkpoint.enable and validation.enable to false.
    """
    if run.comm.mode == "default":
        return
    for section in ("checkpoint", "validation"):
        if getattr(run, section).enable:
            message = f"{section}.enable is true, but simulated ranks produce no results"
            yield RuleViolation(
                message,
                (("comm", "mode"), (section, "enable")),
                hint=f"set {section}.enable: false",
            )


@rule("simulation-has-one-stage")
def simulation_has_one_stage(run: Recipe) -> Iterator[RuleViolation]:
    """Require pipeline_parallel_degree 1 with simulated ranks.

    Before the first step the stages of a pipeline exchange the shapes of their activations, and
    ranks that comm.mode simulates send nothing. `titanrun plan` estimates what a pipeline needs.
    """
    stages = get_parallelism_path("pipeline_parallel_degree")
    if run.comm.mode != "default" and run.parallelism.pipeline_parallel_degree > 1:
        message = (
            f"comm.mode {run.comm.mode} does not support pipeline parallelism: simulated "
            "ranks exchange no activations"
        )
        yield RuleViolation(
            message,
            (("comm", "mode"), stages),
            hint="set pipeline_parallel_degree: 1, or use titanrun plan",
        )


@rule("local-tensors-are-built")
def local_tensors_are_built(run: Recipe) -> Iterator[RuleViolation]:
    """Reject comm.mode local_tensor, which is not built in this version.

    It computes for all ranks in one process, with a tensor that holds the parts of all ranks.
    PyTorch 2.13 cannot train so with FSDP, which frees gathered weights by resizing a storage that
    such a tensor lacks; the other parallelisms are not built for it in this version. Use
    fake_backend to inspect memory and speed, or processes on this machine (launch.nproc_per_node)
    for results.
    """
    if run.comm.mode == "local_tensor":
        message = (
            "comm.mode local_tensor is not built in this version: FSDP of PyTorch 2.13 "
            "does not support local tensors"
        )
        yield RuleViolation(
            message,
            (("comm", "mode"),),
            hint="use fake_backend, or launch.nproc_per_node",
            code="not-built",
        )
