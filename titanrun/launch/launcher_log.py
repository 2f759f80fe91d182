"""Log lines of the launcher: text, or JSON objects with --log-format json, as in workers."""

import json
import sys
import time

from titanrun.launch.launch_env import is_json_log_format


def log_line(text: str, *, level: str = "info") -> None:
    """Write one message to stderr."""
    line = (
        json.dumps({"time": time.time(), "level": level, "message": text}, ensure_ascii=False)
        if is_json_log_format()
        else text
    )
    print(line, file=sys.stderr, flush=True)
