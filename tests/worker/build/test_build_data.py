"""The loader of a recipe."""

from pathlib import Path

import numpy as np
import pytest

from titanrun.components.data.dataloader import DataloaderExhaustedError
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.worker.build.build_data import DataParallelRank, build_dataloader

RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel}
training: {seq_len: 4, local_batch_size: 1, global_batch_size: 2, steps: 4}
lr_scheduler: {warmup_steps: 0}
"""
TOKENS = "{name: tokens, path: rows.npy"


@pytest.mark.parametrize(
    "dataset",
    [TOKENS, f"{{name: mixture, sources: [{{dataset: {TOKENS}}}}}]"],
    ids=["tokens", "mixture"],
)
def test_rows_come_in_the_order_that_the_recipe_says(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.arange(10)[:, None] + np.zeros((1, 5), dtype=np.int32))
    Path("recipe.yaml").write_text(RECIPE)

    def read(text: str) -> list[int]:
        override = f"training.dataset={dataset}, {text}}}"
        resolved = resolve_recipe("recipe.yaml", [override], environment={}, ranks=1)
        recipe = load_resolved_text(resolved.text)
        loader = build_dataloader(recipe, None, tmp_path / "run", DataParallelRank())
        found: list[int] = []
        try:
            for _ in range(7):
                found += loader.next_samples()[:, 0].tolist()
        except DataloaderExhaustedError:
            pass
        return found

    assert read("shuffle: false, repeat: true") == [*range(10), 0, 1, 2, 3]
    assert read("shuffle: false, repeat: false") == [*range(10)]
    shuffled = read("shuffle: true, repeat: false")
    assert sorted(shuffled) == [*range(10)] != shuffled
