"""TCP ports for servers that have to be told theirs before they start."""

from __future__ import annotations

import random
import socket

# Below the ports that the kernel gives to whoever asks for any (net.ipv4.ip_local_port_range begins at 32768): other
# tests of the moment, which do, cannot take one between this look and the server's start.
_RANGE = range(20_000, 32_000)


def free() -> int:
    """A port of this machine on which nobody listens."""
    chance = random.SystemRandom()
    while True:
        port = chance.choice(_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
