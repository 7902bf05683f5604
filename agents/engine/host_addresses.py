"""Addresses of the host that an agent runs on."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress

_GET_ADDRESS = 0x8915  # SIOCGIFADDR, netdevice(7)
_REQUEST = "256s"  # a struct ifreq and some room; a reply's address is at 20


def ssh_address() -> str:
    """Return the address of this host that its SSH client has connected to; empty without one."""
    words = os.environ.get("SSH_CONNECTION", "").split()  # client, port, server, port
    return words[2] if len(words) == 4 else ""


def interface_addresses() -> dict[str, str]:
    """Return the first IPv4 address of each interface that has one."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack(_REQUEST, name.encode())
            with suppress(OSError):  # it has none
                reply = fcntl.ioctl(probe, _GET_ADDRESS, request)
                addresses[name] = socket.inet_ntoa(reply[20:24])
    return addresses
