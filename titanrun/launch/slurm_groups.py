"""Replica groups in a Slurm job: part of its batch script.

Each group is a step on a node of its own and is started again if it fails; the lighthouse at which
they find each other runs beside the script on the first node.
"""

import shlex
import sys
from pathlib import Path

from titanrun.config.exit_codes import EXIT_PREEMPTED, LASTING_EXIT_CODES
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.trust import TRUST_FLAG
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.lighthouse_process import LIGHTHOUSE, build_lighthouse_arguments

# this node stays while another one is lost
KEEP_OPTION = "--no-kill"
SCRIPT = """\
run={run}
# exit codes of the groups that are not started again
ends=$run/launch/ends.txt
mkdir -p "$run/logs" && rm -f "$ends.stop" && : > "$ends"

# the lighthouse: at the address of this node that the last node sees
host=$(srun --nodes=1 --ntasks=1 --relative={last} printenv SLURM_LAUNCH_NODE_IPADDR)
port=$((20000 + SLURM_JOB_ID % 10000))
serve_lighthouse() {{
    trap : TERM USR1
    while :; do
        {python} -m {lighthouse} "$host" {lighthouse_arguments}
        sleep 1
    done
}}
set -m
serve_lighthouse >> "$run/logs/lighthouse.log" 2>&1 < /dev/null &
lighthouse=$!
disown
set +m

count_steps() {{
    grep -cE '"event": "(committed|synced)"' "$run/logs/group-$1.jsonl" 2> /dev/null
}}

# each group until it ends with 0, 75 or what another start would meet again, or too many restarts
run_group() {{
    trap : TERM USR1
    local code steps lost restarts=0
    while :; do
        steps=$(count_steps "$1")
        srun --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --job-name="group-$1" \\
            {python} -m titanrun resume "$run" {launch} \\
            fault_tolerance.replica_id="$1" fault_tolerance.lighthouse="http://$host:$port" \\
            {flags}$([ "$1" -eq 0 ] || echo --quiet)
        code=$?
        case $code in {lasting}) break ;; esac
        [ "$(count_steps "$1")" = "$steps" ] || restarts=0
        if [ -e "$ends.stop" ] || [ "$restarts" -ge {max_restarts} ]; then break; fi
        restarts=$((restarts + 1))
        echo "note: restarting replica group $1 after exit code $code" \\
            "(restart $restarts of {max_restarts} without a new step)" >&2
    done
    echo "$code" >> "$ends"
    lost=$(grep -cvxE '0|{preempted}' "$ends")
    if [ $(({groups} - lost)) -lt {min_groups} ] && [ ! -e "$ends.stop" ]; then
        # too few are left for a step
        touch "$ends.stop"
        squeue --noheader --steps --jobs "$SLURM_JOB_ID" --format '%j %i' |
            sed -n 's/^group-[0-9]* *//p' | xargs -r -n 1 scancel --signal=KILL
    fi
}}

choose_exit_code() {{
    if grep -qx 0 "$ends"; then return 0; fi
    if grep -qx {preempted} "$ends"; then return {preempted}; fi
    return "$(head -n 1 "$ends")"
}}

for group in {numbers}; do
    run_group "$group" &
done
# a signal ends a wait early
while [ -n "$(jobs -rp)" ]; do wait; done
kill -KILL -- "-$lighthouse"
choose_exit_code"""


def build_group_steps(
    config: SlurmLaunchConfig, groups: FaultToleranceConfig, run: Path, *, allows_code: bool
) -> str:
    """Build the part of the batch script that starts the groups and ends with their exit code.

    Args:
        config: the launch section.
        groups: the section with the groups.
        run: the run directory.
        allows_code: whether the user allowed code that the recipe names.
    """
    # the script counts the restarts of all that a group consists of
    launch = {"name": "local", "nproc_per_node": config.nproc_per_node}
    arguments = build_lighthouse_arguments(groups, '"$port"')
    return SCRIPT.format(
        run=shlex.quote(str(run)),
        last=groups.group_size - 1,
        python=shlex.quote(sys.executable),
        lighthouse=LIGHTHOUSE,
        lighthouse_arguments=" ".join(arguments),
        launch=shlex.quote(f"launch={to_flow_yaml(launch)}"),
        flags=f"{TRUST_FLAG} " if allows_code else "",
        lasting=" | ".join(map(str, (0, *LASTING_EXIT_CODES, EXIT_PREEMPTED))),
        preempted=EXIT_PREEMPTED,
        max_restarts=config.max_restarts,
        groups=groups.group_size,
        min_groups=groups.min_replica_size,
        numbers=" ".join(map(str, range(groups.group_size))),
    )
