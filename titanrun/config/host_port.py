"""Hosts and ports of TCP connections: `HOST:PORT`, `tcp://HOST:PORT`."""

from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

TCP_SCHEME = "tcp"


class HostPort(NamedTuple):
    """Host and port of a TCP connection."""

    host: str
    port: int

    def __str__(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{shown}:{self.port}"

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{TCP_SCHEME}://{self}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)


def parse_host_port(text: str) -> HostPort:
    """Return the host and port that `HOST:PORT` names.

    Raises:
        ValueError: it does not.
    """
    return parse_tcp_url(f"{TCP_SCHEME}://{text}")


def parse_tcp_url(text: str) -> HostPort:
    """Return the host and port that `tcp://HOST:PORT` names.

    Raises:
        ValueError: it does not.
    """
    parts = urlsplit(text)
    if (
        parts.scheme != TCP_SCHEME
        or not parts.hostname
        or parts.port is None
        or parts.username is not None
        or any((parts.path, parts.query, parts.fragment))
    ):
        raise ValueError(f"{text!r} is not {TCP_SCHEME}://HOST:PORT")
    return HostPort(parts.hostname, parts.port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
