"""What the plug-in `noted` builds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from titanrun.components.converters.conversion_report import ConversionReport
from titanrun.components.data.tiny_dataset import build_tiny_dataset
from titanrun.components.losses.cross_entropy import CrossEntropyLoss
from titanrun.components.lr_schedulers.spec.warmup_stable_decay import WarmupStableDecaySchedule
from titanrun.components.modules.gated_feed_forward import GatedFeedForward
from titanrun.components.optimizers.adamw import build_adamw
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.distributed.activation_checkpoint import apply_no_ac
from titanrun.launch.local_launcher import start_local_run
from titanrun.models.llama3.model import Llama3
from titanrun.models.shared.rope import apply_llama3_scaling

NOTES = Path("notes.txt")


def noting(slot: str, build: Callable[..., Any]) -> Callable[..., Any]:
    """`build`, with a line in the notes for each call."""

    def noted(config: Any, **keywords: Any) -> Any:
        split = getattr(config, "split", None)
        with NOTES.open("a", encoding="utf-8") as notes:
            notes.write(f"{slot} {split}\n" if split else f"{slot}\n")
        return build(config, **keywords)

    return noted


class Tracker:
    """Takes every metric and keeps none."""

    def __init__(self, config: Any, *, run_dir: Path, run_info: Any) -> None:
        pass

    def log(self, step: int, values: dict[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


def convert(config: Any, *, model: Any, shards: int) -> ConversionReport:
    """Leaves the model as it is."""
    return ConversionReport()


model = noting("model", Llama3)
rope_scaling = noting("rope_scaling", apply_llama3_scaling)
converters = noting("converters", convert)
tokenizer = noting("tokenizer", build_tiny_tokenizer)
dataset = noting("dataset", build_tiny_dataset)
optimizer = noting("optimizer", build_adamw)
lr_scheduler = noting("lr_scheduler", WarmupStableDecaySchedule)
loss = noting("loss", CrossEntropyLoss)
activation_checkpoint = noting("activation_checkpoint", apply_no_ac)
module = noting("module", GatedFeedForward)
trackers = noting("trackers", Tracker)
launch = noting("launch", start_local_run)
