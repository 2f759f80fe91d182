"""Kind sft trains on conversations, also on those in a mixture."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

CHAT, TEXT = "{name: tiny_chat}", "{name: tiny}"


def resolve(folder: Path, *sources: str) -> str:
    parts = ", ".join(f"{{dataset: {source}, weight: 0.5}}" for source in sources)
    (folder / "mine.yaml").write_text(
        "version: 1\nkind: sft\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\n"
        f"training: {{dataset: {{name: mixture, sources: [{parts}]}}, seq_len: 64}}\n"
    )
    try:
        return resolve_recipe(str(folder / "mine.yaml"), [], environment={}).run.kind
    except ProblemsFound as error:
        return str(error.problems[0].rule)


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ((CHAT, CHAT), "sft"),
        ((CHAT, TEXT), "sft"),
        ((TEXT, TEXT), "sft-needs-conversations"),
    ],
)
def test_a_mixture_has_conversations_if_a_source_has(
    sources: tuple[str, ...], found: str, tmp_path: Path
) -> None:
    assert resolve(tmp_path, *sources) == found
