"""A headless browser, driven by the protocol of Chromium's developer tools over a pipe.

Nothing but a browser is needed: Debian's is ``chromium``. Where there is none, tests skip.
"""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

SECONDS = 60
"""For an answer, before a test fails."""


def find_browser() -> str:
    """Return the path of a browser, or skip the test. ``GRAPHGRAD_BROWSER`` names one."""
    named = os.environ.get("GRAPHGRAD_BROWSER")
    program = named or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser on the PATH ({', '.join(PROGRAMS)}) nor in GRAPHGRAD_BROWSER")
    return program


class Browser:
    """A browser with one page.

    Parameters
    ----------
    home : Path
        A folder for what it writes.
    offline : bool
        Whether it has no network.

    Attributes
    ----------
    complaints : list of str
        What the page said to the console as a warning or an error, and exceptions.
    requests : list of str
        The addresses that it asked for.
    """

    def __init__(self, home: Path, offline: bool = True):
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._seen: list[str] = []
        self._buffer = b""
        self._count = 0
        # The protocol is spoken over descriptors 3 and 4.
        shell = ["sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1', "sh"]
        options = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"]
        options += ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
        options += [f"--user-data-dir={home}", "--window-size=1400,1000"]
        self._process = subprocess.Popen(
            [*shell, find_browser(), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "HOME": str(home)},
        )
        self._session: str | None = None
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        attached = self._send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")
        none = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        if offline:
            self._send("Network.emulateNetworkConditions", offline=True, **none)

    def open(self, page: Path | str) -> None:
        """Open a file or an address, and wait until it is loaded."""
        self._seen.clear()
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self._send("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._seen:
            self._receive()

    def run(self, script: str):
        """Evaluate an expression in the page, and return its value, or what it promises."""
        options = {"returnByValue": True, "awaitPromise": True}
        done = self._send("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def type(self, selector: str, text: str) -> None:
        """Type text into a field, in the place of what is in it."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self._send("Input.insertText", text=text)

    def press_enter(self) -> None:
        """Press the key in the field that has the focus."""
        for kind in ("keyDown", "keyUp"):
            key = {"key": "Enter", "windowsVirtualKeyCode": 13}
            self._send("Input.dispatchKeyEvent", type=kind, **key)

    def close(self) -> None:
        """End the browser."""
        self._session = None
        self._send("Browser.close")
        self._process.communicate(timeout=SECONDS)

    def _send(self, method: str, **params):
        """Give a command, and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _receive(self) -> dict:
        """Return the next message; note what is worth it."""
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._process.stdout], [], [], left)[0], "the browser is silent"
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, facts: dict) -> None:
        """Note an event."""
        self._seen.append(event)
        if event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(facts["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(facts["args"]))
        elif event == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.complaints.append(facts["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
