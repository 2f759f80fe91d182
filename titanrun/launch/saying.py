"""How the launcher speaks: lines for people, or with --log-format json an object a line, as the workers do."""

import json
import sys
import time

from titanrun.launch.environment import logs_json


def say(text: str, *, level: str = "info") -> None:
    """One message on stderr."""
    line = (
        json.dumps({"time": time.time(), "level": level, "message": text}, ensure_ascii=False)
        if logs_json()
        else text
    )
    print(line, file=sys.stderr, flush=True)
