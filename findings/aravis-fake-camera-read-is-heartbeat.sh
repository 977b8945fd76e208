#!/usr/bin/env bash
# aravis-tools 0.8.26-1 (Debian 12): who polls for the control of arv-fake-gv-camera keeps it from becoming free
#
# Guess:   the camera ends the control of an application 3 s after its last command, as register 0x0938 (heartbeat timeout)
#          says. Another application may read the privilege (0x0a00) meanwhile, and its attempt to take control is answered
#          with GEV_STATUS_ACCESS_DENIED (0x8006).
# Instead: a read of the privilege by any application counts as the controller's heartbeat. Of two waiting applications that
#          try every 0.5 s, the one that reads 0x0938 before it tries has control after 3 to 4 s, the one that reads 0x0a00
#          has none after 8 s. The refused write is not answered at all.
# Matters: a receiver that is restarted after a crash reads the privilege to see when the camera is free, and waits for ever.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=$(dpkg-query -W -f '${Version}' aravis-tools 2>/dev/null) || version=none
[ "$version" = 0.8.26-1 ] || {
    echo "cannot run: aravis-tools 0.8.26-1 is not installed, but $version"
    exit 77
}
PATH=$PATH:/usr/bin
arv-fake-gv-camera-0.8 -i 127.0.0.1 >/dev/null 2>&1 &
camera=$!
trap 'kill $camera 2>/dev/null' EXIT
sleep 1
kill -0 $camera 2>/dev/null || {
    echo "cannot run: the camera does not start; is UDP port 3956 in use?"
    exit 77
}
check <<'END'
import socket
import struct
import time

HEARTBEAT_TIMEOUT, PRIVILEGE, CONTROL = 0x0938, 0x0A00, 2


class Application:
    """An application with a socket of its own, which sends commands of GigE Vision's control protocol (GVCP)."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", 3956))
        self.socket.settimeout(0.3)
        self.number = 0

    def command(self, command, *words):
        """Returns status and payload of the answer; None without an answer."""
        self.number += 1
        payload = struct.pack(f">{len(words)}I", *words)
        self.socket.send(struct.pack(">BBHHH", 0x42, 1, command, len(payload), self.number) + payload)
        try:
            answer = self.socket.recv(1024)
        except OSError:
            return None
        return struct.unpack(">H", answer[:2])[0], answer[8:]

    def read(self, register):
        answer = self.command(0x0080, register)
        return answer and struct.unpack(">I", answer[1][:4])[0]

    def take_control(self):
        return self.command(0x0082, PRIVILEGE, CONTROL)


def wait_for_control(register, limit):
    """Reads a register, and then tries to take control, every 0.5 s. Returns the seconds until it succeeded, and the answers before."""
    waiting, start, answers = Application(), time.monotonic(), []
    while time.monotonic() - start < limit:
        waiting.read(register)
        answer = waiting.take_control()
        if answer and answer[0] == 0:
            return time.monotonic() - start, answers
        answers.append(answer)
        time.sleep(0.2 if answer is None else 0.5)
    return None, answers


first = Application()
for _ in range(50):
    if first.read(HEARTBEAT_TIMEOUT) is not None:
        break
    time.sleep(0.1)
assert first.read(HEARTBEAT_TIMEOUT) == 3000
for register, limit in [(HEARTBEAT_TIMEOUT, 8), (PRIVILEGE, 8)]:
    killed = Application()
    assert killed.take_control()[0] == 0
    seconds, answers = wait_for_control(register, limit)
    print(f"read 0x{register:04x}: control after", seconds and f"{seconds:.1f} s", "answers before:", set(answers))
    assert set(answers) == {None}
    if register == HEARTBEAT_TIMEOUT:
        assert 2.5 < seconds < 5
        time.sleep(4)
    else:
        assert seconds is None
END
