"""Benchmarks: what titanrun costs, as ratios to bare PyTorch measured in the same run.

Not a test: machines are noisy.

python tools/bench                    training, start-up, recipes and checkpoints on the CPU
python tools/bench train              the debug model against a bare loop, one thread
python tools/bench ranks              two gloo ranks, FSDP and TP, against a bare script; the start
of two workers against one
python tools/bench families           each family against transformers' or diffusers' class, experts
against dense layers
python tools/bench startup            validate, --help, the first step
python tools/bench recipes            validate of large and many recipes, diff-config
python tools/bench checkpoints        a save against a raw write, the digest, a save in the
background
python tools/bench interruptions      what a save takes from a run, SIGTERM to committed, SIGKILL to
the next step
python tools/bench data               tokenising against the library alone, a batch from the cache
python tools/bench streams            memory over gigabytes of a stream, waits for its batches
python tools/bench experiments        the live display, runs ls of many runs, plot of long ones
python tools/bench ui                 the page's server: start, 10,000 runs, long curves, idle
python tools/bench lsp                titanrun lsp: from an edit to the diagnostics
python tools/bench overlap            RL with generation beside training against one after the other
(--carrier ray: in an actor of Ray)
python tools/bench torchtitan         the debug model against torchtitan's trainer, in pairs
python tools/bench gpu [--help]       rows against a bare loop on one GPU, each side in a process of
its own; --toy: the whole program at toy size on a CPU
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if __name__ == "__main__":
    # a machine with a GPU may be bare: it lacks what the other benchmarks import
    if sys.argv[1:2] == ["gpu"]:
        from gpu_command import main as run_gpu

        run_gpu()
    else:
        from cpu_command import main as run_cpu

        run_cpu(__doc__)
