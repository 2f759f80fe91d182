"""What a report leaves out unless it is asked for: where files lie, and on whose machine."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

# an absolute path, but no part of an address or of a relative path
ABSOLUTE_PATH = re.compile(
    r"(?<![\w./:~*-])/(?:[^\s/:'\",;()\[\]{}<>|=]+/)*[^\s/:'\",;()\[\]{}<>|=]*"
)
ELSEWHERE = "…"
HOST = "(host)"
# names that say nothing about a machine
PLAIN_HOSTS = ("localhost", "")
Redact = Callable[[str], str]


def keep_text(text: str) -> str:
    """Return the text as it is."""
    return text


def build_redaction(folder: Path, hosts: Iterable[str]) -> Redact:
    """Build the redaction of a run's texts.

    Paths below the run are relative to it, of others only the last part is kept, and host names are
    replaced.
    """
    roots = {str(folder.absolute()), str(folder.resolve())}
    names = [re.escape(name) for name in hosts if name not in PLAIN_HOSTS]
    host_pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(names)})(?![\w-])") if names else None

    def shorten(match: "re.Match[str]") -> str:
        path = match.group().rstrip("/")
        for root in roots:
            if path == root or path.startswith(f"{root}/"):
                return os.path.relpath(path, root)
        parts = path.split("/")
        return f"{ELSEWHERE}/{parts[-1]}" if len(parts) > 2 else match.group()

    def redact(text: str) -> str:
        text = ABSOLUTE_PATH.sub(shorten, text)
        return host_pattern.sub(HOST, text) if host_pattern else text

    return redact
