"""Consent to import the plug-ins that recipes of a workspace list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.config.trust import NamedCode, compute_code_digest, is_trusted, remember_trust
from titanrun.recipe.plugins import restrict_plugins

MAX_PLUGINS = 50


@dataclass(frozen=True, slots=True)
class PluginConsent:
    """Which plug-ins the user allows in one workspace; remembered beside other consent."""

    workspace: Path
    environment: Mapping[str, str]

    def is_allowed(self, name: str) -> bool:
        """Return whether recipes of this workspace may import a plug-in."""
        return is_trusted(self.describe(name), self.environment)

    def allow(self, names: Sequence[str]) -> dict[str, Any]:
        """Remember that these plug-ins may be imported from here on."""
        for name in names[:MAX_PLUGINS]:
            remember_trust(self.describe(name), self.environment)
        self.apply()
        return {}

    def apply(self) -> None:
        """Make whoever reads a recipe in this process ask first."""
        restrict_plugins(self.is_allowed)

    def describe(self, name: str) -> NamedCode:
        """Return a plug-in as code that a recipe names."""
        digest = compute_code_digest("command", ["plug-in", str(self.workspace), name])
        return NamedCode("command", ("plugins",), f"plug-in {name} in {self.workspace}", digest)
