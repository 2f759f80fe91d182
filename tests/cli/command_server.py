"""A process that has imported the commands, and forks for each `titanrun WORD ...` of a test.

The fork gets arguments, environment, folder and standard streams as a program gets them from a
shell, and runs the function that the installed script runs. What the imports cost is paid once.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import IO

REQUEST_BYTES = 1 << 20
SCRIPT = Path(sys.executable).parent / "titanrun"
POLL_SECONDS = 0.002


class CommandServer:
    """The process, as tests use it."""

    def __init__(self) -> None:
        self.channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.cli.command_server", str(other.fileno())]
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(command, pass_fds=[other.fileno()], cwd=root)
        other.close()

    def run(
        self,
        *words: str,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        input: str = "",  # noqa: A002 as subprocess.run names it
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        command = [str(SCRIPT), *words]
        env = dict(os.environ if env is None else env)
        if select_python_settings(env) != select_python_settings(os.environ):
            # an interpreter reads these when it starts
            return subprocess.run(
                command, cwd=cwd, env=env, input=input, timeout=timeout, capture_output=True,
                text=True, check=False,
            )  # fmt: skip
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(input.encode())
            files[0].seek(0)
            request = json.dumps({"words": words, "cwd": str(cwd), "env": env}).encode()
            socket.send_fds(self.channel, [request], [file.fileno() for file in files])
            pid = int(self.channel.recv(REQUEST_BYTES))
            code = self.wait(pid, command, timeout)
            texts = [read_from_start(file) for file in files[1:]]
        return subprocess.CompletedProcess(command, code, *texts)

    def wait(self, pid: int, words: list[str], timeout: float) -> int:
        """Return the exit code of a fork. Kill it if it takes too long."""
        self.channel.settimeout(timeout)
        try:
            return int(self.channel.recv(REQUEST_BYTES))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self.channel.settimeout(None)
            self.channel.recv(REQUEST_BYTES)
            raise subprocess.TimeoutExpired(words, timeout) from None
        finally:
            self.channel.settimeout(None)

    def close(self) -> None:
        """End the process."""
        self.channel.close()
        self.process.wait()


def select_python_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the interpreter itself."""
    return {name: text for name, text in environment.items() if name.startswith("PYTHON")}


def read_from_start(file: IO[bytes]) -> str:
    """Return what another process has written into a file, as subprocess.run returns it."""
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n").replace("\r", "\n")


def serve(channel: socket.socket) -> None:
    """Fork for each request until the tests end; answer with process ids and exit codes."""
    main = import_module("titanrun.cli.main")
    for command in main.COMMANDS:
        import_module(f"titanrun.cli.{command.replace('-', '_')}")
    import_module("titanrun.recipe.builtins").register_builtins()
    while True:
        data, files, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 3)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            run_command(json.loads(data), files)
        channel.send(str(pid).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        channel.send(str(code).encode())
        for file in files:
            os.close(file)


def run_command(request: dict[str, object], files: list[int]) -> None:
    """Become the command. Never return."""
    for stream, file in enumerate(files):
        os.dup2(file, stream)
        os.close(file)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    time.tzset()
    sys.argv = [str(SCRIPT), *request["words"]]  # type: ignore[misc]
    import_module("titanrun.cli.main").main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
