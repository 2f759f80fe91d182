"""Signs of life from work that may take hours: what watches a rank hears that it still gets somewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# shared by all threads: any of them may do the work
_listeners: list[Callable[[], None]] = []


def sign_of_life() -> None:
    """Something got done. Costs nothing where nobody listens."""
    for listener in _listeners:
        listener()


@contextmanager
def heard_by(listener: Callable[[], None]) -> Iterator[None]:
    """Within the block `listener` is called at each sign of life."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
