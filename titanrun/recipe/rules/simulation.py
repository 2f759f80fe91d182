"""Rules about ranks that are only simulated."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rank_rule, rule
from titanrun.recipe.rules.ranks import at


@rank_rule("simulation-needs-ranks")
def simulation_needs_ranks(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """comm.mode fake_backend simulates many ranks in one process: how many must be said, in launch.nproc_per_node or by --nproc."""
    if run.comm.mode != "default" and run.launch.ranks is None:
        paths = (("comm", "mode"), ("launch", "nproc_per_node"), at("data_parallel_shard_degree"))
        yield Finding(
            f"comm.mode {run.comm.mode} simulates ranks, and nobody says how many",
            paths,
            help="set launch.nproc_per_node",
        )


@rule("simulation-saves-nothing")
def simulation_saves_nothing(run: Recipe) -> Iterator[Finding]:
    """Messages between ranks that comm.mode simulates go nowhere, so that the weights mean nothing and other ranks' parts do not exist:
    there is nothing to save, and nothing to measure on held-out data. Switch checkpoint.enable off, and validation.enable too."""
    if run.comm.mode == "default":
        return
    for section in ("checkpoint", "validation"):
        if getattr(run, section).enable:
            message = f"{section}.enable is true, and a run of simulated ranks has no result"
            yield Finding(
                message,
                (("comm", "mode"), (section, "enable")),
                help=f"set {section}.enable: false",
            )


@rule("simulation-has-one-stage")
def simulation_has_one_stage(run: Recipe) -> Iterator[Finding]:
    """Before the first step the stages of a pipeline tell each other the shapes of what they pass on, and ranks that comm.mode simulates
    tell nothing. `titanrun plan` works out what a pipeline needs."""
    stages = at("pipeline_parallel_degree")
    if run.comm.mode != "default" and run.parallelism.pipeline_parallel_degree > 1:
        message = "the stages of a pipeline exchange what simulated ranks do not have"
        yield Finding(
            message,
            (("comm", "mode"), stages),
            help="set pipeline_parallel_degree: 1, or see titanrun plan",
        )


@rule("local-tensors-are-built")
def local_tensors_are_built(run: Recipe) -> Iterator[Finding]:
    """comm.mode local_tensor computes for all ranks in one process, by a tensor that holds the parts of all. PyTorch 2.13 cannot train so
    with FSDP, which frees gathered weights by resizing a storage that such a tensor lacks; this version builds none of the rest. Use
    fake_backend for a look at memory and speed, or processes on this machine (launch.nproc_per_node) for results."""
    if run.comm.mode == "local_tensor":
        message = "comm.mode local_tensor is not built in this version: FSDP of PyTorch 2.13 cannot compute with local tensors"
        yield Finding(
            message,
            (("comm", "mode"),),
            help="use fake_backend, or launch.nproc_per_node",
            code="not-built",
        )
