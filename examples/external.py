#!/usr/bin/env python3
"""The smallest stack that can run in its own process: it serves `rr` over IPv4 on one TUN device.

    rust-tun-perf --mode rr --netstack external --command "python3 examples/external.py"

docs/external-stack.md has the protocol. Its TCP takes segments in order, and sends each response
once. It has no windows, no retransmission and no options. It is an example to read.
"""
import fcntl, json, os, select, struct, sys

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
TUNSETIFF, IFF_TUN_NO_PI = 0x400454CA, 0x1001


def checksum(data):
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def payload(seed, length):
    """The first bytes of the payload of a seed: SplitMix64, in little-endian order; it repeats after 65,521 bytes."""
    period, mask = bytearray(), (1 << 64) - 1
    while len(period) < 65521:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        mixed = ((seed ^ seed >> 30) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & mask
        period += struct.pack("<Q", mixed ^ mixed >> 31)
    period = bytes(period[:65521])
    return (period * (length // len(period) + 1))[:length]


class Stack:
    def __init__(self, task):
        device, self.requests = task["device"], task["requests"]
        if not self.requests or self.requests["protocol"] != "tcp" or task["streams"]:
            sys.exit("error: this example serves requests over TCP alone")
        self.response = payload(self.requests["seed"], self.requests["response_bytes"])
        self.longest = device["mtu"] - 40
        self.received = self.sent = 0
        self.connections = {}  # by flow key: the next number to send, the next to receive, bytes of a request so far
        self.tun = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(self.tun, TUNSETIFF, struct.pack("16sH22x", device["name"].encode(), IFF_TUN_NO_PI))

    def send(self, ends, flags, number, ack, data=b""):
        source, destination, source_port, destination_port = ends
        tcp = struct.pack("!HHIIBBHHH", source_port, destination_port, number & 0xFFFFFFFF, ack & 0xFFFFFFFF,
                          5 << 4, flags, 65535, 0, 0) + data
        pseudo = source + destination + struct.pack("!HH", 6, len(tcp))
        tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + destination
        os.write(self.tun, ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp)

    def receive(self, packet):
        if packet[0] != 0x45 or packet[9] != 6:
            return
        source, destination, tcp = packet[12:16], packet[16:20], packet[20:]
        source_port, destination_port, number, _ack, offset, flags = struct.unpack("!HHIIBB", tcp[:14])
        data, ends = tcp[(offset >> 4) * 4:], (destination, source, destination_port, source_port)
        if flags & RST:
            self.connections.pop(ends, None)
        elif flags & SYN:
            self.connections[ends] = (1, (number + 1) & 0xFFFFFFFF, 0)
            self.send(ends, SYN | ACK, 0, number + 1)
        elif ends in self.connections:
            self.segment(ends, number, data, flags & FIN)

    def segment(self, ends, number, data, fin):
        own, peer, part = self.connections[ends]
        if number != peer:
            return self.send(ends, ACK, own, peer)
        peer = (peer + len(data)) & 0xFFFFFFFF
        self.received += len(data)
        count, part = divmod(part + len(data), self.requests["request_bytes"])
        answer = self.response * count
        for at in range(0, len(answer), self.longest):
            piece = answer[at:at + self.longest]
            self.send(ends, PSH | ACK, own, peer, piece)
            self.sent += len(piece)
            own += len(piece)
        if fin or self.requests["closes"] and count:
            self.send(ends, FIN | ACK, own, peer + bool(fin))
            own, peer = own + 1, peer + bool(fin)
        elif data and not answer:
            self.send(ends, ACK, own, peer)
        self.connections[ends] = (own, peer, part)

    def report(self):
        return {"received_bytes": self.received, "sent_bytes": self.sent}


def main(stack_type=Stack):
    orders = open(0, "rb", buffering=0)  # with a buffer, select would not see all lines
    stack = stack_type(json.loads(orders.readline()))
    print(json.dumps({"ready": {"offload": False}}), flush=True)
    while True:
        readable, _, _ = select.select([stack.tun, orders], [], [])
        if stack.tun in readable:
            stack.receive(os.read(stack.tun, 65536))
        if orders in readable:
            order = orders.readline()
            if not order:
                return
            if json.loads(order) == "report":
                print(json.dumps(stack.report()), flush=True)


if __name__ == "__main__":
    main()
