"""Address and network interface of this machine at which another machine reaches it."""

import fcntl
import socket
import struct
import sys
from dataclasses import dataclass

from titanrun.config.problems import problem_error

# Linux: the IPv4 address of an interface
SIOCGIFADDR = 0x8915
NAME_BYTES = 15


@dataclass(frozen=True, slots=True)
class HostAddress:
    """An address of this machine, and the name of its interface if that is known."""

    address: str
    interface: str | None


LOOPBACK = HostAddress("127.0.0.1", "lo" if sys.platform == "linux" else None)


def find_own_address(host: str, port: int) -> HostAddress:
    """Return the address from which this machine reaches another one. Nothing is sent.

    Raises:
        ProblemsFound: the host is unknown, or no interface leads to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise problem_error(
                "usage",
                f"cannot reach the lighthouse {host}: {(error.strerror or str(error)).lower()}",
                path=("fault_tolerance", "lighthouse"),
                hint="name a host or an IPv4 address that this machine knows",
            ) from error
        address: str = probe.getsockname()[0]
    return HostAddress(address, find_interface(address))


def find_interface(address: str) -> str | None:
    """Return the name of the interface with an IPv4 address, None if the system does not say."""
    if address.startswith("127."):
        return LOOPBACK.interface
    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:NAME_BYTES])
            try:
                found = fcntl.ioctl(asked, SIOCGIFADDR, request)
            except OSError:
                # it has no IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
