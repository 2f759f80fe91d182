"""Plan as JSON data and as text."""

from collections.abc import Sequence
from typing import Any

from titanrun.config.pluralize import pluralize
from titanrun.models.shared.spec.flops import count_active_parameters, count_parameters
from titanrun.recipe.plan.communication import (
    LARGE_BUBBLE,
    estimate_pipeline_bubble,
    estimate_traffic,
)
from titanrun.recipe.plan.computed_flops import compute_flops_per_token
from titanrun.recipe.plan.devices import GIB, Device
from titanrun.recipe.plan.memory_estimate import (
    ERROR_BAND,
    compute_checkpoint_bytes,
    estimate_memory,
    sum_bytes,
)
from titanrun.recipe.plan.memory_levers import MemorySaving, find_memory_savings
from titanrun.recipe.plan.plan_layout import PlanLayout
from titanrun.recipe.plan.stream_reading import (
    estimate_stream_heads,
    estimate_stream_reading,
    format_stream_heads,
    format_stream_reading,
)
from titanrun.recipe.recipe import find_lora_converter
from titanrun.recipe.resolving.teacher import find_teacher_place
from titanrun.recipe.rules.compile import compiles_model

# share of the device's peak: what most runs start with, and what well-tuned dense runs reach
USUAL_MFU = (0.25, 0.45)
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")


def plan_to_dict(layout: PlanLayout, device: Device) -> dict[str, Any]:
    """Return all numbers of the plan. Bytes and counts are integers."""
    run, items = layout.run, estimate_memory(layout, device)
    savings = find_savings(layout, device)
    steps, batch_size = run.training.steps, int(run.training.global_batch_size)
    tokens = batch_size * run.training.seq_len
    flops = compute_flops_per_token(layout)
    seconds = estimate_seconds_per_step(flops * tokens, layout, device)
    return {
        "name": run.name,
        "device": device.name,
        "ranks": layout.parallel_dims.world_size,
        "mesh": {axis: getattr(layout.parallel_dims, axis) for axis in AXES},
        "batch": {
            "rows": batch_size,
            "tokens": tokens,
            "readers": layout.parallel_dims.dp_size,
            "passes": layout.num_forward_passes,
            "microbatches": layout.num_microbatches,
        },
        "length": {
            "steps": steps,
            "tokens": None if steps is None else steps * tokens,
            "epochs": run.training.epochs,
        },
        "parameters": count_parameters(run.model),
        "active_parameters": count_active_parameters(run.model),
        "flops_per_token": flops,
        "flops_per_step": flops * tokens,
        "memory": [
            {"name": item.name, "bytes": item.bytes, "formula": item.formula} for item in items
        ],
        "memory_total": sum_bytes(items),
        "memory_of_device": round(device.memory_gib * GIB),
        "fits": sum_bytes(items) <= device.memory_gib * GIB,
        "bubble": estimate_pipeline_bubble(layout),
        "traffic": [
            {"axis": entry.axis, "bytes": entry.bytes, "what": entry.description}
            for entry in estimate_traffic(layout)
        ],
        "seconds_per_step": seconds,
        "stream": estimate_stream_reading(layout, seconds[0]),
        "stream_heads": estimate_stream_heads(layout),
        "checkpoint_bytes": compute_checkpoint_bytes(layout),
        "checkpoints": count_checkpoints(layout),
        "savings": [{"setting": each.setting, "bytes": each.bytes} for each in savings],
        "warnings": find_plan_warnings(layout, device, savings),
        "notes": find_plan_notes(layout),
    }


def estimate_seconds_per_step(flops: int, layout: PlanLayout, device: Device) -> list[float]:
    """Return the fastest and slowest usual time of a step in seconds.

    The pipeline bubble is included.
    """
    at_peak = (
        flops
        / (device.bf16_flops * layout.parallel_dims.world_size)
        / (1 - estimate_pipeline_bubble(layout))
    )
    return [at_peak / share for share in reversed(USUAL_MFU)]


def count_checkpoints(layout: PlanLayout) -> int | None:
    """Return the number of checkpoints on disk at the end, None if it depends on time."""
    config, steps = layout.run.checkpoint, layout.run.training.steps
    if not config.enable:
        return 0
    if steps is None or not isinstance(config.interval, int):
        return None
    written = -(-int(steps) // config.interval)
    return min(written, config.keep_latest_k) if config.keep_latest_k else written


def find_savings(layout: PlanLayout, device: Device) -> list[MemorySaving]:
    """Return what saves memory, for a run that does not fit or barely does."""
    share = sum_bytes(estimate_memory(layout, device)) / (device.memory_gib * GIB)
    return find_memory_savings(layout, device) if share > 1 - ERROR_BAND / 2 else []


def find_plan_warnings(
    layout: PlanLayout, device: Device, savings: Sequence[MemorySaving]
) -> list[str]:
    """Return warnings for the user."""
    found, need = [], sum_bytes(estimate_memory(layout, device))
    share = need / (device.memory_gib * GIB)
    if share > 1:
        found.append(
            f"does not fit: {need / GIB:,.1f} GiB per rank, but {device.name} has "
            f"{device.memory_gib:g} GiB; {format_best_saving(savings)}"
        )
    elif share > 1 - ERROR_BAND / 2:
        found.append(f"barely fits: {share:.0%} of the memory; {format_best_saving(savings)}")
    named, _ = find_teacher_place(layout.run)
    if layout.teacher is None and named is not None:
        found.append(f"the teacher is not counted: no model in {named}")
    if estimate_pipeline_bubble(layout) > LARGE_BUBBLE:
        found.append(
            f"pipeline ranks are idle {estimate_pipeline_bubble(layout):.0%} of a "
            "step: use more microbatches (a larger local_batch_size)"
        )
    return found


def find_plan_notes(layout: PlanLayout) -> list[str]:
    """Return what may be as the user wants it, and costs time."""
    if layout.run.device != "gpu" or compiles_model(layout.run):
        return []
    return ["compile.enable: true usually makes a step on a GPU 15% to 25% faster"]


def format_best_saving(savings: Sequence[MemorySaving]) -> str:
    """Format the first of the settings that save memory."""
    if not savings:
        return "use more shards, or tensor, context or pipeline parallelism"
    return f"{savings[0].setting} saves {savings[0].bytes / GIB:,.1f} GiB"


def format_savings(data: dict[str, Any]) -> list[str]:
    """Return lines about each setting that saves memory, empty where there is enough."""
    if not data["savings"]:
        return []
    width = max(len(saving["setting"]) for saving in data["savings"])
    return [
        "",
        "saved by one setting alone, the best for its cost first",
        *(
            f"  {saving['setting']:<{width}} {-saving['bytes'] / GIB:10,.2f} GiB"
            for saving in data["savings"]
        ),
    ]


def format_plan(layout: PlanLayout, data: dict[str, Any]) -> str:
    """Return the plan of `plan_to_dict` in sections of aligned lines."""
    warnings = [f"warning: {text}" for text in data["warnings"]]
    warnings += [f"note: {text}" for text in data["notes"]]
    lines = [*format_run_lines(layout, data), "", *format_memory(data), *format_traffic(data)]
    lines += format_stream_reading(layout, data) + format_stream_heads(data)
    lines += ["", *format_checkpoint_lines(data), *warnings, *format_savings(data)]
    return "\n".join(lines).rstrip()


def format_run_lines(layout: PlanLayout, data: dict[str, Any]) -> list[str]:
    """Return lines about the mesh, batch, length, model and step."""
    mesh = (
        " x ".join(f"{axis} {size}" for axis, size in data["mesh"].items() if size > 1)
        or "one process"
    )
    batch, length = data["batch"], data["length"]
    microbatches = f" in {batch['microbatches']} microbatches" if batch["microbatches"] > 1 else ""
    active = (
        ""
        if data["active_parameters"] == data["parameters"]
        else f", {data['active_parameters']:,} active per token"
    )
    sequences = pluralize(batch["rows"], "sequence")
    fast, slow = data["seconds_per_step"]
    # the peak of the device is that of bfloat16
    in_fp32 = " in bfloat16, longer in float32" if layout.compute_bytes == 4 else ""
    return [
        f"{data['name']} on {data['ranks']:,} x {data['device']}",
        format_plan_line("mesh", mesh),
        format_plan_line(
            "batch",
            f"{sequences} x {pluralize(layout.run.training.seq_len, 'token')} = "
            f"{batch['tokens']:,} tokens per step",
        ),
        format_plan_line(
            "",
            f"each of {pluralize(batch['readers'], 'data-parallel rank')}: "
            f"{format_forward_passes(layout)}{microbatches}",
        ),
        format_plan_line("length", format_plan_length(length)),
        format_plan_line(
            "model",
            f"{format_model_name(layout)}, {data['parameters']:,} parameters{active}",
        ),
        format_plan_line(
            "compute",
            f"{format_flops(data['flops_per_token'])} per token, {format_counted_passes(layout)}",
        ),
        format_plan_line(
            "step",
            f"{format_flops(data['flops_per_step'])}: {fast:,.2g} to "
            f"{slow:,.2g} s at {USUAL_MFU[1]:.0%} to {USUAL_MFU[0]:.0%} MFU{in_fp32}",
        ),
        *(
            [format_plan_line("bubble", f"{data['bubble']:.1%} of a step")]
            if data["bubble"]
            else []
        ),
    ]


def format_memory(data: dict[str, Any]) -> list[str]:
    """Return lines about the memory of the fullest rank."""
    return [
        "memory of the fullest rank",
        *(
            f"  {item['name']:<17} {format_aligned_gib(item['bytes'])}   {item['formula']}"
            for item in data["memory"]
        ),
        f"  {'total':<17} {format_aligned_gib(data['memory_total'])}   of "
        f"{format_aligned_gib(data['memory_of_device']).strip()}: "
        f"{'fits' if data['fits'] else 'does not fit'}",
    ]


def format_traffic(data: dict[str, Any]) -> list[str]:
    """Return lines about the bytes that a rank sends. Empty for a single rank."""
    if not data["traffic"]:
        return []
    return [
        "",
        "sent by each rank per step",
        *(
            f"  {entry['axis']:<17} {format_aligned_gib(entry['bytes'])}   {entry['what']}"
            for entry in data["traffic"]
        ),
    ]


def format_model_name(layout: PlanLayout) -> str:
    """Return family and flavor of the model."""
    return f"{layout.run.model.name} {layout.run.model.flavor or ''}".rstrip()


def format_counted_passes(layout: PlanLayout) -> str:
    """Format what the FLOPs per token are of."""
    if find_lora_converter(layout.run) is None:
        return "forward and backward"
    return "forward and backward without gradients of frozen weights"


def format_forward_passes(layout: PlanLayout) -> str:
    """Format the forward passes of a data-parallel rank."""
    return (
        f"{pluralize(layout.num_forward_passes, 'forward pass', 'forward passes')} of "
        f"{pluralize(layout.run.training.local_batch_size, 'sequence')}"
    )


def format_plan_line(name: str, text: str) -> str:
    """Format one line of the first section."""
    return f"  {name:<8} {text}"


def format_plan_length(length: dict[str, Any]) -> str:
    """Format steps and tokens. With a length in epochs the steps depend on the data."""
    if length["steps"] is None:
        return f"{pluralize(length['epochs'], 'epoch')}; the number of steps depends on the data"
    return f"{pluralize(length['steps'], 'step')} = {length['tokens']:,} tokens"


def format_checkpoint_lines(data: dict[str, Any]) -> list[str]:
    """Return lines about the size and number of checkpoints."""
    if data["checkpoints"] == 0:
        return ["checkpoints: none, checkpoint.enable is false"]
    each = format_aligned_gib(data["checkpoint_bytes"]).strip()
    if data["checkpoints"] is None:
        return [f"checkpoints: {each} each"]
    return [
        f"checkpoints: {data['checkpoints']} x {each} = "
        f"{format_aligned_gib(data['checkpoints'] * data['checkpoint_bytes']).strip()} on disk"
    ]


def format_aligned_gib(count: float) -> str:
    """Format bytes in GiB, aligned."""
    return f"{count / GIB:10,.2f} GiB"


def format_flops(count: float) -> str:
    """Format floating-point operations with an SI prefix: 57.9e9 as `57.9 GFLOPs`."""
    for size, prefix in (
        (1e21, "Z"),
        (1e18, "E"),
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
    ):
        if count >= size:
            return f"{count / size:.3g} {prefix}FLOPs"
    return f"{count:,.0f} FLOPs"
