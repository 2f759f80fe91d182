"""Import of torchao on first use, without its warnings.

The import takes seconds, and torchao warns about kernels that this machine does not need.
"""

import logging
import warnings
from importlib import import_module
from types import ModuleType

NOISY_LOGGERS = ("torchao", "torch.utils._pytree")


def import_torchao(name: str) -> ModuleType:
    """Return the module `torchao.<name>`."""
    for logger in NOISY_LOGGERS:
        logging.getLogger(logger).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(f"torchao.{name}")
