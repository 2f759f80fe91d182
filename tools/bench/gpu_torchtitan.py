"""torchtitan's trainer as a side of a row of the GPU benchmark, where it is installed."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch

from gpu_bare import init_weight
from gpu_bare_update import ADAM_EPS, BETAS, DECAY, LR, MAX_NORM
from gpu_rows import Row
from torchtitan_side import ALONE, put_cpu_into_torch

FLAVOR = "bench"
# constant learning rate, no checkpoints, a logged step in ten
JOB = {
    "model.name": "llama3",
    "model.flavor": FLAVOR,
    "optimizer.lr": LR,
    "optimizer.beta1": BETAS[0],
    "optimizer.beta2": BETAS[1],
    "optimizer.eps": ADAM_EPS,
    "optimizer.weight_decay": DECAY,
    "lr_scheduler.warmup_steps": 0,
    "lr_scheduler.min_lr_factor": 1.0,
    "training.steps": 100_000,
    "training.mixed_precision_param": "bfloat16",
    "training.max_norm": MAX_NORM,
    "metrics.log_freq": 10,
}


def build_job(row: Row, folder: Path) -> list[str]:
    """Build the command line of torchtitan for a row."""
    bare = row.bare or {}
    job = JOB | {
        "training.local_batch_size": row.batch,
        "training.seq_len": row.seq_len,
        "activation_checkpoint.mode": "selective" if bare.get("selective_ac") else "none",
        "job.dump_folder": str(folder / "torchtitan"),
    }
    words = [f"--{key}={value}" for key, value in job.items()]
    if bare.get("compiles", True):
        words.append("--compile.enable")
    if "float8" in bare:
        words.append("--model.converters=quantize.linear.float8")
        words.append("--quantize.linear.float8.filter_fqns=output")
        if bare["float8"] != "tensorwise":
            words.append(f"--quantize.linear.float8.recipe_name={bare['float8']}")
    return words


class open_torchtitan:  # noqa: N801 - used as a function
    """torchtitan's trainer as a context that gives a function of a number of steps."""

    def __init__(self, row: Row, rows_file: Path, device: Any, folder: Path) -> None:
        os.environ.update(ALONE | {"MASTER_PORT": "0"})
        os.chdir(folder)
        if device.type == "cpu":
            put_cpu_into_torch()
        from torchtitan.config import ConfigManager
        from torchtitan.protocols import train_spec
        from torchtitan.train import Trainer

        config = ConfigManager().parse_args(build_job(row, folder))
        spec = train_spec.get_train_spec("llama3")
        train_spec._extra_train_specs["llama3"] = replace(
            spec,
            model_args={FLAVOR: build_model_args(row)},
            build_dataloader_fn=lambda **_: Rows(rows_file, row.batch),
            build_tokenizer_fn=None,
        )
        self.trainer = Trainer(config)
        (model,) = self.trainer.model_parts
        for name, weight in model.named_parameters():
            init_weight(name, weight)
        self.batches = self.trainer.batch_generator(self.trainer.dataloader)

    def __enter__(self) -> Callable[..., list[float]]:
        return self.run

    def __exit__(self, *_: Any) -> None:
        self.trainer.close()

    def run(self, steps: int, *, losses: bool, mark: Callable[[], None]) -> list[float]:
        """Take steps and return their losses if asked, which logs every step."""
        trainer, found = self.trainer, list[float]()
        metrics, log = trainer.metrics_processor, trainer.metrics_processor.log

        def keep(step: int, loss: float, *rest: Any, **named: Any) -> None:
            found.append(float(loss))

        metrics.log = keep
        trainer.job_config.metrics.log_freq = 1 if losses else 10
        for _ in range(steps):
            trainer.step += 1
            trainer.gc_handler.run(trainer.step)
            trainer.train_step(self.batches)
            mark()
        metrics.log = log
        return found if losses else []


def build_model_args(row: Row) -> Any:
    """Build the sizes of a Llama without scaling of its rotary frequencies."""
    from torchtitan.models.llama3.model.args import RoPEScalingArgs, TransformerModelArgs

    s = row.sizes
    return TransformerModelArgs(
        dim=s["dim"],
        n_layers=s["n_layers"],
        n_heads=s["n_heads"],
        n_kv_heads=s["n_kv_heads"],
        vocab_size=s["vocab_size"],
        # rounded up to one multiple, which is the width
        multiple_of=s["hidden_dim"],
        rope_theta=500000.0,
        rope_scaling_args=RoPEScalingArgs(scaling_factor=1.0),
    )


class Rows:
    """Batches of the file of token ids, in order and again from the beginning."""

    def __init__(self, path: Path, batch: int) -> None:
        self.rows, self.batch = numpy.load(path, mmap_mode="r"), batch

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        start, batch = 0, self.batch
        while True:
            taken = torch.from_numpy(self.rows[start : start + batch].astype("int64"))
            yield {"input": taken[:, :-1].contiguous()}, taken[:, 1:].contiguous()
            start = (start + batch) % (len(self.rows) // batch * batch)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: nothing is resumed."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load nothing."""
