"""What the routes of the server ask."""

from dataclasses import dataclass
from typing import Any

from titanrun.ui.examination import TextExaminer
from titanrun.ui.jobs import JobStarter
from titanrun.ui.plugin_consent import PluginConsent
from titanrun.ui.run_catalog import RunCatalog
from titanrun.ui.workspace import Workspace


@dataclass(slots=True)
class UiParts:
    """What the routes ask: the workspace, its runs, the examiner, and the commands."""

    workspace: Workspace
    catalog: RunCatalog
    examiner: TextExaminer
    jobs: JobStarter
    consent: PluginConsent
    about: dict[str, Any]
    is_read_only: bool
    is_closing: bool = False
    num_streams: int = 0
