"""Exit codes of commands and runs, which launchers, jobs on clusters and sweeps read.

`titanrun.recipe.reference.exit_code_page` documents each of them.
"""

import signal

EXIT_FINISHED = 0
# two things differ, an expectation is not met, or warnings under --strict
EXIT_DIFFERS = 1
# of srun, and of a Job that could not be submitted or followed
EXIT_NOT_STARTED = 1
# the recipe or the command line
EXIT_USAGE = 2
EXIT_DATA = 3
EXIT_CHECKPOINT = 4
EXIT_NON_FINITE = 5
EXIT_HANG = 6
EXIT_OUT_OF_SPACE = 7
EXIT_NO_QUORUM = 8
EXIT_INTERNAL = 70
# saved and stopped before its end: the same command resumes
EXIT_PREEMPTED = 75
# that of a shell whose command died of a signal, less the number of the signal
SHELL_SIGNAL_BASE = 128
EXIT_INTERRUPTED = SHELL_SIGNAL_BASE + signal.SIGINT
EXIT_KILLED = SHELL_SIGNAL_BASE + signal.SIGKILL
EXIT_STOPPED_EARLY = SHELL_SIGNAL_BASE + signal.SIGUSR1
EXIT_TERMINATED = SHELL_SIGNAL_BASE + signal.SIGTERM
# another start meets them too
LASTING_EXIT_CODES = (
    EXIT_USAGE,
    EXIT_DATA,
    EXIT_CHECKPOINT,
    EXIT_NON_FINITE,
    EXIT_OUT_OF_SPACE,
)
# of runs that a signal ended while they started, by their shell and by themselves
STOPPED_EARLY_CODES = (
    EXIT_INTERRUPTED,
    EXIT_STOPPED_EARLY,
    EXIT_TERMINATED,
    -signal.SIGINT,
    -signal.SIGTERM,
)
