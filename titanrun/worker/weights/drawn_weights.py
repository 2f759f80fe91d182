"""Frozen weights that a run drew from its seed, drawn again for a checkpoint of adapters only."""

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from titanrun.components.checkpoints.checkpoint_reader import CheckpointReader
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import problem_error
from titanrun.distributed.device import CPU, get_device_name, select_device
from titanrun.distributed.precision import get_precision
from titanrun.recipe.recipe import Recipe

if TYPE_CHECKING:
    from titanrun.worker.build import build_model
else:
    # only needed where weights are drawn
    build_model = LazyModule("titanrun.worker.build.build_model")

log = logging.getLogger(__name__)


def draw_base_weights(recipe: Recipe, checkpoint: CheckpointReader) -> dict[str, Tensor]:
    """Draw the weights that the checkpoint's run drew from `debug.seed`, in its storage dtype.

    Raises:
        ProblemsFound: this machine does not draw the same numbers.
    """
    manifest = checkpoint.load_manifest()
    device = select_drawing_device(manifest.layout.get("device"))
    if manifest.versions.get("torch") != torch.__version__:
        log.warning(
            "the frozen weights were drawn by torch %s and are drawn again by torch %s: "
            "compare results before you trust them",
            manifest.versions.get("torch"),
            torch.__version__,
        )
    section = recipe.training
    model = build_model.build_model(
        recipe, get_precision(section.dtype, section.mixed_precision_param)
    )
    build_model.materialize_and_init(model, device=device, seed=recipe.debug.seed)
    return {name: tensor.to(CPU) for name, tensor in model.state_dict().items()}


def select_drawing_device(drawn_on: str | None) -> torch.device:
    """Return the device that draws what a device of that name drew.

    Generators of other devices draw other numbers from the same seed.

    Raises:
        ProblemsFound: this machine has no such device.
    """
    if drawn_on == CPU.type:
        return CPU
    device = select_device("auto")
    if get_device_name(device) != drawn_on:
        message = (
            "the frozen weights are not in the checkpoint: its run drew them from debug.seed on "
            f"{drawn_on or 'an unknown device'}, and this machine has {get_device_name(device)}"
        )
        raise problem_error(
            "checkpoint",
            message,
            hint="use a machine with that device, or train with checkpoint.adapters_only: false; "
            "'titanrun push --format adapter' and 'checkpoint export' without --merge need no "
            "frozen weights",
        )
    return device
