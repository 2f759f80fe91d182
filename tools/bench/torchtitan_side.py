"""One trainer of the pairs against torchtitan, in a process of its own.

python tools/bench/torchtitan_side.py titanrun|torchtitan SETTINGS.json

It reads a number of steps from a line, trains that many, and writes a line of JSON: wall and CPU
seconds of a step, and the losses that it logged.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

# one process a side: no other rank
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
# far more than are trained
LAST_STEP = 100_000


def main() -> None:
    """Train as many steps as each line says."""
    side, settings = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    # the numbers go to standard output, what a trainer says does not
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(settings["threads"])
    opened = {"titanrun": open_titanrun, "torchtitan": open_torchtitan}[side]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = opened(settings, Path(folder), stack)
        print(json.dumps({"state": "ready"}), file=answers)
        for line in sys.stdin:
            steps = int(line)
            wall, cpu = time.perf_counter(), time.process_time()
            losses = run(steps)
            taken = time.perf_counter() - wall, time.process_time() - cpu
            found = {"wall": taken[0] / steps, "cpu": taken[1] / steps, "losses": losses}
            print(json.dumps(found), file=answers)


def open_titanrun(
    settings: dict[str, Any], folder: Path, stack: ExitStack
) -> Callable[[int], list[float]]:
    """Return the function that trains steps with titanrun's loop."""
    from titanrun.components.metrics.spec.metrics_file import read_metrics
    from titanrun.distributed.rank_env import read_rank_info
    from titanrun.recipe.resolving.resolve import resolve_recipe
    from titanrun.training.signal_requests import SignalRequests
    from titanrun.worker.build.build_train_loop import build_train_loop
    from titanrun.worker.worker_job import rendezvous

    recipe = folder / "recipe.yaml"
    recipe.write_text(settings["recipe"])
    resolved = resolve_recipe(str(recipe), [], environment={}, ranks=1)
    path = folder / "resolved.yaml"
    path.write_text(resolved.text, encoding="utf-8")
    (folder / "logs").mkdir()
    context = build_train_loop(
        resolved.run, rendezvous(path, read_rank_info()), signals=SignalRequests()
    )
    loop = stack.enter_context(context)
    load_weights(loop.engine.model, settings["weights"])
    loop.engine.notify_weights_changed()
    last = loop.config.steps

    def run(steps: int) -> list[float]:
        start = loop.state.step
        loop.config = replace(loop.config, steps=last, stop_after_step=start + steps)
        loop.train()
        lines = read_metrics(folder / "metrics.jsonl")
        return [line["loss"] for line in lines if line["step"] > start]

    return run


def open_torchtitan(
    settings: dict[str, Any], folder: Path, stack: ExitStack
) -> Callable[[int], list[float]]:
    """Return the function that trains steps with torchtitan's trainer."""
    os.environ.update(ALONE | {"MASTER_PORT": "0"})
    os.chdir(folder)
    put_cpu_into_torch()
    import numpy
    import torch
    from torchtitan.config import ConfigManager
    from torchtitan.protocols import train_spec
    from torchtitan.tools.logging import init_logger
    from torchtitan.train import Trainer

    init_logger()
    config = ConfigManager().parse_args([f"--{key}={value}" for key, value in settings["job"]])
    rows = numpy.load(settings["rows"], mmap_mode="r")
    batch = config.training.local_batch_size

    class Rows:
        """Batches of the file, in order and again from the beginning."""

        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            start = 0
            while True:
                taken = torch.from_numpy(rows[start : start + batch].astype("int64"))
                yield {"input": taken[:, :-1].contiguous()}, taken[:, 1:].contiguous()
                start = (start + batch) % (len(rows) // batch * batch)

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    spec = train_spec.get_train_spec("llama3")
    given = replace(spec, build_dataloader_fn=lambda **_: Rows(), build_tokenizer_fn=None)
    train_spec._extra_train_specs["llama3"] = given
    trainer = Trainer(config)
    (model,) = trainer.model_parts
    load_weights(model, settings["weights"])
    losses: list[float] = []
    metrics, log = trainer.metrics_processor, trainer.metrics_processor.log

    def keep(step: int, loss: float, *rest: Any, **named: Any) -> None:
        losses.append(loss)
        log(step, loss, *rest, **named)

    metrics.log = keep
    batches = trainer.batch_generator(trainer.dataloader)

    def run(steps: int) -> list[float]:
        # the lines of Trainer.train that a step of this run reaches, without its sleep at the end
        losses.clear()
        for _ in range(steps):
            trainer.step += 1
            trainer.gc_handler.run(trainer.step)
            trainer.train_step(batches)
            trainer.checkpointer.save(trainer.step, last_step=False)
        return list(losses)

    return run


def put_cpu_into_torch() -> None:
    """Make torchtitan take the CPU: where torch finds no accelerator, it would take CUDA."""
    import torch

    class Properties:
        """What a GPU would say of itself."""

        total_memory = 2**30

    names = {
        "get_device_properties": lambda _: Properties,
        "get_device_name": lambda _: "cpu",
        "current_device": lambda: 0,
        "reset_peak_memory_stats": lambda: None,
        "empty_cache": lambda: None,
        "memory_stats": lambda _: {},
        "set_device": lambda _: None,
    }
    for name, function in names.items():
        setattr(torch.cpu, name, function)

    torch._utils._get_available_device_type = lambda: "cpu"


def load_weights(model: Any, path: str) -> None:
    """Load the weights that both sides begin with."""
    import torch
    from safetensors.torch import load_file

    given = load_file(path)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(given[name])


if __name__ == "__main__":
    main()
