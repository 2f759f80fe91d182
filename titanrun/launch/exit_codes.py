"""Exit codes of a run, which launchers, jobs on clusters and sweeps read."""

import signal

# of srun, and of a Job that could not be submitted or followed
EXIT_NOT_STARTED = 1
EXIT_USAGE = 2
EXIT_HANG = 6
EXIT_NO_QUORUM = 8
EXIT_INTERNAL = 70
# saved and stopped before its end: the same command resumes
EXIT_PREEMPTED = 75
# that of a shell whose command died of a signal, less the number of the signal
SHELL_SIGNAL_BASE = 128
EXIT_KILLED = SHELL_SIGNAL_BASE + signal.SIGKILL
# recipe, data, checkpoint, values that are not finite, memory or disk: another start meets them too
LASTING_EXIT_CODES = (EXIT_USAGE, 3, 4, 5, 7)
# of runs that a signal ended while they started, by their shell and by themselves
STOPPED_EARLY_CODES = (
    *(SHELL_SIGNAL_BASE + number for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)),
    -signal.SIGINT,
    -signal.SIGTERM,
)
