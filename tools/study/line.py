#!/usr/bin/env python3
"""Two hosts on this machine, and a slow line between them.

A host is a network namespace, held by a process that ends with its parent. The line is a process, this file as a program:
it carries frames between a tap in each host, as fast as RATE bits a second, and each DELAY later. (The kernel may have no
netem.) Large packets pass in one piece, with the headers of the packets that they would be on a wire counted. Nothing has a
name on the machine, so nothing is left of it, however the parent ends.

  line.py PID0 PID1 RATE DELAY_S       until its input ends; then prints the bytes that went each way
"""
import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
VNET_HEADER = 10  # flags, type, bytes of headers, bytes of a segment, checksum; only with large packets
ON_THE_WIRE = 24  # preamble, checksum and gap of an Ethernet frame
QUEUE_BYTES = 1_500_000  # 1,000 packets, as netem has
ADDRESS = "10.78.0.{}"


def own_namespaces() -> None:
    """Not root: this program again, as root of a user namespace of its own."""
    if os.geteuid() != 0:
        os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--net", sys.executable, *sys.argv])


def tap_in(pid: int) -> int:
    with open(f"/proc/{pid}/ns/net", encoding="utf-8") as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETVNETHDRSZ, struct.pack("i", VNET_HEADER))
    fcntl.ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return tap


def bytes_on_wire(frame: bytes) -> int:
    _, kind, headers, segment = struct.unpack_from("BBHH", frame)
    size = len(frame) - VNET_HEADER
    packets = -(-(size - headers) // segment) if kind and segment else 1
    return size + (packets - 1) * headers + packets * ON_THE_WIRE


class Way:
    """One direction of the line."""

    def __init__(self, source: int, target: int, rate: float, delay: float):
        self.source, self.target, self.rate, self.delay = source, target, rate, delay
        self.queue: collections.deque[tuple[float, bytes]] = collections.deque()
        self.free_at = 0.0  # when the line has sent what is queued
        self.carried = 0

    def take(self) -> None:
        while True:
            try:
                frame = os.read(self.source, 70000)
            except BlockingIOError:
                return
            now, size = time.monotonic(), bytes_on_wire(frame)
            if (self.free_at - now) * self.rate / 8 + size > QUEUE_BYTES:
                continue  # lost, as in a full switch
            self.free_at = max(self.free_at, now) + size * 8 / self.rate
            self.carried += size
            self.queue.append((self.free_at + self.delay, frame))

    def give(self) -> None:
        while self.queue and self.queue[0][0] <= time.monotonic():
            try:
                os.write(self.target, self.queue.popleft()[1])
            except OSError:
                pass  # the host's end is down: lost

    def due(self) -> float:
        return self.queue[0][0] if self.queue else time.monotonic() + 1


def carry(pids: list[int], rate: float, delay: float) -> None:
    taps = [tap_in(pid) for pid in pids]
    ways = [Way(taps[0], taps[1], rate, delay), Way(taps[1], taps[0], rate, delay)]
    print("ready", flush=True)
    while True:
        patience = max(0.0, min(way.due() for way in ways) - time.monotonic())
        ready, _, _ = select.select([0, *taps], [], [], patience)
        if 0 in ready and not os.read(0, 100):
            break
        for way in ways:
            if way.source in ready:
                way.take()
            way.give()
    told = f"{ways[0].carried} {ways[1].carried} {time.process_time():.3f}\n"
    try:
        os.write(1, told.encode())
    except BrokenPipeError:
        pass  # the parent was killed


class Hosts:
    """Two hosts with a line, for as long as the `with` block or this process lasts."""

    def __init__(self, rate: float, delay_s: float):
        self.rate, self.delay_s = rate, delay_s
        self.carried = [0, 0]
        self.carrier_s = 0.0

    def __enter__(self) -> "Hosts":
        self.holders = [subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE) for _ in range(2)]
        for holder in self.holders:
            if not holder.stdout.readline():
                sys.exit("study: network namespaces cannot be made here: run it as root, or allow user namespaces")
        pids = [str(holder.pid) for holder in self.holders]
        self.line = subprocess.Popen([sys.executable, __file__, *pids, str(self.rate), str(self.delay_s)], text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.line.stdout.readline() != "ready\n":
            sys.exit("study: there is no line between hosts: is there /dev/net/tun, and may you open it?")
        for host in range(2):
            for words in ("link set lo up", f"address add {ADDRESS.format(host + 1)}/24 dev eth0", "link set eth0 up"):
                subprocess.run(self.enter(host) + ["ip", *words.split()], check=True)
        return self

    def enter(self, host: int) -> list[str]:
        """The words before a command that runs in a host."""
        return ["nsenter", f"--net=/proc/{self.holders[host].pid}/ns/net"]

    def __exit__(self, *_: object) -> None:
        told, _ = self.line.communicate()
        *carried, seconds = told.split()
        self.carried, self.carrier_s = [int(size) for size in carried], float(seconds)
        for holder in self.holders:
            holder.communicate()


if __name__ == "__main__":
    carry([int(pid) for pid in sys.argv[1:3]], float(sys.argv[3]), float(sys.argv[4]))
