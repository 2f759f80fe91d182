"""titanrun's trainer against torchtitan's on a CPU, in turn, each in a process of its own.

Both have the same weights, rows, threads and settings. Their losses must agree.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
from safetensors.torch import save_file
from torch import Generator

NUM_ROWS, STEPS, WARMUP = 512, 1000, 8
# every block has a logged step
LOG_EVERY = 10
WARM_STEPS = 10
LOSS_TOLERANCE = 1e-5
SIDES = ("titanrun", "torchtitan")
RECIPE = """version: 1
name: pairs
device: cpu
model: {{name: llama3, flavor: debugmodel, rope: {{scaling: {{name: llama3}}}}}}
tokenizer: tiny
optimizer: {{name: adamw, lr: 8.0e-4}}
lr_scheduler: {{warmup_steps: {warmup}, decay_ratio: 0.8}}
training:
  dataset: {{name: tokens, path: {rows}, shuffle: false}}
  local_batch_size: {batch}
  seq_len: {seq_len}
  steps: {steps}
  mixed_precision_param: float32
checkpoint: {{enable: false}}
validation: {{enable: false}}
metrics: {{log_freq: {log_every}}}
"""
JOB = {
    "model.name": "llama3",
    "model.flavor": "debugmodel",
    "optimizer.lr": 8e-4,
    "lr_scheduler.warmup_steps": WARMUP,
    "lr_scheduler.decay_ratio": 0.8,
    "training.steps": STEPS,
    "training.mixed_precision_param": "float32",
    "activation_checkpoint.mode": "none",
    "metrics.log_freq": LOG_EVERY,
}


def torchtitan_report(pairs: int, steps: int, *, batch: int = 8, seq_len: int = 256) -> bool:
    """Print each pair and the median; return whether titanrun is as fast in the median.

    Each side first trains some steps that do not count.
    """
    if find_spec("torchtitan") is None:
        print("torchtitan is absent: put it into a folder of PYTHONPATH")
        return True
    steps = -(-steps // LOG_EVERY) * LOG_EVERY
    walls, cpus = [], []
    with ExitStack() as stack:
        settings = write_settings(
            Path(stack.enter_context(tempfile.TemporaryDirectory())), batch=batch, seq_len=seq_len
        )
        sides = [stack.enter_context(open_side(side, settings)) for side in SIDES]
        compare_losses(*(ask(side, WARM_STEPS) for side in sides))
        for number in range(pairs):
            # the side that goes first takes turns
            order = sides if number % 2 == 0 else sides[::-1]
            found = {id(side): ask(side, steps) for side in order}
            ours, theirs = (found[id(side)] for side in sides)
            compare_losses(ours, theirs)
            walls.append(theirs["wall"] / ours["wall"])
            cpus.append(theirs["cpu"] / ours["cpu"])
            speed = batch * seq_len / ours["wall"]
            print(
                f"pair {number + 1}: {speed:,.0f} tokens/s, {walls[-1]:.3f} of torchtitan's; "
                f"CPU seconds {ours['cpu']:.4f} a step, {cpus[-1]:.3f}",
                flush=True,
            )
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    print(f"median: {wall:.3f} of torchtitan's tokens/s, {cpu:.3f} by CPU seconds; target 1.00")
    return wall >= 1


def write_settings(folder: Path, *, batch: int, seq_len: int, threads: int = 1) -> Path:
    """Write rows, weights and the settings of both sides."""
    rows, weights = folder / "rows.npy", folder / "weights.safetensors"
    drawn = numpy.random.default_rng(0).integers(0, 2048, (NUM_ROWS, seq_len + 1))
    numpy.save(rows, drawn.astype("uint32"))
    recipe = RECIPE.format(
        rows=rows,
        warmup=WARMUP,
        batch=batch,
        seq_len=seq_len,
        steps=STEPS,
        log_every=LOG_EVERY,
    )
    write_weights(recipe, weights, seq_len=seq_len)
    path = folder / "settings.json"
    sizes = {"training.local_batch_size": batch, "training.seq_len": seq_len}
    job = [*(JOB | sizes | {"job.dump_folder": str(folder / "torchtitan")}).items()]
    content = {"recipe": recipe, "job": job, "threads": threads}
    path.write_text(json.dumps(content | {"rows": str(rows), "weights": str(weights)}))
    return path


def write_weights(recipe: str, path: Path, *, seq_len: int) -> None:
    """Write the weights of seed 0."""
    from titanrun.recipe.resolving.resolve import resolve_recipe

    written = path.with_name("weights.yaml")
    written.write_text(recipe)
    run = resolve_recipe(str(written), [], environment={}).run
    model = run.model.load_builder()(run.model, seq_len=seq_len).to_empty(device="cpu")
    model.init_weights(generator=Generator().manual_seed(0))
    save_file({name: weight.detach() for name, weight in model.named_parameters()}, path)


@contextmanager
def open_side(side: str, settings: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a side and wait until it can train."""
    program = str(Path(__file__).with_name("torchtitan_side.py"))
    log = settings.with_name(f"{side}.log")
    with log.open("w") as lines:
        process = subprocess.Popen(
            [sys.executable, program, side, str(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
        )
    try:
        assert read_answer(process) == {"state": "ready"}
        yield process
    except SystemExit:
        print(log.read_text()[-2000:])
        raise
    finally:
        process.kill()
        process.communicate()


def ask(side: subprocess.Popen[str], steps: int) -> dict[str, Any]:
    """Have a side train steps and return what it measured."""
    assert side.stdin is not None
    print(steps, file=side.stdin, flush=True)
    return read_answer(side)


def read_answer(side: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next line of a side, nothing if it has ended."""
    assert side.stdout is not None
    line = side.stdout.readline()
    if not line:
        sys.exit(f"FAILED: {' '.join(map(str, side.args))}")  # type: ignore[arg-type]
    answer: dict[str, Any] = json.loads(line)
    return answer


def compare_losses(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Stop if the sides computed different things."""
    for a, b in zip(ours["losses"], theirs["losses"], strict=True):
        # false for NaN
        if not abs(a - b) <= LOSS_TOLERANCE * abs(b):
            sys.exit(f"VOID: losses are {a} and {b}")
