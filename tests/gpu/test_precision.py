"""bf16 compute with fp32 weights, as FSDP does it, and heads in fp32."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.gpu.models import BF16, FAMILIES, FP32, built, passed
from titanrun.components.converters.fp32_lm_head import PRODUCTS
from titanrun.distributed.determinism import enable_deterministic_algorithms
from titanrun.distributed.head_products import HeadProduct
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.models.shared.rope import apply_rotary_emb_complex, build_complex_rope_cache
from titanrun.models.shared.rope_config import RopeConfig


@contextmanager
def alone_in_a_group(device: torch.device) -> Iterator[None]:
    """A process group of this process, with the back end of the device."""
    dist.init_process_group(
        dist.get_default_backend_for_device(device.type),
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        device_id=None if device.type == "cpu" else device,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def shard_by_torch(model: Any, device: torch.device) -> None:
    """Apply torch's FSDP2: an embedding, each layer and the head a group."""
    options: Any = {
        "mesh": init_device_mesh(device.type, (1,)),
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32),
    }
    for layer in model.layers.children():
        fully_shard(layer, **options)
    ends = [model.tok_embeddings, model.norm, model.output]
    if ends[0].weight is ends[2].weight:
        fully_shard(ends, **options)
    else:
        fully_shard(ends[0], **options)
        fully_shard(ends[1:], **options)
    fully_shard(model, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_rank_computes_what_fsdp_computes(
    family: str, tmp_path: Path, device: torch.device
) -> None:
    # kernels of attention add up in any order otherwise
    enable_deterministic_algorithms(warn_only=False)
    model, sharded = (built(tmp_path, FAMILIES[family], device) for _ in range(2))
    found = passed(model, WorkingWeights(model, BF16), device)
    with alone_in_a_group(device):
        shard_by_torch(sharded, device)
        wrapped = passed(sharded, WorkingWeights(sharded, FP32), device)
        expected = {
            name: tensor.to_local() if hasattr(tensor, "to_local") else tensor
            for name, tensor in wrapped.items()
        }
    assert found.keys() == expected.keys() and len(found) > 10
    unequal = [name for name, tensor in found.items() if not torch.equal(tensor, expected[name])]
    assert unequal == []


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_near_those_in_fp32_on_the_cpu(
    family: str, tmp_path: Path, device: torch.device
) -> None:
    cpu = torch.device("cpu")
    exact_model = built(tmp_path, FAMILIES[family], cpu)
    exact = passed(exact_model, WorkingWeights(exact_model, FP32), cpu)
    model = built(tmp_path, FAMILIES[family], device)
    model.load_state_dict(exact_model.state_dict())
    found = passed(model, WorkingWeights(model, BF16), device)
    torch.testing.assert_close(found["loss"].cpu(), exact["loss"], rtol=1e-2, atol=0)


def test_stream_is_bf16(tmp_path: Path, device: torch.device) -> None:
    model = built(tmp_path, FAMILIES["llama3"], device)
    seen: list[torch.dtype] = []
    for name in ("tok_embeddings", "layers.0", "layers.1", "norm", "output"):
        model.get_submodule(name).register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    passed(model, WorkingWeights(model, BF16), device)
    assert len(seen) == 10 and set(seen) == {torch.bfloat16}


def test_loss_is_fp32(tmp_path: Path, device: torch.device) -> None:
    model = built(tmp_path, FAMILIES["llama3"], device)
    found = passed(model, WorkingWeights(model, BF16), device)
    # with the gradients, which are sums too
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    # a sum of 128 tokens has no such last digits in bf16
    assert not torch.equal(found["loss"], found["loss"].bfloat16().float())


def test_rope_is_that_of_complex_numbers(device: torch.device) -> None:
    config = RopeConfig(theta=10000.0, scaling=None)
    table = build_complex_rope_cache(config, head_dim=64, seq_len=256, device=device)
    rows, x = table[None, :, None], torch.randn(2, 256, 4, 64, device=device)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    expected = torch.view_as_real(pairs * rows).flatten(-2)
    torch.testing.assert_close(apply_rotary_emb_complex(x, rows), expected, rtol=1e-6, atol=1e-6)


def draw_head(device: torch.device) -> tuple[Tensor, nn.Parameter]:
    """A stream in bf16, and a weight that bf16 and TF32 round."""
    generator = torch.Generator().manual_seed(0)
    stream = torch.randn(1024, 64, generator=generator).bfloat16().to(device)
    weight = 0.2 * torch.randn(4096, 64, generator=generator)
    return stream.requires_grad_(), nn.Parameter(weight.to(device))


@pytest.mark.parametrize(
    ("products", "limit"), [("ieee", 1e-6), ("tf32", 1e-3), ("bfloat16", 3e-3)]
)
def test_fp32_head_tf32_and_bf16(products: str, limit: float, device: torch.device) -> None:
    stream, weight = draw_head(device)
    logits = HeadProduct.apply(stream, weight, PRODUCTS[products])
    wanted = stream.detach().double() @ weight.detach().double().T
    assert logits.dtype == torch.float32
    distance = (logits.detach().double() - wanted).norm() / wanted.norm()
    # a CPU has no TF32
    is_rounded = products == "bfloat16" or (products == "tf32" and device.type != "cpu")
    assert (1e-5 if is_rounded else 0) <= distance <= limit
    slopes = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).to(device)
    (found,) = torch.autograd.grad(logits, weight, slopes)
    truth = slopes.double().T @ stream.detach().double()
    assert (found.double() - truth).norm() <= limit * truth.norm()
    # what follows is computed as before
    assert torch.get_float32_matmul_precision() == "highest"
