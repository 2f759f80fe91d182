"""The socket of the server, which listens on this machine only."""

import socket

HOST = "127.0.0.1"
DEFAULT_PORT = 8421
MAX_PORTS = 50


def open_socket(port: int | None) -> socket.socket:
    """Return a socket that listens on this machine only: on a port, or the next free one.

    Raises:
        OSError: The port is in use.
    """
    ports = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + MAX_PORTS)
    for number in ports:
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((HOST, number))
            found.listen(64)
        except OSError:
            found.close()
            if number == ports[-1]:
                raise
        else:
            return found
    raise AssertionError("there is at least one port")
