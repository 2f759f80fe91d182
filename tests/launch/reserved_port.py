"""A port that nobody else gets before the server of a test listens on it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserve_port() -> Iterator[int]:
    """A free port of this machine, held within the block.

    The socket is bound and never listens: a server that reuses addresses, as torch's and Slurm's
    do, may listen beside it, but the system gives the port to nobody who asks for any.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
