#!/usr/bin/env python3
"""The Linux side of the wintun.dll for tests: makes TUN devices, and passes their packets on.

    tun.py ADDRESS/PREFIX MTU

It listens on a port of 127.0.0.1, prints the port, and serves one adapter after the other. An adapter sends its name in 256 bytes
and gets a Windows error code in four bytes: 0 if the device is there with its address and MTU. After that each packet follows its
length, in four bytes, in both directions. The device is removed when the adapter closes the connection. SIGUSR1 removes it earlier.
"""

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
ERROR_ACCESS_DENIED, ERROR_ALREADY_EXISTS = 5, 183


def open_device(name, address, mtu):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
    for words in (["link", "set", name, "mtu", mtu, "txqueuelen", "2000", "up"], ["address", "add", address, "dev", name]):
        subprocess.run(["ip", *words], check=True)
    return device


def exactly(connection, length):
    """This many bytes, or None at the end of the connection."""
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def packets(data):
    """Removes the complete packets from the beginning of the bytes, and yields them."""
    at = 0
    while len(data) >= at + 4:
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if len(data) < end:
            break
        yield bytes(data[at + 4 : end])
        at = end
    del data[:at]


def carry(connection, device):
    """Passes packets both ways until either side ends."""
    data = bytearray()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(device, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready == device:
                batch = bytearray()
                # All waiting packets, but at most 64, so that the other direction does not wait long.
                for _ in range(64):
                    try:
                        packet = os.read(device, 65536)
                    except BlockingIOError:
                        break
                    batch += len(packet).to_bytes(4, "little") + packet
                connection.sendall(batch)
            else:
                part = connection.recv(1 << 20)
                if not part:
                    return
                data += part
                for packet in packets(data):
                    try:
                        os.write(device, packet)
                    except OSError as error:
                        # The kernel refuses what is not an IP packet (EINVAL). It is dropped.
                        if error.errno not in (errno.EINVAL, errno.EAGAIN):
                            raise


class Gone(Exception):
    """The device must be removed now."""


def take_away(*_):
    raise Gone


def main():
    address, mtu = sys.argv[1:]
    signal.signal(signal.SIGUSR1, take_away)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                name = exactly(connection, 256)
                if not name:
                    continue
                try:
                    device = open_device(name.rstrip(b"\0").decode(), address, mtu)
                except OSError as error:
                    code = ERROR_ALREADY_EXISTS if error.errno == errno.EBUSY else ERROR_ACCESS_DENIED
                    connection.sendall(code.to_bytes(4, "little"))
                    continue
                try:
                    connection.sendall(bytes(4))
                    carry(connection, device)
                finally:
                    os.close(device)
        except (Gone, ConnectionError):
            pass


main()
