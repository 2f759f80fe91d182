"""verl's TrainingWorker in a process of its own, on a CPU."""

from typing import Any

from verl.workers.engine_workers import TrainingWorker

from tests.integrations.verl_package.cpu_platform import open_group, register_fsdp


class CpuWorker(TrainingWorker):
    def __init__(self, config: Any) -> None:
        open_group()
        register_fsdp()
        super().__init__(config=config)
