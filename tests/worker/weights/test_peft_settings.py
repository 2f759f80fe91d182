"""Settings of adapters in peft's files."""

from pathlib import Path

import pytest

from titanrun.components.converters.config import LoraConfig
from titanrun.config.problems import ProblemsFound
from titanrun.worker.weights.peft_settings import load_peft_settings


def test_a_model_in_the_place_of_an_adapter_is_told_so(tmp_path: Path) -> None:
    config = LoraConfig(rank=8, alpha=16.0)
    with pytest.raises(ProblemsFound, match="cannot read"):
        load_peft_settings(tmp_path, config)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ProblemsFound) as found:
        load_peft_settings(tmp_path, config)
    (problem,) = found.value.problems
    assert problem.message.startswith(f"'{tmp_path}' is a model, not an adapter")
    assert f"checkpoint import {tmp_path} out --from hf" in (problem.hint or "")
