"""A client of the attach protocol, written from docs/src/reference/attach.md.

usage: attach_client.py SOCKET MODE [ARGUMENT...]. Prints JSON values, one per line.
"""

import array
import ctypes
import fcntl
import json
import mmap
import os
import random
import socket
import struct
import sys
import time

LIMIT = 120.0


def connect(path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(LIMIT)
    sock.connect(path)
    return sock


def send(sock, packet):
    sock.send(json.dumps(packet).encode())


def receive(sock):
    data, files, _, _ = socket.recv_fds(sock, 65536, 4)
    return (json.loads(data) if data else None), files


def request(sock, **packet):
    send(sock, packet)
    return receive(sock)


def show(value):
    print(json.dumps(value), flush=True)


class Futex:
    """FUTEX_WAIT on a word of a read-only mapping."""

    def __init__(self, mapping, offset):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        self.address = mapping + offset
        self.syscall = libc.syscall

    def value(self):
        return ctypes.c_uint32.from_address(self.address).value

    def wait(self, value, seconds):
        class Timespec(ctypes.Structure):
            _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]

        limit = Timespec(int(seconds), int(seconds % 1 * 1e9))
        self.syscall(202, ctypes.c_void_p(self.address), 0, ctypes.c_uint32(value), ctypes.byref(limit), None, 0)


def map_read_only(file):
    """Maps a file read-only; returns the address and the bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    size = os.fstat(file).st_size
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    assert address not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return address, memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class Attached:
    def __init__(self, path, ring="raw", **options):
        self.sock = connect(path)
        reply, files = request(self.sock, request="attach", ring=ring, **options)
        assert reply["ok"], reply
        self.ring = reply["ring"]
        self.files = files
        address, self.state = map_read_only(files[0])
        _, self.memory = map_read_only(files[1])
        self.words = self.state.cast("Q")
        assert bytes(self.state[:8]) == b"daqring1" and self.words[1] == 1
        self.futex = Futex(address, 256)
        self.position = self.first = self.ring["first"]
        self.read = self.overrun = self.discarded = 0

    published = property(lambda self: self.words[8])
    reserved = property(lambda self: self.words[16])
    closed = property(lambda self: self.words[24])

    def next(self):
        """Returns the next frame as (sequence, bytes), or None at the end."""
        slots, deadline = self.ring["slots"], time.monotonic() + LIMIT
        while True:
            value = self.futex.value()
            if self.published > self.position:
                n = self.position
                slot = n % slots
                record = (self.ring["records"] + slot * self.ring["record_stride"]) // 8
                sequence, length = self.words[record], self.words[record + 4]
                start = slot * self.ring["stride"]
                data = bytes(self.memory[start : start + length])
                if self.reserved <= n + slots:
                    self.position += 1
                    self.read += 1
                    return sequence, data
                # Overrun: continue a quarter of the ring ahead of the producer.
                newer = min(self.published, max(n + 1, self.reserved - slots * 3 // 4))
                self.overrun += newer - n
                self.position = newer
                continue
            if self.closed and self.published == self.position:
                return None
            assert time.monotonic() < deadline, "no frame"
            self.futex.wait(value, 1)

    def report(self, **changes):
        progress = {
            "position": self.position,
            "read": self.read,
            "overrun": self.overrun,
            "discarded": self.discarded,
            "retired": self.position,
        }
        send(self.sock, {"progress": progress | changes})

    def counts(self):
        return {"first": self.first, "read": self.read, "overrun": self.overrun}


def verify(sequence, data):
    """Checks a frame of the source sim with the pattern `counter`."""
    words = array.array("Q")
    words.frombytes(data)
    first = sequence * len(words)
    assert list(words) == list(range(first, first + len(words))), f"frame {sequence} is wrong"


def read(path, count, guarantee):
    """Reads frames, checks their bytes and reports each."""
    client = Attached(path, guarantee=guarantee == "guarantee", client="attach_client.py")
    sequences = []
    for _ in range(int(count)):
        sequence, data = client.next()
        verify(sequence, data)
        sequences.append(sequence)
        client.report()
    show(client.counts() | {"gaps": sum(b - a != 1 for a, b in zip(sequences, sequences[1:]))})
    sys.stdin.readline()


def slow(path):
    """Reads two frames, and pauses in between until the producer has written the whole ring twice."""
    client = Attached(path)
    verify(*client.next())
    end = client.position + 2 * client.ring["slots"]
    deadline = time.monotonic() + LIMIT
    while client.published < end:
        assert time.monotonic() < deadline, "no frames"
        time.sleep(0.01)
    verify(*client.next())
    client.report()
    show(client.counts())
    sys.stdin.readline()


def hold(path, guarantee, ring="raw"):
    """Attaches, and then does nothing until stdin is closed or the server revokes it."""
    client = Attached(path, ring, guarantee=guarantee == "guarantee")
    show(client.counts())
    if guarantee == "guarantee":
        show(receive(client.sock)[0])
    sys.stdin.readline()


def many(path, count):
    """Attaches many times, and reads a few frames with each client."""
    clients = [Attached(path) for _ in range(int(count))]
    for _ in range(3):
        for client in clients:
            verify(*client.next())
            client.report()
    show(len(clients))
    sys.stdin.readline()


def churn(path, count):
    """Attaches and leaves many times, without a report and with frames unread."""
    for _ in range(int(count)):
        client = Attached(path)
        client.sock.close()
        for file in client.files:
            os.close(file)
    show(int(count))


def write(path):
    """Tries to change the memory of a ring in every way; prints what succeeded."""
    client = Attached(path)
    succeeded = []

    def attempt(name, work):
        try:
            work()
            succeeded.append(name)
        except OSError:
            pass

    for name, file in zip(["state", "memory"], client.files):
        size = os.fstat(file).st_size
        attempt(f"{name} mmap", lambda: mmap.mmap(file, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        attempt(f"{name} write", lambda: os.pwrite(file, b"x", 0))
        attempt(f"{name} truncate", lambda: os.ftruncate(file, 0))
        attempt(f"{name} seal", lambda: fcntl.fcntl(file, 1033, 8))
        try:
            again = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
        except OSError:
            continue
        attempt(f"{name} mmap again", lambda: mmap.mmap(again, size, mmap.MAP_SHARED, mmap.PROT_WRITE))
        attempt(f"{name} write again", lambda: os.pwrite(again, b"x", 0))
        attempt(f"{name} truncate again", lambda: os.ftruncate(again, 0))
        attempt(f"{name} punch", lambda: libc_fallocate(again, size))
    verify(*client.next())
    show(succeeded)


def libc_fallocate(file, size):
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    libc.fallocate.argtypes = arguments
    # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    if libc.fallocate(file, 3, 0, size):
        raise OSError(ctypes.get_errno(), "fallocate")


def reply_to(path, data, files=()):
    """Sends one packet; returns the reply, or None if the connection was closed without one."""
    sock = connect(path)
    try:
        socket.send_fds(sock, [data], list(files))
        return receive(sock)[0]
    except (BrokenPipeError, ConnectionResetError):
        return None


def hostile(path, seed):
    """Sends what no client should send, and prints the replies."""
    numbers = random.Random(int(seed))
    replies = {}
    for _ in range(200):
        reply = reply_to(path, numbers.randbytes(numbers.randrange(1, 2000)))
        assert reply is None or not reply["ok"], reply
    replies["huge"] = reply_to(path, b" " * 100_000)
    replies["nested"] = reply_to(path, b"[" * 60_000)
    null = os.open("/dev/null", os.O_RDONLY)
    replies["descriptors"] = reply_to(path, b'{"request":"list"}', [null] * 200)["ok"]
    replies["ring"] = reply_to(path, b'{"request":"attach","ring":"no\\u001bsuch"}')
    replies["guarantee"] = reply_to(path, b'{"request":"attach","ring":"raw","guarantee":true}')
    replies["early"] = reply_to(path, b'{"progress":{"position":0,"read":0}}')

    # A client that sends requests and never reads replies is disconnected.
    deaf = connect(path)
    deaf.settimeout(10)
    try:
        for _ in range(100_000):
            send(deaf, {"request": "list"})
        replies["deaf"] = "still connected"
    except (BrokenPipeError, ConnectionResetError):
        replies["deaf"] = "disconnected"

    # Clients that claim impossible counts are revoked.
    revoked = []
    for changes in [
        {"position": 2**63},
        {"read": 1},
        {"overrun": 2**64 - 1, "read": 2**64 - 1},
        {"position": -1},
        {"position": 1.5},
    ]:
        client = Attached(path)
        client.report(**changes)
        revoked.append(receive(client.sock)[0].get("revoked"))
    client = Attached(path)
    send(client.sock, {"request": "list"})
    revoked.append(receive(client.sock)[0].get("revoked"))
    client = Attached(path)
    client.next()
    client.report()
    client.report(read=0)
    revoked.append(receive(client.sock)[0].get("revoked"))
    replies["revoked"] = revoked
    show(replies)


def inbox(size, seals):
    file = os.memfd_create("inbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, 1033, seals)
    return file


def produce(path, first, count, end):
    """Produces frames with the pattern `counter` through an inbox of 8 slots."""
    first, count, slots = int(first), int(count), 8
    sock = connect(path)
    source = request(sock, request="list")[0]["sources"][0]
    size = source["frame_bytes"]
    stride = (size + 63) // 64 * 64
    # F_SEAL_SHRINK | F_SEAL_GROW
    file = inbox(slots * stride, 2 | 4)
    memory = mmap.mmap(file, slots * stride)
    socket.send_fds(sock, [json.dumps({"request": "produce", "source": source["name"]}).encode()], [file])
    reply = json.loads(sock.recv(65536))
    assert reply["ok"] and reply["source"]["slots"] == slots, reply
    taken = refused = 0
    for i in range(count):
        while i - taken >= slots:
            taken, refused = struct.unpack("<QQ", sock.recv(16))
        slot, words = i % slots, size // 8
        begin = (first + i) * words
        memory[slot * stride : slot * stride + size] = struct.pack(f"<{words}Q", *range(begin, begin + words))
        sock.send(struct.pack("<4Q", slot, 1000 + i, 1, 0))
    if end == "leave":
        return show({"committed": count})
    while taken < count:
        taken, refused = struct.unpack("<QQ", sock.recv(16))
    show({"taken": taken, "refused": refused})
    sys.stdin.readline()


def produce_wrongly(path):
    """Requests `produce` with inboxes and commits that are invalid; prints the replies."""
    errors = []
    for size, seals in [(4096, 0), (4096, 2), (64, 6), (4096 * 2000, 6)]:
        sock = connect(path)
        socket.send_fds(sock, [b'{"request":"produce","source":"flags"}'], [inbox(size, seals)])
        errors.append(json.loads(sock.recv(65536))["error"])
    errors.append(request(connect(path), request="produce", source="flags")[0]["error"])
    errors.append(request(connect(path), request="produce", source="adc")[0]["error"])
    sock = connect(path)
    socket.send_fds(sock, [b'{"request":"produce","source":"flags"}'], [inbox(4096, 6)])
    assert json.loads(sock.recv(65536))["ok"]
    other = connect(path)
    socket.send_fds(other, [b'{"request":"produce","source":"flags"}'], [inbox(4096, 6)])
    errors.append(json.loads(other.recv(65536))["error"])
    # The inbox has one slot, so the second commit is invalid.
    sock.send(struct.pack("<8Q", 0, 0, 0, 0, 1, 0, 0, 0))
    errors.append(json.loads(sock.recv(65536))["revoked"])
    show(errors)


def refused(path):
    """Tries to connect as another user; prints how that fails."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        show(receive(connect(path))[0]["error"])
    except OSError as error:
        show(type(error).__name__)


if __name__ == "__main__":
    modes = [read, slow, hold, many, churn, write, hostile, produce, produce_wrongly, refused]
    {mode.__name__: mode for mode in modes}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
