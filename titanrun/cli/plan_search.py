"""`titanrun plan --search`: propose layouts of a run that fit, as override lines."""

import json
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence

from titanrun.cli.next_command import print_next
from titanrun.cli.plan_measure import build_search
from titanrun.cli.plan_remedies import FACTORS, WORLD_SIZE, PlannedChange, find_remedies
from titanrun.config.exit_codes import EXIT_DIFFERS
from titanrun.config.pluralize import pluralize
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.recipe.plan.devices import DEFAULT_DEVICE, GIB
from titanrun.recipe.plan.layout_search import (
    DEGREE_FIELDS,
    SPARE_SHARE,
    LayoutProposal,
    LayoutSearch,
    find_nearest_layout,
    search_layouts,
)
from titanrun.recipe.resolving.resolve import Resolved

SPARE = f"{SPARE_SHARE:.0%} of the memory"


def propose_layouts(
    options: Namespace, overrides: Sequence[str], resolved: Resolved, ranks: int
) -> int:
    """Print layouts that fit and return 0, or the nearest one with what to change and 1."""
    search = build_search(options, overrides, resolved, ranks)
    proposals = search_layouts(search)
    what = f"{resolved.run.name} on {ranks:,} x {search.device.name}"
    size = [WORLD_SIZE, str(ranks)]
    device = [] if options.device == DEFAULT_DEVICE else ["--device", options.device]
    if not proposals:
        nearest = find_nearest_layout(search)
        remedies = [*find_remedies(options, overrides, search)]
        if options.json:
            found = None if nearest is None else to_dict(nearest)
            changes = [change.list_words(ranks) for change in remedies]
            told = {"ranks": ranks, "layouts": [], "nearest": found, "changes": changes}
            print(json.dumps(told))
        else:
            print("\n".join(format_nearest(nearest, remedies, what, search)))
        if remedies:
            words = [*device, *remedies[0].apply(overrides), "--search"]
            size = [WORLD_SIZE, str(remedies[0].ranks)]
            print_next(options, "plan", options.recipe, *size, *words)
        return EXIT_DIFFERS
    if options.json:
        print(json.dumps({"ranks": ranks, "layouts": [to_dict(found) for found in proposals]}))
    else:
        print(format_proposals(proposals, what))
    print_next(options, "plan", options.recipe, *size, *device, *overrides, *proposals[0].overrides)
    return 0


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
    head = (
        f"{what}: {pluralize(len(proposals), 'layout')} with {SPARE} to spare, FSDP alone first, "
        "then least communication"
    )
    return "\n".join([head, *(line for found in proposals for line in format_proposal(found))])


def format_nearest(
    nearest: LayoutProposal | None,
    remedies: Sequence[PlannedChange],
    what: str,
    search: LayoutSearch,
) -> Iterator[str]:
    """Yield the lines of what to do where no layout fits."""
    yield f"{what}: no layout fits with {SPARE} to spare"
    if nearest is not None:
        limit = f"{search.memory_limit / GIB:,.1f} GiB"
        yield from ("", f"nearest, for which there are {limit}:", *format_proposal(nearest)[1:])
    if remedies:
        yield from ("", "with one of these changes a layout fits:")
        yield from (f"  {shlex.join(change.list_words(search.ranks))}" for change in remedies)
    else:
        times = FACTORS[-1]
        yield from (
            "",
            f"nor with {times} times as many ranks, {times} times shorter sequences, or an "
            "optimizer with 8-bit states alone: combine them, or use a smaller model",
        )


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
