"""End-of-run notification: runs the command in TITANRUN_NOTIFY.

The command finds in its environment what happened.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

NOTIFY_VARIABLE = "TITANRUN_NOTIFY"
# a hanging command must not keep the machines allocated
NOTIFY_TIMEOUT_SECONDS = 60


def run_notify_command(
    environment: Mapping[str, str],
    run_dir: Path,
    *,
    state: str,
    step: int,
    exit_code: int,
    message: str,
) -> str | None:
    """Run the notification command, if set, and return why it failed.

    Return None if it succeeded or there is no command.

    Args:
        environment: Environment of this process.
        run_dir: Folder of the run, in which the command starts.
        state: finished, preempted or failed.
        step: Last completed step.
        exit_code: Exit code of the run.
        message: Final message, without secrets.
    """
    command = environment.get(NOTIFY_VARIABLE)
    if not command:
        return None
    details = {
        "RUN": run_dir.resolve(),
        "STATE": state,
        "STEP": step,
        "EXIT_CODE": exit_code,
        "MESSAGE": message,
    }
    variables = dict(environment) | {f"TITANRUN_{key}": str(details[key]) for key in details}
    try:
        done = subprocess.run(
            command,
            shell=True,
            cwd=run_dir,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=NOTIFY_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{NOTIFY_VARIABLE}: {error}"
    if done.returncode == 0:
        return None
    stderr = done.stderr.decode(errors="replace").strip()
    suffix = f": {stderr}" if stderr else ""
    return f"{NOTIFY_VARIABLE} ended with exit code {done.returncode}{suffix}"
