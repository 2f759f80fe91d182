"""Modules that are imported at first use, while type checkers see the real module."""

from importlib import import_module
from typing import Any


class LazyModule:
    """Stand-in for a module, for the `else` branch of an `if TYPE_CHECKING:` that imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
