"""Rules about the model."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.distributed.degrees import degrees_of
from titanrun.models.shared.config import Feature, ModelConfig
from titanrun.models.shared.family import family_file
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.attention import BACKEND, attention_backend
from titanrun.recipe.rules.book import Finding, rank_rule
from titanrun.rl.generators.config import VllmConfig


@rank_rule("family-has-feature")
def family_has_feature(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """A model family may lack what the others can do, such as pipeline parallelism: the recipe asks for it all the same. Leave the
    setting at its default, or take another family."""
    for feature, path in features_asked_for(run, ranks).items():
        if feature in lacking(run.model):
            help = run.model.instead.get(feature, "leave it at its default")
            yield Finding(
                f"{run.model.name} does not have {feature}", (path, ("model", "name")), help=help
            )


def lacking(model: ModelConfig) -> frozenset[Feature]:
    """What a family cannot do: what it says itself, and tensor parallelism if it has no plan for it."""
    has_plan = family_file(type(model), "parallelize.py").exists()
    return model.lacks if has_plan else model.lacks | {"tensor parallelism"}


def features_asked_for(run: Recipe, ranks: int | None) -> dict[Feature, DataPath]:
    """What a recipe asks of its model beyond a plain step, with the setting that does."""
    degrees: dict[Feature, str] = {
        "tensor parallelism": "tensor_parallel_degree",
        "pipeline parallelism": "pipeline_parallel_degree",
        "context parallelism": "context_parallel_degree",
        "expert parallelism": "expert_parallel_degree",
    }
    asked: dict[Feature, DataPath] = {
        feature: ("parallelism", name)
        for feature, name in degrees.items()
        if getattr(run.parallelism, name) > 1
    }
    backend = attention_backend(run)
    generator = None if run.rl is None else run.rl.generator
    if isinstance(generator, VllmConfig) and generator.model == "native":
        asked["paged attention"] = ("rl", "generator")
    if backend == "varlen":
        asked["varlen attention"] = BACKEND
    if backend == "flex" and "context parallelism" in asked:
        asked["context parallelism with flex attention"] = BACKEND
    laid_out = degrees_of(run.parallelism, ranks)
    if (
        laid_out is not None
        and int(run.training.global_batch_size) > run.training.local_batch_size * laid_out.batch
    ):
        asked["gradient accumulation"] = ("training", "global_batch_size")
    if run.loss.pieces is not None:
        asked["a loss in chunks"] = ("loss", "name")
    if run.validation.enable:
        asked["validation"] = ("validation", "enable")
    return asked
