"""What the sides of a row of the GPU benchmark say together, and the row's line of the table."""

import math
from typing import Any

# first losses of both sides must agree: else they computed different things
LOSS_TOLERANCE = 2e-3
LEAST_LOSS = 1e-9
TARGET = 0.99
# of a side or row that would not have fitted into the time left, or into the GPU
NOT_RUN = "not run"


def compare_sides(ours: dict[str, Any], bare: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio of both sides and whether it counts."""
    if ours["state"].startswith(NOT_RUN):
        return {"verdict": ours["state"]}
    if ours["state"] != "done":
        return {"verdict": f"FAILED: titanrun {ours['state']}"}
    if bare["state"] == "absent":
        # parts have no losses
        losses = ours.get("first_losses", [])
        is_sound = all(map(math.isfinite, losses))
        return {"verdict": "alone" if is_sound else f"VOID: first losses are {losses}"}
    if bare["state"] != "done":
        return {"verdict": f"FAILED: bare {bare['state']}"}
    losses = [side.get("first_losses", []) for side in (ours, bare)]
    if not losses[0] or len(losses[0]) != len(losses[1]):
        counts = f"{len(losses[0])} first losses of titanrun, {len(losses[1])} of bare"
        return {"verdict": f"VOID: {counts}"}
    differences = [abs(a - b) / max(abs(b), LEAST_LOSS) for a, b in zip(*losses, strict=True)]
    # not max(): it may pass over a NaN
    if not all(difference <= LOSS_TOLERANCE for difference in differences):
        shown = ", ".join(f"{difference:.1e}" for difference in differences)
        return {"verdict": f"VOID: first losses differ by {shown}"}
    off = max(differences)
    ratio, noise = bare["ms"] / ours["ms"], max(ours["noise"], bare["noise"])
    # noise explains no ratio below the target: a noisy row must not pass for a fast one
    verdict = "BELOW TARGET" if ratio < TARGET else "tie" if abs(1 - ratio) <= noise else "ok"
    return {"verdict": verdict, "ratio": ratio, "noise": noise, "loss_difference": off}


def compare_with_torchtitan(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio to torchtitan, or why there is none. It decides nothing."""
    if theirs["state"] == "absent":
        return {}
    found = compare_sides(ours, theirs)
    if "ratio" in found:
        return {"torchtitan_ratio": found["ratio"], "torchtitan_verdict": "compared"}
    return {"torchtitan_verdict": found["verdict"].replace("bare", "torchtitan")}


def fails(verdict: str, *, toy: bool) -> bool:
    """Return whether a row fails the command: two steps of a toy say nothing about speed."""
    faults = ("VOID", "FAILED", NOT_RUN)
    return verdict.startswith(faults if toy else (*faults, "BELOW"))


def format_line(found: dict[str, Any]) -> str:
    """Return a row of the table. Figures of a void row mean nothing and are left out."""
    if found["verdict"].startswith("VOID"):
        return f"{found['row']:<28} {found['verdict']}"
    ours = found.get("titanrun", {})
    tflops = f"{ours['tflops']:>6.1f} TFLOP/s" if ours.get("tflops") is not None else " " * 14
    if ours.get("mfu") is not None:
        tflops += f" {ours['mfu']:.1%} MFU"
    if ours.get("host_share") is not None:
        tflops += f" {ours['host_share']:.0%} host"
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
