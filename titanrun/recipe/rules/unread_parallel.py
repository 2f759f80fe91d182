"""Rules about settings of a parallelism that is not used: nothing reads them."""

from collections.abc import Iterator

from titanrun.distributed.degrees import degrees_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rank_rule, rule
from titanrun.recipe.rules.ranks import at
from titanrun.recipe.rules.unread import unread

OF_TENSOR = ("enable_sequence_parallel", "disable_loss_parallel", "enable_async_tensor_parallel")
OF_CONTEXT = ("context_parallel_load_balancer", "context_parallel_rotate_method")
OF_EXPERTS = ("expert_tensor_parallel_degree", "expert_parallel_comm_backend")
OF_SPLIT = (
    "pipeline_parallel_layers_per_stage",
    "pipeline_parallel_first_stage_less_layers",
    "pipeline_parallel_last_stage_less_layers",
)
OF_PIPELINE = (
    "pipeline_parallel_schedule",
    "pipeline_parallel_schedule_csv",
    "pipeline_parallel_microbatch_size",
    *OF_SPLIT,
    "module_fqns_per_model_part",
)
OVERLAP = "pipeline_parallel_expert_parallel_overlap"


def unread_without(degree: str, names: tuple[str, ...]) -> Iterator[Finding]:
    """Settings that somebody wrote for a parallelism of degree 1."""
    for name in names:
        yield unread(at(name), at(degree), "is 1", f"set {degree} above 1, or remove it")


@rule("settings-need-tp")
def settings_need_tp(run: Recipe) -> Iterator[Finding]:
    """While tensor_parallel_degree is 1, how tensor parallelism works is not read. Raise the degree, or remove the setting."""
    if run.parallelism.tensor_parallel_degree == 1:
        yield from unread_without("tensor_parallel_degree", OF_TENSOR)


@rule("settings-need-cp")
def settings_need_cp(run: Recipe) -> Iterator[Finding]:
    """While context_parallel_degree is 1, how context parallelism works is not read. Raise the degree, or remove the setting."""
    if run.parallelism.context_parallel_degree == 1:
        yield from unread_without("context_parallel_degree", OF_CONTEXT)


@rule("settings-need-ep")
def settings_need_ep(run: Recipe) -> Iterator[Finding]:
    """While expert_parallel_degree is 1, how expert parallelism works is not read. Raise the degree, or remove the setting."""
    if run.parallelism.expert_parallel_degree == 1:
        yield from unread_without("expert_parallel_degree", OF_EXPERTS)


@rule("settings-need-pp")
def settings_need_pp(run: Recipe) -> Iterator[Finding]:
    """While pipeline_parallel_degree is 1, there are no stages, microbatches or schedules. Raise the degree, or remove the setting."""
    if run.parallelism.pipeline_parallel_degree == 1:
        yield from unread_without("pipeline_parallel_degree", OF_PIPELINE)


@rule("parts-decide-stages")
def parts_decide_stages(run: Recipe) -> Iterator[Finding]:
    """module_fqns_per_model_part says which modules a stage holds: what else would split the layers is not read. Remove one of the
    two."""
    if (
        run.parallelism.pipeline_parallel_degree > 1
        and run.parallelism.module_fqns_per_model_part is not None
    ):
        for name in OF_SPLIT:
            yield unread(
                at(name),
                at("module_fqns_per_model_part"),
                "names the modules of each stage",
                "remove one of the two",
            )


@rule("file-decides-schedule")
def file_decides_schedule(run: Recipe) -> Iterator[Finding]:
    """pipeline_parallel_schedule_csv orders the pipeline, whatever pipeline_parallel_schedule names. Remove one of the two."""
    if (
        run.parallelism.pipeline_parallel_degree > 1
        and run.parallelism.pipeline_parallel_schedule_csv is not None
    ):
        csv = at("pipeline_parallel_schedule_csv")
        yield unread(
            at("pipeline_parallel_schedule"), csv, "orders the pipeline", "remove one of the two"
        )


@rule("overlap-needs-dualpipe")
def overlap_needs_dualpipe(run: Recipe) -> Iterator[Finding]:
    """Only the schedule DualPipeV overlaps two passes, and only experts give them something to overlap: elsewhere
    pipeline_parallel_expert_parallel_overlap is not read. Remove it."""
    section = run.parallelism
    if section.pipeline_parallel_degree == 1:
        yield from unread_without("pipeline_parallel_degree", (OVERLAP,))
    elif (
        section.pipeline_parallel_schedule != "DualPipeV"
        or section.pipeline_parallel_schedule_csv is not None
    ):
        yield unread(at(OVERLAP), at("pipeline_parallel_schedule"), "is not DualPipeV", "remove it")
    elif section.expert_parallel_degree == 1:
        yield from unread_without("expert_parallel_degree", (OVERLAP,))


@rank_rule("resharding-needs-shards")
def resharding_needs_shards(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """Weights are gathered and dropped only where several ranks share them: without shards or context parallelism,
    fsdp_reshard_after_forward is not read. Remove it, or let ranks share the weights."""
    degrees = degrees_of(run.parallelism, ranks)
    if degrees is not None and degrees.fsdp == 1 and degrees.expert == 1:
        help = "let ranks share the weights, or remove it"
        yield unread(
            at("fsdp_reshard_after_forward"),
            at("data_parallel_shard_degree"),
            "gives each rank all weights",
            help,
        )


@rank_rule("offload-needs-shards")
def offload_needs_shards(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """What holds weights in host memory is data parallelism over several ranks: on one rank a layout with
    training.enable_cpu_offload keeps them on the device. Remove it, or let ranks share the weights."""
    degrees = degrees_of(run.parallelism, ranks)
    if degrees is not None and degrees.loss == 1:
        help = "let ranks share the weights, or remove it"
        yield unread(
            ("training", "enable_cpu_offload"),
            at("data_parallel_shard_degree"),
            "gives each rank all weights",
            help,
        )
