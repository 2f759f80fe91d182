"""What verl lacks on a CPU: a platform, its own FSDP engine there, and workers over gloo.

Import it before verl with VERL_PLATFORM=cpu, in every Ray worker too (VERL_USE_EXTERNAL_MODULES).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = SimpleNamespace(
        **{name: getattr(torch.cpu, name) for name in ("synchronize", "current_device")},
        is_available=lambda: True,
        max_memory_allocated=lambda *given: 0,
        max_memory_reserved=lambda *given: 0,
        memory_allocated=lambda *given: 0,
        memory_reserved=lambda *given: 0,
        mem_get_info=lambda *given: (1, 1),
        empty_cache=lambda: None,
        get_device_name=lambda *given: "cpu",
        get_device_properties=lambda *given: SimpleNamespace(total_memory=1),
        set_device=lambda *given: None,
        manual_seed=torch.manual_seed,
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
        device_count=lambda: 1,
    )

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def open_group() -> None:
    """verl's own call names gloo twice, which torch refuses: make the group before it."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def register_fsdp() -> None:
    """verl registers its own engine for accelerators only, and pins a reference's weights."""
    from torch.distributed.fsdp import CPUOffloadPolicy
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    def keep_unpinned(pin_memory: bool = True) -> CPUOffloadPolicy:
        return CPUOffloadPolicy(pin_memory=False)

    transformer_impl.CPUOffloadPolicy = keep_unpinned

    for backend in ("fsdp", "fsdp2"):
        if "cpu" not in EngineRegistry._engines["language_model"][backend]:
            EngineRegistry.register("language_model", backend, device="cpu")(FSDPEngineWithLMHead)
