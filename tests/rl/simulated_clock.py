"""A clock whose time passes only while all threads of a simulation wait."""

import heapq
import threading
from collections import deque
from collections.abc import Callable
from itertools import count

Action = Callable[[], object]
MAX_SECONDS = 1e5


class SimulationEnd(BaseException):
    """The program of this thread has been killed, or the simulation has ended."""


class SimulatedClock:
    """Events in the order of their times.

    One thread runs at a time. When it waits, events follow until one of them wakes a thread.
    """

    def __init__(self) -> None:
        self.now, self.is_closed = 0.0, False
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = count()
        self._woken: deque[threading.Semaphore] = deque()
        self._sleeping: set[threading.Semaphore] = set()
        self._threads: list[threading.Thread] = []

    def after(self, seconds: float, action: Action) -> None:
        """Let something happen later."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def sleep(self, seconds: float) -> None:
        """Wait for some time."""
        self.wait(lambda wake: self.after(seconds, wake))

    def wait(self, register: Callable[[Action], object]) -> None:
        """Wait until somebody calls what `register` gets."""
        own = threading.Semaphore(0)
        self._sleeping.add(own)

        def wake() -> None:
            if own in self._sleeping:
                self._sleeping.remove(own)
                self._woken.append(own)

        register(wake)
        self._run_next()
        own.acquire()
        if self.is_closed:
            raise SimulationEnd

    def start_thread(self, program: Action) -> None:
        """Start a thread that begins as soon as the others wait."""
        begins = threading.Semaphore(0)

        def run() -> None:
            begins.acquire()
            try:
                if not self.is_closed:
                    program()
            except SimulationEnd:
                pass
            finally:
                if not self.is_closed:
                    self._run_next()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        self.after(0.0, lambda: self._woken.append(begins))
        self._sleeping.add(begins)

    def close(self) -> None:
        """End all threads but this one, which must be the one that runs."""
        self.is_closed = True
        for semaphore in (*self._sleeping, *self._woken):
            semaphore.release()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _run_next(self) -> None:
        while not self._woken:
            self.now, _, action = heapq.heappop(self._events)
            assert self.now < MAX_SECONDS, "nothing happens any more"
            action()
        self._woken.popleft().release()


class SimulatedCondition:
    """A condition that needs no lock: threads of a simulation change only where they wait."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self._wakes: list[Action] = []

    def __enter__(self) -> None:
        """Nothing can come in between."""

    def __exit__(self, *error: object) -> None:
        """Nothing is held."""

    def wait(self, timeout: float) -> None:
        def register(wake: Action) -> None:
            self._wakes.append(wake)
            self.clock.after(timeout, wake)

        self.clock.wait(register)

    def notify_all(self) -> None:
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()
