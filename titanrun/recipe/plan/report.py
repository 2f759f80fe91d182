"""A plan as data, and as text for a person."""

from typing import Any

from titanrun.config.counted import counted
from titanrun.models.shared.counting import active_parameter_count, flops_per_token, parameter_count
from titanrun.recipe.plan.devices import Device
from titanrun.recipe.plan.layout import Layout
from titanrun.recipe.plan.memory import ERROR_BAND, checkpoint_bytes, memory, total
from titanrun.recipe.plan.traffic import bubble, traffic

GIB = 1024**3
# of the device's peak: what well-tuned dense runs reach, and what most begin with
USUAL_MFU = (0.25, 0.45)
AXES = ("pipeline", "replicate", "shard", "context", "tensor", "expert", "expert_tensor")
SHORT = dict(zip(AXES, ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp"), strict=True))


def as_data(layout: Layout, device: Device) -> dict[str, Any]:
    """Every figure of the plan; bytes and counts as integers."""
    run, items = layout.run, memory(layout)
    steps, rows = run.training.steps, int(run.training.global_batch_size)
    tokens = rows * run.training.seq_len
    flops = flops_per_token(run.model, run.training.seq_len)
    return {
        "name": run.name,
        "device": device.name,
        "ranks": layout.degrees.ranks,
        "mesh": {SHORT[axis]: getattr(layout.degrees, axis) for axis in AXES},
        "batch": {
            "rows": rows,
            "tokens": tokens,
            "readers": layout.degrees.batch,
            "passes": layout.passes,
            "microbatches": layout.microbatches,
        },
        "length": {
            "steps": steps,
            "tokens": None if steps is None else steps * tokens,
            "epochs": run.training.epochs,
        },
        "parameters": parameter_count(run.model),
        "active_parameters": active_parameter_count(run.model),
        "flops_per_token": flops,
        "flops_per_step": flops * tokens,
        "memory": [
            {"name": item.name, "bytes": item.bytes, "formula": item.formula} for item in items
        ],
        "memory_total": total(items),
        "memory_of_device": round(device.memory_gib * GIB),
        "bubble": bubble(layout),
        "traffic": [
            {"axis": entry.axis, "bytes": entry.bytes, "what": entry.what}
            for entry in traffic(layout)
        ],
        "seconds_per_step": seconds_per_step(flops * tokens, layout, device),
        "checkpoint_bytes": checkpoint_bytes(layout),
        "checkpoints": checkpoint_count(layout),
        "warnings": warnings(layout, device),
    }


def seconds_per_step(flops: int, layout: Layout, device: Device) -> list[float]:
    """Fastest and slowest of the usual, the pipeline's waiting included."""
    at_peak = flops / (device.bf16_flops * layout.degrees.ranks) / (1 - bubble(layout))
    return [at_peak / share for share in reversed(USUAL_MFU)]


def checkpoint_count(layout: Layout) -> int | None:
    """Checkpoints that lie on disk at the end; None where time decides."""
    config, steps = layout.run.checkpoint, layout.run.training.steps
    if not config.enable:
        return 0
    if steps is None or not isinstance(config.interval, int):
        return None
    written = -(-int(steps) // config.interval)
    return min(written, config.keep_latest_k) if config.keep_latest_k else written


def warnings(layout: Layout, device: Device) -> list[str]:
    """What the person who asked should know."""
    found, need = [], total(memory(layout))
    share = need / (device.memory_gib * GIB)
    if share > 1:
        found.append(
            f"does not fit: {need / GIB:,.1f} GiB a rank, and {device.name} has {device.memory_gib:g}; {advice(layout)}"
        )
    elif share > 1 - ERROR_BAND / 2:
        found.append(f"fits barely: {share:.0%} of the memory; {advice(layout)}")
    if bubble(layout) > 0.2:
        found.append(
            f"pipeline ranks wait {bubble(layout):.0%} of a step: more microbatches (a larger local_batch_size) shorten that"
        )
    return found


def advice(layout: Layout) -> str:
    """The cheapest way to less memory that is left."""
    if layout.run.activation_checkpoint.name == "none":
        return "activation_checkpoint: full keeps one tensor a layer"
    if layout.run.training.local_batch_size > layout.degrees.pipeline:
        return "a smaller local_batch_size keeps fewer activations"
    if layout.run.activation_checkpoint.name != "full":
        return "activation_checkpoint: full keeps one tensor a layer"
    return "more shards, or tensor, context or pipeline parallelism, split what a rank keeps"


def as_text(layout: Layout, device: Device) -> str:
    """The plan in sections of aligned lines."""
    data = as_data(layout, device)
    mesh = (
        " x ".join(f"{axis} {size}" for axis, size in data["mesh"].items() if size > 1)
        or "one process"
    )
    batch, length = data["batch"], data["length"]
    cut = f" in {batch['microbatches']} microbatches" if batch["microbatches"] > 1 else ""
    active = (
        ""
        if data["active_parameters"] == data["parameters"]
        else f", {number(data['active_parameters'])} of them for one token"
    )
    rows = counted(batch["rows"], "row")
    slow, fast = data["seconds_per_step"][1], data["seconds_per_step"][0]
    lines = [
        f"{data['name']} on {data['ranks']:,} x {data['device']}",
        line("mesh", mesh),
        line(
            "batch",
            f"{rows} x {counted(layout.run.training.seq_len, 'token')} = {number(batch['tokens'])} tokens a step",
        ),
        line("", f"on each of {counted(batch['readers'], 'reader')} {passes_of(layout)}{cut}"),
        line("length", length_words(length)),
        line(
            "model",
            f"{model_name(layout)}, {number(data['parameters'])} parameters{active}; {number(data['flops_per_token'])} FLOPs a token",
        ),
        line(
            "step",
            f"{number(data['flops_per_step'])} FLOPs: {fast:,.2g} to {slow:,.2g} s at {USUAL_MFU[1]:.0%} to {USUAL_MFU[0]:.0%} MFU",
        ),
        *([line("bubble", f"{data['bubble']:.1%} of a step")] if data["bubble"] else []),
        "",
        "memory of the fullest rank",
        *(
            f"  {item['name']:<17} {gib(item['bytes'])}   {item['formula']}"
            for item in data["memory"]
        ),
        f"  {'total':<17} {gib(data['memory_total'])}   of {gib(data['memory_of_device']).strip()}",
    ]
    if data["traffic"]:
        lines += ["", "sent by a rank in one step"]
        lines += [
            f"  {entry['axis']:<17} {gib(entry['bytes'])}   {entry['what']}"
            for entry in data["traffic"]
        ]
    return "\n".join(
        [*lines, "", *checkpoint_lines(data), *(f"warning: {text}" for text in data["warnings"])]
    ).rstrip()


def model_name(layout: Layout) -> str:
    """Family and flavor."""
    return f"{layout.run.model.name} {layout.run.model.flavor or ''}".rstrip()


def passes_of(layout: Layout) -> str:
    """How a reader takes its rows."""
    return f"{counted(layout.passes, 'pass', 'passes')} of {counted(layout.run.training.local_batch_size, 'row')}"


def line(name: str, text: str) -> str:
    """One line of the first section."""
    return f"  {name:<8} {text}"


def length_words(length: dict[str, Any]) -> str:
    """Steps and tokens; epochs wait for the data."""
    if length["steps"] is None:
        return f"{counted(length['epochs'], 'epoch')}; the data says how many steps that is"
    return f"{counted(length['steps'], 'step')} = {number(length['tokens'])} tokens"


def checkpoint_lines(data: dict[str, Any]) -> list[str]:
    """Size and number of checkpoints."""
    if data["checkpoints"] == 0:
        return ["checkpoints: none, checkpoint.enable is false"]
    each = gib(data["checkpoint_bytes"]).strip()
    if data["checkpoints"] is None:
        return [f"checkpoints: {each} each"]
    return [
        f"checkpoints: {data['checkpoints']} x {each} = {gib(data['checkpoints'] * data['checkpoint_bytes']).strip()} on disk"
    ]


def gib(count: float) -> str:
    """Bytes in GiB, aligned."""
    return f"{count / GIB:10,.2f} GiB"


def number(count: float) -> str:
    """8030261248 as 8.03 B."""
    for size, unit in (
        (1e21, "Z"),
        (1e18, "E"),
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "B"),
        (1e6, "M"),
        (1e3, "k"),
    ):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f}"
