"""What a model card says of how a model is used, and of a run whose files are damaged."""

from pathlib import Path

import pytest

from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.runs.model_card import PushedModel, format_use, read_step_metrics

RECIPE = """\
version: 1
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, steps: 1}
"""


def test_lines_of_metrics_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    """Row B13 of the defect list: bytes that are no UTF-8 ended a command with a traceback."""
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(
        b'{"step": 1, "loss": 3.0}\n\xff\xfe\n{"step": "two", "loss": 2.5}\n[1]\n'
        b'{"step": 2, "loss": 2.0}\n{"step": 9, "loss": 1.0}\n'
    )
    assert read_step_metrics(file, 2) == {"step": 2, "loss": 2.0}
    assert read_step_metrics(tmp_path / "nothing", 2) == {}


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        ("hf", "```python\nfrom transformers import pipeline\n"),
        ("adapter", "```python\nfrom peft import AutoPeftModelForCausalLM\n"),
        ("gguf", "```bash\nllama-cli -hf me/mine\n```\n"),
    ],
)
def test_a_model_is_used_in_the_language_of_its_format(
    kind: str, begins: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    recipe = resolve_recipe(str(file), [], environment={}).recipe
    model = PushedModel(tmp_path, tmp_path, recipe, "me/mine", kind, None, None, (), False)
    assert format_use(model).startswith(begins)
