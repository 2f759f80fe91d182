"""What a worker imports, and when: the time to the first step is mostly imports."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., Path]

NEVER_AT_START = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.utils.tensorboard",
    "torchao",
    "datasets",
    "transformers",
    "rich",
    "sympy",
)


def loaded_by(code: str, *arguments: str) -> list[str]:
    """Which of the heavy modules a fresh process has loaded after `code`."""
    report = f"\nimport json; print(json.dumps([name for name in {NEVER_AT_START!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}{report}", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_without_checkpoints_loads_nothing_it_does_not_use(run: Run) -> None:
    resolved = run("run", "checkpoint.enable=false", "training.steps=2")
    code = "from titanrun.worker.main import main\nassert main(sys.argv[1:]) == 0"
    assert loaded_by(code, str(resolved)) == []
