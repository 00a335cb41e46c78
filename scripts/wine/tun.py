#!/usr/bin/env python3
"""The Linux side of the wintun.dll for tests: makes TUN devices, and passes their packets on.

    tun.py ADDRESS/PREFIX MTU

It listens on a port of 127.0.0.1, prints the port, and has a thread for each adapter. An adapter sends its name in 248 bytes, how long
its device stays when it is gone, in milliseconds, and whether it opens a device of another adapter: 1 or 0. It gets a Windows error code in
four bytes: 0 if the device is there with its address and MTU. A session begins with four bytes, and gets such a code too. After that each
packet follows its length, in four bytes, in both directions. The device is removed when the adapter that made it closes the
connection. SIGUSR1 removes all devices. Standard error has a line for each device that was made or opened.
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
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
ERROR_ACCESS_DENIED, ERROR_ALREADY_EXISTS, ERROR_NOT_FOUND, ERROR_ALREADY_INITIALIZED = 5, 183, 1168, 1247

# The file descriptor of each device, and the lock of its session.
devices = {}
connections = set()


def open_device(name, address, mtu):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
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


def answer(connection, code=0):
    connection.sendall(code.to_bytes(4, "little"))


def session(connection, device, lock):
    """Waits for the begin of a session, and carries its packets."""
    answer(connection)
    if not exactly(connection, 4):
        return
    if not lock.acquire(blocking=False):
        answer(connection, ERROR_ALREADY_INITIALIZED)
        return
    try:
        answer(connection)
        carry(connection, device)
    finally:
        lock.release()


def make(connection, name, linger_ms):
    try:
        device = open_device(name, *sys.argv[1:])
    except OSError as error:
        answer(connection, ERROR_ALREADY_EXISTS if error.errno == errno.EBUSY else ERROR_ACCESS_DENIED)
        return
    lock = threading.Lock()
    devices[name] = (device, lock)
    print("made", name, file=sys.stderr, flush=True)
    try:
        session(connection, device, lock)
        # It is there until the adapter ends, also if another adapter has the session.
        connection.recv(1)
    finally:
        connection.close()
        time.sleep(linger_ms / 1000)
        with lock:
            del devices[name]
            os.close(device)


def serve(connection):
    try:
        request = exactly(connection, 256)
        if not request:
            return
        name, linger_ms, is_open = struct.unpack("<248sII", request)
        name = name.rstrip(b"\0").decode()
        if not is_open:
            make(connection, name, linger_ms)
        elif name in devices:
            print("opened", name, file=sys.stderr, flush=True)
            session(connection, *devices[name])
        else:
            answer(connection, ERROR_NOT_FOUND)
    except ConnectionError:
        pass
    finally:
        connections.discard(connection)
        connection.close()


def take_away(*_):
    for connection in list(connections):
        connection.shutdown(socket.SHUT_RDWR)


def main():
    signal.signal(signal.SIGUSR1, take_away)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections.add(connection)
        threading.Thread(target=serve, args=[connection], daemon=True).start()


main()
