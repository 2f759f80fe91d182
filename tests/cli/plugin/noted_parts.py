"""What the plug-in `noted` builds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from titanrun.components.converters.conversion import Conversion
from titanrun.components.data.tiny import tiny_rows
from titanrun.components.losses.cross_entropy import CrossEntropy
from titanrun.components.modules.gated_feed_forward import GatedFeedForward
from titanrun.components.optimizers.adamw import build_adamw
from titanrun.components.schedules.warmup_stable_decay import WarmupStableDecay
from titanrun.components.tokenizers.huggingface import tiny_tokenizer
from titanrun.distributed.activation_checkpoint import keep_all
from titanrun.launch.local import start
from titanrun.models.llama3.model import Llama3
from titanrun.models.shared.rope import llama3_scaling

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

    def __init__(self, config: Any, *, run_dir: Path, tracked: Any) -> None:
        pass

    def log(self, step: int, values: dict[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


def convert(config: Any, *, model: Any, shards: int) -> Conversion:
    """Leaves the model as it is."""
    return Conversion()


model = noting("model", Llama3)
rope_scaling = noting("rope_scaling", llama3_scaling)
converters = noting("converters", convert)
tokenizer = noting("tokenizer", tiny_tokenizer)
dataset = noting("dataset", tiny_rows)
optimizer = noting("optimizer", build_adamw)
lr_scheduler = noting("lr_scheduler", WarmupStableDecay)
loss = noting("loss", CrossEntropy)
activation_checkpoint = noting("activation_checkpoint", keep_all)
module = noting("module", GatedFeedForward)
trackers = noting("trackers", Tracker)
launch = noting("launch", start)
