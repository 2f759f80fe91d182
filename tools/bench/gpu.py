"""titanrun against a bare loop on one GPU: rows by priority, each side in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy

from gpu_ceilings import compute_ceiling
from gpu_commands import run_commands
from gpu_rows import ROWS, Row, toy_row

ROW_TIMEOUT_SECONDS = 110
# a side that gets less does not even compile
LEAST_SECONDS = 30
# first losses of both sides must agree: else they computed different things
LOSS_TOLERANCE = 2e-3
NUM_ROWS = 512
# of the tokenizer `characters`
END_OF_DOCUMENT = 0
TARGET = 0.99


def gpu_report(
    rows: list[str], *, budget: float, folder: Path, toy: bool, with_commands: bool = False
) -> bool:
    """Run the rows that fit into the budget, print a line a row at once and a table last.

    Return whether all rows were measured, both sides computed the same and, but for toy sizes,
    each row reached the target. With commands, they come first and must succeed too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clocks = {"before": read_clocks()}
    data = folder / "rows.npy"
    end, table = time.monotonic() + budget, []
    commands = run_commands(folder, end=end, toy=toy) if with_commands else {}
    (folder / "commands.json").write_text(json.dumps(commands, indent=1))
    for name in rows:
        table.append(run_row(name, data, folder, end=end, toy=toy))
        add_ceilings(table, toy=toy)
        print(format_line(table[-1]), flush=True)
    clocks["after"] = read_clocks()
    (folder / "clocks.json").write_text(json.dumps(clocks, indent=1))
    (folder / "table.json").write_text(json.dumps(table, indent=1))
    print("\n".join(["", *map(format_line, table)]))
    print("\n".join(f"{when}: {found}" for when, found in clocks.items()))
    print(
        f"target: {TARGET} of the bare loop; void rows and timeouts count as failed"
        + (", speed at toy size does not" if toy else ", so do rows below the target")
    )
    failed = [said for said in commands.values() if said.startswith("FAILED")]
    return not failed and not any(fails(found["verdict"], toy=toy) for found in table)


def add_ceilings(table: list[dict[str, Any]], *, toy: bool) -> None:
    """Add to the last row its share of the ceilings that were measured at its shapes."""
    last, row = table[-1], ROWS[table[-1]["row"]]
    if row.bare is None or "ms" not in last["titanrun"]:
        return
    for found in table:
        measured = ROWS[found["row"]]
        same = (measured.sizes, measured.batch, measured.seq_len)
        is_ceiling = measured.part == "ceilings" and found["titanrun"]["state"] == "done"
        if is_ceiling and same == (row.sizes, row.batch, row.seq_len):
            sizes = toy_row(row) if toy else row
            ceiling = compute_ceiling(sizes, found["titanrun"]["parts"])
            if ceiling is not None:
                last["ceiling_ms"] = ceiling
                last["ceiling_share"] = ceiling / last["titanrun"]["ms"]


def fails(verdict: str, *, toy: bool) -> bool:
    """Return whether a row fails the command: two steps of a toy say nothing about speed."""
    return verdict.startswith(("VOID", "FAILED") if toy else ("VOID", "FAILED", "BELOW"))


def run_row(name: str, data: Path, folder: Path, *, end: float, toy: bool) -> dict[str, Any]:
    """Run the sides of a row, titanrun first, and compare them with it."""
    row = toy_row(ROWS[name]) if toy else ROWS[name]
    write_rows(data, row)
    found: dict[str, Any] = {"row": name, "what": row.what}
    sides = ["titanrun", "bare", *(["torchtitan"] if has_torchtitan(row) else [])]
    for side in sides:
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            found[side] = {"state": "no time left"}
            continue
        found[side] = run_side(name, side, data, folder, min(left, ROW_TIMEOUT_SECONDS), toy)
    found |= compare_sides(found["titanrun"], found["bare"])
    found.setdefault("torchtitan", {"state": "absent"})
    return found | compare_with_torchtitan(found["titanrun"], found["torchtitan"])


def has_torchtitan(row: Row) -> bool:
    """Return whether torchtitan is installed and has what the row asks for."""
    bare = row.bare
    return (
        find_spec("torchtitan") is not None
        and bare is not None
        and not (bare.get("bf16_states") or bare.get("bf16_storage"))
    )


def compare_with_torchtitan(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio to torchtitan, or why there is none. It decides nothing."""
    if theirs["state"] == "absent":
        return {}
    found = compare_sides(ours, theirs)
    if "ratio" in found:
        return {"torchtitan_ratio": found["ratio"], "torchtitan_verdict": "compared"}
    return {"torchtitan_verdict": found["verdict"].replace("bare", "torchtitan")}


def write_rows(path: Path, row: Row) -> None:
    """Write random ids over the whole vocabulary, the same each time, and ends of documents."""
    generator, shape = numpy.random.default_rng(0), (NUM_ROWS, row.seq_len + 1)
    drawn = generator.integers(0, row.sizes["vocab_size"], shape)
    if row.document_tokens is not None:
        drawn[generator.random(shape) < 1 / row.document_tokens] = END_OF_DOCUMENT
    numpy.save(path, drawn.astype("uint32"))


def run_side(
    name: str, side: str, data: Path, folder: Path, seconds: float, toy: bool
) -> dict[str, Any]:
    """Run one side in a process group of its own, which is killed when its time is over."""
    out = folder / f"{name}-{side}.json"
    out.unlink(missing_ok=True)
    program = Path(__file__).with_name("gpu_row.py")
    command = [
        sys.executable,
        str(program),
        name,
        side,
        str(data),
        str(out),
    ]
    command += ["--toy"] if toy else []
    log = folder / f"{name}-{side}.log"
    with log.open("w") as lines:
        process = subprocess.Popen(command, stdout=lines, stderr=lines, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"phase": "start"}
    if code is None:
        found["state"] = f"timeout in {found['phase']}"
    elif code:
        found["state"] = f"failed in {found['phase']}, see {log}"
    return found


def compare_sides(ours: dict[str, Any], bare: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio of both sides and whether it counts."""
    if ours.get("state") != "done":
        return {"verdict": f"FAILED: titanrun {ours['state']}"}
    if bare.get("state") == "absent":
        return {"verdict": "alone"}
    if bare.get("state") != "done":
        return {"verdict": f"FAILED: bare {bare['state']}"}
    pairs = list(zip(ours["first_losses"], bare["first_losses"], strict=True))
    differences = [abs(a - b) / abs(b) for a, b in pairs]
    # not max(): it may pass over a NaN
    if not all(difference <= LOSS_TOLERANCE for difference in differences):
        shown = ", ".join(f"{difference:.1e}" for difference in differences)
        return {"verdict": f"VOID: first losses differ by {shown}"}
    off = max(differences)
    ratio, noise = bare["ms"] / ours["ms"], max(ours["noise"], bare["noise"])
    # noise explains no ratio below the target: a noisy row must not pass for a fast one
    verdict = "BELOW TARGET" if ratio < TARGET else "tie" if abs(1 - ratio) <= noise else "ok"
    return {"verdict": verdict, "ratio": ratio, "noise": noise, "loss_difference": off}


def format_line(found: dict[str, Any]) -> str:
    """Return a row of the table."""
    ours = found.get("titanrun", {})
    tflops = f"{ours['tflops']:>6.1f} TFLOP/s" if ours.get("tflops") is not None else " " * 14
    if ours.get("mfu") is not None:
        tflops += f" {ours['mfu']:.1%} MFU"
    speed = f"{ours['tokens_per_second']:>9,.0f} tokens/s {tflops}" if "ms" in ours else " " * 33
    ratio = f"{found['ratio']:.3f} of bare" if "ratio" in found else ""
    if "torchtitan_ratio" in found:
        ratio += f" {found['torchtitan_ratio']:.3f} of torchtitan"
    elif "torchtitan_verdict" in found:
        ratio += f" torchtitan {found['torchtitan_verdict']}"
    if "ceiling_share" in found:
        ratio += f" {found['ceiling_share']:.2f} of ceiling"
    line = f"{found['row']:<28} {speed} {ratio:<14} {found['verdict']}"
    parts = ours.get("parts", {})
    return "\n".join([line, *(format_part(name, each) for name, each in parts.items())])


def format_part(name: str, found: dict[str, float]) -> str:
    """Return the line of what was measured alone."""
    speed, unit = (
        (found["tflops"], "TFLOP/s") if "tflops" in found else (found["gb_per_second"], "GB/s")
    )
    return f"  {name:<26} {found['ms']:>9,.2f} ms {speed:>14,.1f} {unit}"


def read_clocks() -> str | None:
    """Return clocks and power of the GPU, None without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.draw", "--format=csv"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
