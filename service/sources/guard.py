"""Which addresses and files a source may reach."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from pathlib import PurePosixPath

from service.errors import InvalidRequest, SourceDenied, SourceUnreachable
from service.sources.connection import Connection

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses whose last four bytes are an IPv4 address."""
LOCAL = [
    *map(ipaddress.ip_network, ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")),
    *map(ipaddress.ip_network, ("::1/128", "fc00::/7", "fec0::/10")),
]
"""Private networks and this machine: everything that `private` opens."""
GIVEN = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is given to networks; what lies outside is translated, local or nobody's."""


def addresses(connection: Connection, default_port: int) -> list[str]:
    """
    Addresses of a connection's host, all checked; connect to one of these, never to the name again.

    A name can lead elsewhere a moment later.
    """
    host, port = connection.host, connection.port(default_port)
    if not host:
        raise SourceDenied(f"Connection `{connection.name}` names no host.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise SourceUnreachable(
            f"The host of connection `{connection.name}` has no address."
        ) from None
    listed = list(dict.fromkeys(str(item[4][0]) for item in found))
    for address in listed:
        if not allowed(ipaddress.ip_address(address.partition("%")[0]), connection.private):
            raise SourceDenied(
                f"Connection `{connection.name}` leads to a private, link-local or reserved "
                "address; the operator can set `private` for private ones."
            )
    return listed


def allowed(address: Address, private: bool) -> bool:
    """Whether an address may be reached; link-local and reserved ones never, private ones if said."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return allowed(inner, private)
    if any(address in block for block in LOCAL):
        return private
    if address.version == 6 and address not in GIVEN:
        return False
    return address.is_global and not address.is_multicast


def connect(connection: Connection, default_port: int) -> socket.socket:
    """A socket to a checked address of a connection."""
    port = connection.port(default_port)
    for address in addresses(connection, default_port):
        try:
            return socket.create_connection((address, port), connection.timeout_s)
        except OSError:
            continue
    raise SourceUnreachable(f"Connection `{connection.name}` does not answer.")


def relative(path: str) -> PurePosixPath:
    """A path below the address of a connection; nothing that leads out of it."""
    found = PurePosixPath(path)
    if found.is_absolute() or not found.parts or ".." in found.parts or "\\" in path:
        raise InvalidRequest("`path` leads down from the address of its connection.")
    if any(ord(letter) < 32 for letter in path):
        raise InvalidRequest("`path` holds control characters.")
    return found


def open_below(root: str, path: str) -> int:
    """A descriptor of a regular file below a folder; symbolic links are not followed."""
    parts = relative(path).parts
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        raise SourceUnreachable("The folder of this connection is not there.") from None
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        flags = os.O_RDONLY | os.O_NOFOLLOW | (os.O_NONBLOCK if last else os.O_DIRECTORY)
        try:
            below = os.open(part, flags, dir_fd=folder)
        except FileNotFoundError:
            raise InvalidRequest(f"There is no file `{path}` in this connection.") from None
        except OSError:
            raise SourceDenied(
                f"`{path}` cannot be read: symbolic links and special files are not followed."
            ) from None
        finally:
            os.close(folder)
        folder = below
    if not _regular(folder):
        os.close(folder)
        raise SourceDenied(f"`{path}` is not a regular file.")
    return folder


def _regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
