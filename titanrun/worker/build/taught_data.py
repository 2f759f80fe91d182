"""Data of a run whose loss reads predictions of a teacher from files."""

from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.taught_rows import open_taught_rows
from titanrun.components.losses.distillation_config import DistillationConfig
from titanrun.recipe.recipe import Recipe


def maybe_add_predictions(recipe: Recipe, rows: IndexedDataset, section: str) -> IndexedDataset:
    """Return a dataset with the predictions that the recipe's loss reads, if it reads any.

    Args:
        recipe: the recipe.
        rows: the dataset.
        section: name of the dataset, such as `training`, which is the folder of its predictions.

    Raises:
        ProblemsFound: there are none, or they are of another dataset.
    """
    loss = recipe.loss
    if not isinstance(loss, DistillationConfig) or loss.teacher_logprobs is None:
        return rows
    taught = loss.teacher_logprobs
    folder = taught.folder / section
    return open_taught_rows(rows, folder, top_k=taught.top_k, temperature=loss.temperature)
