"""How much of generation a fleet hides behind training, with a generator as slow as the trainer."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPE = "recipes/rl/char_share.yaml"
STEPS = 40
# of each update. Two processes on one machine cannot show overlap of computation, and other
# programs slow it down: most of a step is sleep, on both sides
UPDATE_SECONDS = 0.5
# the files of a plug-in whose generator and optimizer sleep
PLUGIN = {
    "slow_configs.py": """
from typing import ClassVar, Literal

from titanrun.components.optimizers.config import AdamWConfig
from titanrun.config.fields import performance
from titanrun.config.types import NonNegativeFloat
from titanrun.rl.generators.config import NativeConfig

PLUGIN_API = 1


class SlowConfig(NativeConfig):
    \"\"\"The native generator, slower.\"\"\"

    name: Literal["slow"] = performance("slow")
    builds: ClassVar = "slow_generator:SlowGenerator"
    seconds: NonNegativeFloat = performance(0.0, unit="seconds")
    \"\"\"Sleep for each completion.\"\"\"


class SlowAdamWConfig(AdamWConfig):
    \"\"\"AdamW, slower.\"\"\"

    name: Literal["slow_adamw"] = performance("slow_adamw")
    builds: ClassVar = "slow_generator:build_slow_adamw"
    seconds: NonNegativeFloat = performance(0.0, unit="seconds")
    \"\"\"Sleep before each update.\"\"\"
""",
    "slow_generator.py": """
import time

from titanrun.components.optimizers.adamw import build_adamw
from titanrun.rl.generators.native_generator import NativeGenerator


class SlowGenerator(NativeGenerator):
    def __init__(self, config, *, resources):
        super().__init__(config, resources=resources)
        self.seconds = config.seconds

    def generate(self, requests, *, temperature=None):
        if temperature is None:
            time.sleep(self.seconds * len(requests))
        return super().generate(requests, temperature=temperature)


def build_slow_adamw(config, *, parameters):
    optimizer = build_adamw(config, parameters=parameters)
    update = optimizer.step

    def step(closure=None):
        time.sleep(config.seconds)
        return update(closure)

    optimizer.step = step
    return optimizer
""",
    "slow-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n",
    "slow-1.0.dist-info/entry_points.txt": "[titanrun.plugins]\nslow = slow_configs\n",
}
SETTINGS = ("device=cpu", "rl.sync.max_logprob_diff=null", "rl.recorder.keep_extremes=0")
OVERLAPPED = ("rl.schedule.target_offpolicy=2",)
CARRIERS = {
    "local": ("rl.fleet.processes=1", "rl.sync.transport=shared_memory"),
    "ray": ("rl.fleet={processes: 1, carrier: ray}", "rl.sync.transport=object_store"),
}


def overlap_report(seeds: int, carrier: str) -> None:
    """Print wall times and final rewards of both, and their ratio beside its target.

    Args:
        seeds: number of pairs of runs.
        carrier: what runs the generator of the overlapped run, `local` or `ray`.
    """
    with tempfile.TemporaryDirectory(prefix="titanrun-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        for path, text in PLUGIN.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        seconds = measure_train_step(folder)
        ratios, rewards = [], []
        for seed in range(seeds):
            pair = [
                run(folder / f"{kind}-{seed}", seconds, seed, settings)
                for kind, settings in (("sync", ()), ("async", OVERLAPPED + CARRIERS[carrier]))
            ]
            ratios.append(pair[1][0] / pair[0][0])
            rewards.append((pair[0][1], pair[1][1]))
            print(
                f"seed {seed}: {STEPS} steps in {pair[0][0]:.1f} s, overlapped {pair[1][0]:.1f} s "
                f"({ratios[-1]:.2f}); final rewards {pair[0][1]:.3f} and {pair[1][1]:.3f}"
            )
        gap = statistics.mean(abs(one - other) for one, other in rewards)
        print(
            f"a generator ({carrier}) that waits for {seconds:.2f} s a step, as long as a training "
            f"step takes: overlapped {statistics.mean(ratios):.2f} of the wall time (target 0.65), "
            f"mean difference of rewards {gap:.3f} (target 0.03)"
        )


def measure_train_step(folder: Path) -> float:
    """Return the median seconds of a step without the wait for its completions."""
    run(folder / "probe", 0.0, 0, CARRIERS["local"], steps=12)
    return statistics.median(
        line["time/step_seconds"] - line["time/data_seconds"]
        for line in read_lines(folder / "probe")[4:]
    )


def run(
    folder: Path,
    seconds: float,
    seed: int,
    settings: tuple[str, ...],
    *,
    steps: int = STEPS,
) -> tuple[float, float]:
    """Train and return the wall time of all steps but the first, and the final reward."""
    command = [
        *(sys.executable, "-m", "titanrun", "train", RECIPE, "plugins=[slow]"),
        *(f"dump_folder={folder}", f"debug.seed={seed}", f"training.steps={steps}"),
        f"rl.generator={{name: slow, seconds: {seconds / (16 * 16):.6f}}}",
        *("optimizer.name=slow_adamw", f"optimizer.seconds={UPDATE_SECONDS}"),
        *SETTINGS,
        *settings,
    ]
    paths = os.pathsep.join((str(folder.parent), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths}
    with (folder.parent / f"{folder.name}.out").open("w") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=environment, check=True)
    lines = read_lines(folder)
    # the first step also starts things
    wall = sum(line["time/step_seconds"] for line in lines[1:])
    return wall, lines[-1].get("validation/reward_mean", 0.0)


def read_lines(folder: Path) -> list[dict[str, float]]:
    """Return the logged steps."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [line for line in map(json.loads, text.splitlines()) if line.get("loss") is not None]
