"""Rules about the model."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.models.shared.config import ModelConfig, ModelFeature
from titanrun.models.shared.spec.family import get_family_file
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.attention import BACKEND, find_attention_backend
from titanrun.recipe.rules.registry import RuleViolation, rank_rule
from titanrun.rl.generators.config import VllmConfig


@rank_rule("family-has-feature")
def family_has_feature(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require the model family to support every feature that the recipe uses.

    A family may lack what others have, such as pipeline parallelism. Leave the setting at its
    default, or use another family.
    """
    for feature, path in get_requested_features(run, ranks).items():
        if feature in find_unsupported_features(run.model):
            hint = run.model.alternative.get(feature, "leave it at its default")
            yield RuleViolation(
                f"model '{run.model.name}' does not support {feature}",
                (path, ("model", "name")),
                hint=hint,
            )


def find_unsupported_features(model: ModelConfig) -> frozenset[ModelFeature]:
    """Return the features that a family lacks.

    These are the ones that it declares, and tensor parallelism if it has no parallelize.py.
    """
    has_plan = get_family_file(type(model), "parallelize.py").exists()
    return (
        model.unsupported_features
        if has_plan
        else model.unsupported_features | {"tensor parallelism"}
    )


def get_requested_features(run: Recipe, ranks: int | None) -> dict[ModelFeature, DataPath]:
    """Return the model features that a recipe uses, each with the path of its setting.

    Only features beyond a plain training step count.
    """
    degrees: dict[ModelFeature, str] = {
        "tensor parallelism": "tensor_parallel_degree",
        "pipeline parallelism": "pipeline_parallel_degree",
        "context parallelism": "context_parallel_degree",
        "expert parallelism": "expert_parallel_degree",
    }
    requested: dict[ModelFeature, DataPath] = {
        feature: ("parallelism", name)
        for feature, name in degrees.items()
        if getattr(run.parallelism, name) > 1
    }
    backend = find_attention_backend(run)
    generator = None if run.rl is None else run.rl.generator
    if isinstance(generator, VllmConfig) and generator.model == "native":
        requested["paged attention"] = ("rl", "generator")
    if backend == "varlen":
        requested["varlen attention"] = BACKEND
    if backend == "flex" and "context parallelism" in requested:
        requested["context parallelism with flex attention"] = BACKEND
    parallel_dims = resolve_parallel_dims(run.parallelism, ranks)
    if (
        parallel_dims is not None
        and int(run.training.global_batch_size)
        > run.training.local_batch_size * parallel_dims.dp_size
    ):
        requested["gradient accumulation"] = ("training", "global_batch_size")
    if run.loss.num_loss_chunks is not None:
        requested["a loss in chunks"] = ("loss", "name")
    if run.validation.enable:
        requested["validation"] = ("validation", "enable")
    return requested
