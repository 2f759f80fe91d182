"""`titanrun plan --search`: propose layouts of a run that fit, as override lines."""

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace

from titanrun.cli.next_command import print_next
from titanrun.config.base import change_fields
from titanrun.config.exit_codes import EXIT_DIFFERS
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.launch.launch_env import get_environment
from titanrun.launch.worker_query import query_worker
from titanrun.recipe.plan.devices import DEVICES, GIB
from titanrun.recipe.plan.layout_search import (
    DEGREE_FIELDS,
    SPARE_SHARE,
    LayoutProposal,
    LayoutSearch,
    search_layouts,
)
from titanrun.recipe.plan.plan_layout import ModuleSize
from titanrun.recipe.plan.split_sizes import MeasuredModel, measure_shares
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.resolving.teacher import find_teacher_model


def propose_layouts(
    options: Namespace, overrides: Sequence[str], resolved: Resolved, ranks: int
) -> int:
    """Print layouts that fit, and return 0, or 1 if there is none."""
    device = DEVICES[options.device]

    def is_allowed(further: Sequence[str], count: int) -> bool:
        try:
            resolve_recipe(
                options.recipe,
                [*overrides, *further],
                environment=get_environment(),
                ranks=count,
            )
        except ProblemsFound:
            return False
        return True

    proposals = search_layouts(
        LayoutSearch(
            resolved.run,
            measure_on_one_rank(resolved),
            ranks,
            device,
            has_fixed_batch=resolved.recipe.training.global_batch_size != "auto",
            is_allowed=is_allowed,
            loss=resolved.recipe.loss,
            teacher=find_teacher_model(resolved.run),
        )
    )
    if options.json:
        print(json.dumps({"ranks": ranks, "layouts": [to_dict(found) for found in proposals]}))
    else:
        print(format_proposals(proposals, f"{resolved.run.name} on {ranks:,} x {device.name}"))
    if not proposals:
        return EXIT_DIFFERS
    words = [options.recipe, "--world-size", str(ranks), *overrides, *proposals[0].overrides]
    print_next(options, "plan", *words)
    return 0


def measure_on_one_rank(resolved: Resolved) -> MeasuredModel:
    """Return the sizes of the model's parts on a single rank."""
    run, degrees = resolved.run, dict.fromkeys(DEGREE_FIELDS.values(), 1)
    alone = change_fields(run, parallelism=change_fields(run.parallelism, **degrees))
    parts = query_worker(
        "measure_memory", replace(resolved, run=alone), ranks=1, description="building the model"
    )
    sizes = [ModuleSize(*found) for found in (parts["embedding"], *parts["layers"], parts["head"])]
    return measure_shares(run.model, sizes)


def to_dict(proposal: LayoutProposal) -> dict[str, object]:
    """Return the numbers of a proposal."""
    dims, training = proposal.layout.parallel_dims, proposal.layout.run.training
    return {
        "overrides": list(proposal.overrides),
        "mesh": {axis: getattr(dims, axis) for axis in DEGREE_FIELDS},
        "local_batch_size": training.local_batch_size,
        "global_batch_size": training.global_batch_size,
        "activation_checkpoint": proposal.layout.run.activation_checkpoint.name,
        "memory_total": proposal.memory_bytes,
        "bytes_per_token": proposal.bytes_per_token,
    }


def format_proposals(proposals: Sequence[LayoutProposal], what: str) -> str:
    """Return the layouts with what each needs and sends, and its overrides in a line."""
    spare = f"{SPARE_SHARE:.0%} of the memory to spare"
    if not proposals:
        return f"{what}: no layout fits with {spare}; use more ranks, or see titanrun plan"
    head = f"{what}: {pluralize(len(proposals), 'layout')} with {spare}, least communication first"
    return "\n".join([head, *(line for found in proposals for line in format_proposal(found))])


def format_proposal(proposal: LayoutProposal) -> list[str]:
    """Return the lines of one layout."""
    run = proposal.layout.run
    batch = pluralize(int(run.training.global_batch_size), "sequence")
    return [
        "",
        f"{format_mesh(proposal.layout.parallel_dims)}: {proposal.memory_bytes / GIB:,.1f} GiB, "
        f"{proposal.bytes_per_token / 1024:,.1f} KiB sent a token, {batch} a step",
        f"  {' '.join(proposal.overrides)}",
    ]


def format_mesh(dims: ParallelDims) -> str:
    """Format the axes with several ranks, such as `dp_shard 8 x tp 2`."""
    named = (f"{axis} {getattr(dims, axis)}" for axis in DEGREE_FIELDS if getattr(dims, axis) > 1)
    return " x ".join(named) or "one process"
