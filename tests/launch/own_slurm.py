"""A Slurm of the test's own: a controller and nodes with two cores, in a folder, as whoever runs
the test."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.launch.reserved_port import reserve_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
INSTALL = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client"
# a job that goes back into the queue waits until its credentials have expired
# a job of `high` takes the place of one of `low`, which gets a minute to save and goes back into
# the queue
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,defer_batch
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
KillWait=60
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=120 MaxTime=INFINITE
PartitionName=high Nodes=ALL PriorityTier=2 MaxTime=INFINITE
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"


def missing_programs() -> list[str]:
    """The programs of Slurm that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]


def search_path() -> str:
    """Where programs are looked for: daemons lie where only root looks. The Python of this test
    comes first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])


@contextmanager
def own_slurm(folder: Path, num_nodes: int = 1) -> Iterator[dict[str, str]]:
    """A running Slurm within the block. Gives the environment in which its commands find it.

    All its nodes are this machine.
    """
    with ExitStack() as ports:
        controller, *nodes = (ports.enter_context(reserve_port()) for _ in range(num_nodes + 1))
        yield from run_slurm(folder, controller, nodes)


def run_slurm(folder: Path, controller: int, nodes: list[int]) -> Iterator[dict[str, str]]:
    """Yields the environment of a Slurm on these ports, which is down afterwards."""
    conf = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    ports = {f"{host}{number}" if number else host: port for number, port in enumerate(nodes)}
    for name in ("state", *(f"spool-{node}" for node in ports)):
        (folder / name).mkdir(parents=True)
    names = {
        "host": host,
        "user": getpass.getuser(),
        "folder": folder,
        "controller": controller,
        "nodes": "\n".join(
            NODE.format(name=name, host=host, port=port) for name, port in ports.items()
        ),
    }
    conf.write_text(CONF.format(**names))
    environment = {
        **os.environ,
        "SLURM_CONF": str(conf),
        "PATH": search_path(),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    commands = [
        ["slurmctld", "-D", "-f", str(conf)],
        *(["slurmd", "-D", "-f", str(conf), "-N", node] for node in ports),
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{command[0]}-{len(daemons)}.out").open("wb") as out:
                path = shutil.which(command[0], path=search_path())
                daemons.append(
                    subprocess.Popen(
                        [str(path), *command[1:]], env=environment, stdout=out, stderr=out
                    )
                )
        wait_for_node(environment, folder)
        yield environment
    finally:
        end(environment, daemons)


def end(environment: dict[str, str], daemons: list["subprocess.Popen[bytes]"]) -> None:
    """Ends all jobs, and then those who ran them: a daemon waits for its jobs."""
    subprocess.run(
        ["scancel", "--user", getpass.getuser()],
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    for _ in range(120):
        left = subprocess.run(
            ["squeue", "--noheader"], env=environment, capture_output=True, text=True, check=False
        )
        if not left.stdout:
            break
        time.sleep(0.5)
    for daemon in reversed(daemons):
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def wait_for_node(environment: dict[str, str], folder: Path) -> None:
    """Returns when the node takes jobs."""
    for _ in range(120):
        done = subprocess.run(
            ["sinfo", "--noheader", "--format", "%T"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if set(done.stdout.split()) == {"idle"}:
            return
        time.sleep(0.5)
    logs = "\n".join(
        path.read_text(errors="replace") for path in (*folder.glob("*.out"), *folder.glob("*.log"))
    )
    raise AssertionError(f"Slurm does not start: {done.stdout} {done.stderr}\n{logs}")
