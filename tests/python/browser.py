"""Drives a headless Chromium over the DevTools protocol, with the standard library only."""
import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Seconds until a condition or an answer must have arrived.
TIMEOUT = 120


class Browser:
    """A Chromium with its own profile. Closing it ends the process and removes the profile."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise FileNotFoundError("Chromium is not installed (Debian package chromium)")
        self.profile = tempfile.TemporaryDirectory(prefix="daq-chromium-", ignore_cleanup_errors=True)
        # Chromium's sandbox refuses to run as root, and containers have a small /dev/shm.
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-renderer-backgrounding",
                   "--disable-backgrounding-occluded-windows", "--mute-audio", "--remote-debugging-port=0",
                   f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        file = Path(self.profile.name) / "DevToolsActivePort"
        self.port = wait("the port of Chromium", lambda: file.exists() and file.read_text().split("\n")[0] or None)

    def open(self, url):
        """Opens `url` in a window of its own, so that no page is in the background."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/json/version", timeout=TIMEOUT) as answer:
            socket_url = json.load(answer)["webSocketDebuggerUrl"]
        root = Connection(socket_url)
        context = root.call("Target.createBrowserContext")["browserContextId"]
        target = root.call("Target.createTarget", url="about:blank", browserContextId=context, newWindow=True)["targetId"]
        root.close()
        page = Page(Connection(f"ws://127.0.0.1:{self.port}/devtools/page/{target}"))
        page.navigate(url)
        return page

    def close(self):
        os.killpg(self.process.pid, 9)
        self.process.wait()
        self.profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Connection:
    """A WebSocket (RFC 6455) that carries the DevTools protocol."""

    def __init__(self, url):
        host, path = url.removeprefix("ws://").split("/", 1)
        name, port = host.split(":")
        self.stream = socket.create_connection((name, int(port)), timeout=TIMEOUT)
        key = base64.b64encode(os.urandom(16)).decode()
        self.stream.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.file = self.stream.makefile("rb")
        status = self.file.readline()
        if b" 101 " not in status:
            raise ConnectionError(f"Chromium refused the WebSocket: {status!r}")
        while self.file.readline().strip():
            pass
        self.number = 0
        self.events = []

    def send(self, text):
        data = text.encode()
        mask = os.urandom(4)
        length = len(data)
        size = bytes([0x80 | length]) if length < 126 else b"\xfe" + struct.pack(">H", length) if length < 65536 \
            else b"\xff" + struct.pack(">Q", length)
        self.stream.sendall(b"\x81" + size + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))

    def receive(self):
        """Returns the next message, which may have several fragments."""
        message = b""
        while True:
            first, second = self.file.read(2)
            length = second & 127
            if length >= 126:
                length = int.from_bytes(self.file.read(2 if length == 126 else 8), "big")
            data = self.file.read(length)
            if first & 15 in (0, 1):
                message += data
                if first & 128:
                    return json.loads(message)
            elif first & 15 == 8:
                raise ConnectionError("Chromium closed the WebSocket")

    def call(self, method, **parameters):
        self.number += 1
        self.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = self.receive()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def wait_event(self, method, **parameters):
        """Waits for an event with at least these parameters."""
        while not any(event.get("method") == method and parameters.items() <= event["params"].items() for event in self.events):
            self.events.append(self.receive())

    def close(self):
        self.stream.close()


class Page:
    """An open page."""

    def __init__(self, connection):
        self.connection = connection
        self.call = connection.call
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def navigate(self, url):
        """Opens an address, and waits until its scripts and styles are loaded."""
        loader = self.call("Page.navigate", url=url)["loaderId"]
        self.connection.wait_event("Page.lifecycleEvent", name="load", loaderId=loader)

    def evaluate(self, expression):
        """Returns the value of a JavaScript expression, which may be a promise."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, what, expression):
        """Waits until a JavaScript expression is true, and returns its value."""
        return wait(what, lambda: self.evaluate(expression))

    def emulate(self, width, height, scheme="light", mobile=False, scale=1):
        """Sets the size of the window in CSS pixels, and the colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path, whole=True):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def problems(self):
        """Returns the errors that the page has logged, such as violations of its content security policy."""
        self.evaluate("0")
        found = []
        for event in self.connection.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(parameters["entry"]["text"] + " " + parameters["entry"].get("url", ""))
        return found


def wait(what, condition):
    """Calls `condition` until it returns something, and returns that."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(f"{what}: not within {TIMEOUT} s")
