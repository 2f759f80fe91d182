"""The parts of torchao, imported when first needed: it takes seconds, and complains of kernels that the machine has no use for."""

import logging
import warnings
from importlib import import_module
from types import ModuleType

NOISY = ("torchao", "torch.utils._pytree")


def torchao_part(name: str) -> ModuleType:
    """The module `torchao.<name>`."""
    for logger in NOISY:
        logging.getLogger(logger).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(f"torchao.{name}")
