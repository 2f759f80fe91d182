"""Tells somebody that a run has ended: runs the command that TITANRUN_NOTIFY names, which finds in its environment what happened."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

NOTIFY = "TITANRUN_NOTIFY"
# whoever is told must not keep the machines
PATIENCE_SECONDS = 60


def notify(
    environment: Mapping[str, str],
    run_dir: Path,
    *,
    state: str,
    step: int,
    exit_code: int,
    message: str,
) -> str | None:
    """Runs the command, where there is one. Returns why nobody was told; None where somebody was, or was not to be.

    Args:
        environment: that of this process.
        run_dir: the run's folder, in which the command starts.
        state: finished, preempted or failed.
        step: the last step that is done.
        exit_code: what the run ends with.
        message: the last words, without secrets.
    """
    command = environment.get(NOTIFY)
    if not command:
        return None
    told = {
        "RUN": run_dir.resolve(),
        "STATE": state,
        "STEP": step,
        "EXIT_CODE": exit_code,
        "MESSAGE": message,
    }
    variables = {**environment, **{f"TITANRUN_{name}": str(value) for name, value in told.items()}}
    try:
        done = subprocess.run(
            command,
            shell=True,
            cwd=run_dir,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{NOTIFY}: {error}"
    said = done.stderr.decode(errors="replace").strip()
    return (
        None
        if done.returncode == 0
        else f"{NOTIFY} ended with exit code {done.returncode}{f': {said}' if said else ''}"
    )
