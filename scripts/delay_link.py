#!/usr/bin/env python3
"""Delay what one side of a link sends, where the kernel has no netem: `delay_link.py INTERFACE TAP SECONDS`.

Frames that arrive at INTERFACE are written to TAP, which it makes, after so many seconds. Those that arrive at TAP are
sent by INTERFACE at once. It ends when INTERFACE does. Frames keep the header (virtio_net_hdr, 10 bytes) that says what
is left to be done for them, so they may be larger than a packet.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress

# From asm-generic/socket.h, linux/if_tun.h, linux/if_packet.h and linux/if_ether.h.
TUNSETIFF, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x2, 0x1000, 0x4000
SO_RCVBUFFORCE, SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 33, 263, 15, 23, 3
LARGEST = 10 + 14 + 65536


def open_tap(name: str) -> int:
    """The descriptor of a new TAP device. Where a machine was started again, that of before may end a second later."""
    descriptor, flags = os.open("/dev/net/tun", os.O_RDWR), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    for _ in range(30):
        with suppress(OSError):
            fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
            return descriptor
        time.sleep(0.1)
    sys.exit(f"no device {name} can be made")


def open_interface(name: str) -> socket.socket:
    """A socket that receives all that arrives at an interface, and not what it sends."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    link.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    link.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
    link.bind((name, ETH_P_ALL))
    return link


def forward(name: str, tap: int, delay_s: float) -> None:
    """Forward frames in both directions, until the interface is gone."""
    index, link, waiting = socket.if_nametoindex(name), open_interface(name), deque[tuple[float, bytes]]()
    with suppress(OSError):
        while socket.if_nametoindex(name) == index:
            left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
            ready, _, _ = select.select([link, tap], [], [], left_s)
            with suppress(OSError):  # the link is down
                if link in ready:
                    waiting.append((time.monotonic() + delay_s, link.recv(LARGEST)))
                if tap in ready:
                    link.send(os.read(tap, LARGEST))
            while waiting and waiting[0][0] <= time.monotonic():
                os.write(tap, waiting.popleft()[1])


if __name__ == "__main__":
    interface, tap_name, seconds = sys.argv[1:]
    # Before the programs of the machines, which may keep all cores busy.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    forward(interface, open_tap(tap_name), float(seconds))
