"""Two gloo ranks: titanrun against a bare script, in turn.

The bare script applies torch's FSDP or tensor parallelism to the same model. Run as a program this
is one of the two ranks, and prints the comparison where it is the first.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

from compare import Comparison, compare, same_rows
from titanrun.models.llama3.model import Llama3
from titanrun.recipe.recipe import Recipe
from titanrun.training.loop import TrainLoop

LAYOUTS = {"FSDP": (), "TP": ("parallelism.tensor_parallel_degree=2",)}
RANKS = 2


def two_ranks_report(recipe: str, blocks: int, steps: int) -> None:
    """Print tokens a second as a share of the bare script's, for each layout."""
    for name in LAYOUTS:
        ratios = sorted(measured(recipe, name, blocks, steps).ratios)
        median = statistics.median(ratios)
        print(
            f"2 ranks, {name}: {median:.3f} of the bare script (blocks {ratios[0]:.3f} to "
            f"{ratios[-1]:.3f}; target 0.97)"
        )


def measured(recipe: str, layout: str, blocks: int, steps: int) -> Comparison:
    """Return what the first of two ranks measures."""
    with socket.socket() as held:
        # bound until the end, so that nobody else gets the port before rank 0 listens on it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        return run_ranks(recipe, layout, blocks, steps, port=held.getsockname()[1])


def run_ranks(recipe: str, layout: str, blocks: int, steps: int, *, port: int) -> Comparison:
    """Return what the first of two ranks measures that meet at a port."""
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, __file__, recipe, layout, str(blocks), str(steps)]
    environments = [
        {
            **os.environ,
            **meeting,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(RANKS)
    ]
    ranks = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for environment in environments
    ]
    told = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    return Comparison(**json.loads(told[0]))


def train(
    model: Llama3, rows_NS: Iterator[Tensor], *, lr: float, max_norm: float, layout: str
) -> Iterator[tuple[float, float]]:
    """Yield wall and CPU seconds of each step: what one would write by hand."""
    model = (split if layout == "TP" else shard)(model)
    model.to_empty(device="cpu")
    model.init_weights()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    for rows in rows_NS:
        wall, cpu = time.perf_counter(), time.process_time()
        own = rows if layout == "TP" else rows.chunk(RANKS)[dist.get_rank()]
        step(model, optimizer, own, max_norm=max_norm, valid=rows[:, 1:].numel(), layout=layout)
        yield time.perf_counter() - wall, time.process_time() - cpu


def step(
    model: Llama3,
    optimizer: torch.optim.Optimizer,
    rows_BS: Tensor,
    *,
    max_norm: float,
    valid: int,
    layout: str,
) -> Tensor:
    """Take one optimizer step on this rank's rows.

    The loss is the mean over the valid tokens of all ranks.
    """
    tokens_BT, labels_BT = rows_BS[:, :-1], rows_BS[:, 1:]
    with loss_parallel():
        logits_BTV = model(tokens_BT)
        loss = (
            cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), reduction="sum")
            / valid
        )
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    # who writes a loop looks at both
    whole = (loss.full_tensor() if layout == "TP" else loss).detach()
    if layout == "FSDP":
        dist.all_reduce(whole)
    norm.full_tensor().item(), whole.item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return whole


def shard(model: Llama3) -> Llama3:
    """FSDP2, layer by layer."""
    mesh = init_device_mesh("cpu", (RANKS,))
    for module in (model.tok_embeddings, *model.layers.children(), [model.norm, model.output]):
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def split(model: Llama3) -> Llama3:
    """Tensor and sequence parallelism as torch's tutorial has it, with split logits."""
    mesh = init_device_mesh("cpu", (RANKS,))
    ends = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parallelize_module(model, mesh, ends)
    stream = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    for layer in model.layers.children():
        attention = {f"attention.w{name}": ColwiseParallel() for name in "qkv"}
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None, None),
                desired_input_layouts=(Replicate(), None, None),
            ),
            **attention,
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(**stream),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, plan)
    return model


def bare_steps(recipe: Recipe, trainer: TrainLoop, *, layout: str) -> Iterator[tuple[float, float]]:
    """Run the bare script over a second model of the same sizes.

    It reads the same rows from their beginning.
    """
    with torch.device("meta"):
        model = recipe.model.load_builder()(recipe.model, seq_len=recipe.training.seq_len)
    assert recipe.training.max_norm is not None
    return train(
        model,
        same_rows(recipe, trainer),
        lr=recipe.optimizer.lr,
        max_norm=recipe.training.max_norm,
        layout=layout,
    )


def main(recipe: str, layout: str, blocks: str, steps: str) -> None:
    """One rank."""
    found = compare(
        recipe,
        ["device=cpu", *LAYOUTS[layout]],
        blocks=int(blocks),
        steps_per_block=int(steps),
        threads=1,
        ranks=RANKS,
        bare=partial(bare_steps, layout=layout),
    )
    if os.environ["RANK"] == "0":
        print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
