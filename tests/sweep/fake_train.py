"""A program that behaves as `titanrun train` does for a sweep, in a tenth of a second.

Its loss after the last step is the square of the distance of log10(optimizer.lr) from -3, plus a
hundredth of weight_decay. FAKE_STEPS, FAKE_SECONDS (of a step), FAKE_FALL (from the first to the
last step), FAKE_FAIL_ABOVE and FAKE_NAN_ABOVE (a rate: at step 2) change it. A run that was killed
goes on after its last step; SIGTERM and SIGINT end it with 75, and status.json has the first of
them.
"""

import fcntl
import json
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def loss_of(rate: float, decay: float, step: int, steps: int) -> float:
    """Loss after a step: the final one is that of the last step."""
    if step == 2 and rate > float(os.environ.get("FAKE_NAN_ABOVE", "inf")):
        return math.nan
    fall = float(os.environ.get("FAKE_FALL", "0.1"))
    return (math.log10(rate) + 3) ** 2 + 0.01 * decay + fall * (steps - step) / steps


def main() -> int:
    values = dict(word.split("=", 1) for word in sys.argv[2:])
    folder = Path(values["dump_folder"])
    rate, decay = float(values["optimizer.lr"]), float(values.get("optimizer.weight_decay", 0))
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    record = folder / "run.json"
    starts = json.loads(record.read_text())["starts"] if record.is_file() else []
    record.write_text(json.dumps({"format": 1, "name": folder.name, "starts": [*starts, {}]}))
    stopped: list[int] = []
    for request in (signal.SIGTERM, signal.SIGINT):
        signal.signal(request, lambda number, frame: stopped.append(number))

    def report(state: str, step: int) -> None:
        about = {"host": socket.gethostname(), "pid": os.getpid(), "boot_id": BOOT_ID}
        about |= {"state": state, "step": step, "heartbeat": time.time(), "signals": stopped}
        (folder / "status.tmp").write_text(json.dumps(about))
        (folder / "status.tmp").replace(folder / "status.json")

    steps = int(os.environ.get("FAKE_STEPS", "3"))
    metrics = folder / "metrics.jsonl"
    done = metrics.read_text().count("\n") if metrics.is_file() else 0
    report("running", done)
    if rate > float(os.environ.get("FAKE_FAIL_ABOVE", "inf")):
        report("failed", done)
        print("error: the loss is not finite", file=sys.stderr)
        return 5
    for step in range(done + 1, steps + 1):
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
        with metrics.open("a") as file:
            loss = loss_of(rate, decay, step, steps)
            # as MetricsFile writes it
            written = loss if math.isfinite(loss) else str(loss)
            file.write(json.dumps({"step": step, "loss": written}) + "\n")
        if stopped:
            report("preempted", step)
            return 75
        report("running", step)
    report("finished", steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
