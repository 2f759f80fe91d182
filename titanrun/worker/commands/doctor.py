"""`python -m titanrun.worker.commands.doctor`: print torch's view of this machine.

The output is one JSON object for `titanrun doctor`.
"""

import json
import sys

import torch

from titanrun.distributed.device import get_device_name


def describe_accelerators() -> list[dict[str, object]]:
    """Return kind, name, memory and bf16 support of every accelerator that torch can use."""
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    module = torch.get_device_module(kind)
    found = []
    for index in range(torch.accelerator.device_count()):
        properties = (
            module.get_device_properties(index)
            if hasattr(module, "get_device_properties")
            else None
        )
        bf16 = module.is_bf16_supported(including_emulation=False) if kind.type == "cuda" else None
        total = getattr(properties, "total_memory", None)
        found.append(
            {
                "kind": kind.type,
                "name": get_device_name(torch.device(kind.type, index)),
                "memory_bytes": total,
                "bf16": bf16,
            }
        )
    return found


def build_torch_report() -> dict[str, object]:
    """Return torch's versions, CPU capability, threads and accelerators."""
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "accelerators": describe_accelerators(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(build_torch_report()) + "\n")
