"""Builder of the engine: model, converters, parallel layout and optimizer."""

import logging
from functools import partial

import torch

from titanrun.components.data.document_ids import DocumentIdFn
from titanrun.distributed.determinism import enable_deterministic_algorithms, seed_everything
from titanrun.distributed.heartbeat import send_heartbeat
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import cast_untrained_model
from titanrun.models.shared.flash_kernels import activate_flash_kernels
from titanrun.recipe.recipe import Recipe
from titanrun.training.engine import Engine
from titanrun.training.engine_state import FrozenRole
from titanrun.training.parameter_counts import count_trainable_parameters
from titanrun.worker.build.apply_converters import (
    check_conversions,
    check_device_kernels,
    convert_model,
    log_conversions,
)
from titanrun.worker.build.build_model import (
    build_engine_from_model,
    build_model,
    check_attention_dtype,
    check_param_groups,
    materialize_and_init,
)
from titanrun.worker.build.build_parallelism import is_offloaded_to_cpu, parallelize_model

log = logging.getLogger(__name__)


def set_determinism(recipe: Recipe) -> None:
    """Seed all RNGs and enable deterministic algorithms if `debug.deterministic` is set."""
    seed_everything(recipe.debug.seed)
    if recipe.debug.deterministic:
        enable_deterministic_algorithms(warn_only=recipe.debug.deterministic_warn_only)


def build_engine(
    recipe: Recipe,
    device: torch.device,
    meshes: ParallelMeshes | None,
    document_id_fn: DocumentIdFn,
    role: FrozenRole | None = None,
) -> Engine:
    """Build the engine: a parallelized model with initial weights, and its optimizer.

    A model with a role is a frozen one beside the trained model, and messages name it so. Its
    weights are stored in the compute dtype.
    """
    precision = get_precision(recipe.training.dtype, recipe.training.mixed_precision_param)
    check_device_kernels(recipe, device)
    check_attention_dtype(recipe, device, precision)
    activate_flash_kernels(device)
    model = build_model(recipe, precision)
    conversions = convert_model(recipe, model, meshes=meshes)
    check_conversions(recipe, model, conversions)
    if role is not None:
        cast_untrained_model(model, precision)
    check_param_groups(recipe, model)
    parameters = count_trainable_parameters(model)
    if role is None:
        log_conversions(recipe, model, conversions)
    else:
        log.info("%s: %s parameters, frozen", role, f"{parameters.total:,}")
    layout = parallelize_model(recipe, model, meshes=meshes, precision=precision)
    materialize_and_init(
        model,
        device=device,
        seed=recipe.debug.seed,
        is_offloaded=is_offloaded_to_cpu(recipe, meshes),
    )
    send_heartbeat()
    engine = build_engine_from_model(
        recipe, model, layout, device=device, meshes=meshes, document_id_fn=document_id_fn
    )
    engine.parameters, engine.role = parameters, role
    for conversion in conversions:
        if conversion.on_weights_changed is not None:
            engine.add_weights_listener(partial(conversion.on_weights_changed, model))
    return engine
