"""Row D6 of the defect list: a port that was looked for, closed and then used could be taken."""

import socket

import pytest

from tests.launch.reserved_port import reserve_port


def test_a_reserved_port_is_for_the_server_that_knows_it() -> None:
    with reserve_port() as port:
        with socket.socket() as stranger, pytest.raises(OSError, match="Address already in use"):
            stranger.bind(("127.0.0.1", port))
        # on all addresses too, as Slurm's daemons listen
        with (
            socket.create_server(("", port)),
            socket.create_connection(("127.0.0.1", port)) as reached,
        ):
            assert reached.getpeername()[1] == port
