"""Prints, as JSON, the messages of the golden cases in the folders it is given, with a model family
that no user has.

A script, since a family that a test defines stays registered: example_moe has experts and lacks
what the shipped families have.
"""

import json
import os
import sys
from pathlib import Path
from typing import ClassVar, Literal

from test_golden_problems import message

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.types import PositiveInt
from titanrun.models.llama3.config import Llama3Config


class ExampleExpertsConfig(Config):
    """Experts."""

    num_experts: PositiveInt = numerics(6)
    """Experts of a layer."""


class ExampleMoeConfig(Llama3Config):
    """A family with experts and without pipelining."""

    name: Literal["example_moe"] = bookkeeping("example_moe")  # type: ignore[assignment]
    builds: ClassVar = "builtins:dict"
    unsupported_features: ClassVar = frozenset({"pipeline parallelism", "gradient accumulation"})
    moe: ExampleExpertsConfig = section(ExampleExpertsConfig)


def main(folders: list[str]) -> None:
    """One message a folder."""
    messages = {}
    for folder in folders:
        os.chdir(folder)
        messages[folder] = message(Path(folder))
    print(json.dumps(messages))


if __name__ == "__main__":
    main(sys.argv[1:])
