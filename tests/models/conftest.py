"""Resolved model configs for the tests of the families."""

from collections.abc import Callable
from typing import Any

import pytest

from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.flavors import spell_out

TINY = {"vocab_size": 96, "dim": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 16384}


@pytest.fixture
def llama3() -> Callable[..., Llama3Config]:
    """Makes a resolved llama3 config; without a flavor a tiny one, with `fields` on top."""

    def make(flavor: str | None = None, **fields: Any) -> Llama3Config:
        written = {"flavor": flavor, **fields} if flavor else {**TINY, **fields}
        return Llama3Config.model_validate(spell_out(Llama3Config.model_validate(written)))

    return make
