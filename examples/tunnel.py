#!/usr/bin/env python3
"""A tunnel over UDP: each packet of a TUN device is a datagram to the peer. tunnel.py DEVICE PORT PEER_ADDRESS:PORT"""

import errno, fcntl, os, select, socket, struct, sys, time

device, port, peer = sys.argv[1:]
address, _, peer_port = peer.rpartition(":")
tun = os.open("/dev/net/tun", os.O_RDWR)
# TUNSETIFF, with IFF_TUN | IFF_NO_PI.
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", device.encode(), 0x1001))
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(("", int(port)))
while True:
    for ready in select.select([tun, link], [], [])[0]:
        try:
            if ready is link:
                os.write(tun, link.recv(65535))
            else:
                link.sendto(os.read(tun, 65535), (address, int(peer_port)))
        except OSError as error:
            # The run brings the device up. Until then it answers with EIO.
            if error.errno != errno.EIO:
                raise
            time.sleep(0.01)
