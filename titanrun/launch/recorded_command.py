"""`python -m titanrun.launch.recorded_command`: run a command and leave its exit code in a file.

Whoever started it may end meanwhile, so nobody waits for it. The descriptor that it gets holds a
lock until the command has ended: what cannot take the lock knows that the command still runs.
"""

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from titanrun.launch.detached_command import COMMAND, EXIT_CODE


def main() -> int:
    """Run `titanrun` with the arguments after the folder and the descriptor of the lock."""
    folder, lock, *arguments = sys.argv[1:]
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    # before there is a command: a signal that ended only this process would leave it alone
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    # with the lock, which stays taken as long as the command runs, whatever ends this process
    process = subprocess.Popen([*COMMAND, *arguments], pass_fds=[int(lock)])
    for received in early:
        process.send_signal(received)
    code = process.wait()
    code = code if code >= 0 else 128 - code
    part = Path(folder, f"{EXIT_CODE}.part")
    part.write_text(str(code), encoding="utf-8")
    part.replace(Path(folder, EXIT_CODE))
    return code


if __name__ == "__main__":
    sys.exit(main())
