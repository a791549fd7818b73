"""A real Chromium without a window, which a test drives by DevTools' protocol over pipes."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

PROGRAM = shutil.which("chromium")
REASON = "apt-get install chromium"
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESKTOP = {"width": 1100, "height": 900, "deviceScaleFactor": 1, "mobile": False}

OBSERVE_LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longTasks.push(task.duration);
}).observe({ entryTypes: ["longtask"] });
"""


class Tab:
    """A page that is open."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        self.said: list[str] = []
        """Errors and warnings on the page's console."""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of DevTools' protocol."""
        return self._browser.call(method, self._session, **params)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, which may be a promise."""
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", **params)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """What stands in an element; empty where there is none."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def wait_for(self, expression: str, *, seconds: float = 20.0) -> Any:
        """The value of an expression once it is true."""
        return wait_until(
            lambda: self.evaluate(expression),
            expression,
            seconds=seconds,
            describe=lambda: "\n".join([self.text(), *self.said]),
        )

    def open(self, url: str) -> None:
        """Go to a page, and wait until it has loaded."""
        self.call("Page.navigate", url=url)
        self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")

    def at_start(self, script: str) -> None:
        """Run a script before those of each page that is opened from now on."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def look_like(self, screen: dict[str, Any], theme: str = "light") -> None:
        """Take on a screen's size, and a theme."""
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Write a PNG of the page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def press(self, key: str) -> None:
        """Press a key of a keyboard and let it go."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


class Browser:
    """One that runs."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._last_id, self._received = 0, b""
        self._tabs: dict[str, Tab] = {}

    def tab(self) -> Tab:
        """Open an empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        tab.look_like(DESKTOP)
        return tab

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """A command, and its result."""
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": params}
        command |= {"sessionId": session} if session else {}
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._last_id:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._note(message)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            part = os.read(self._from, 1 << 16)
            assert part, "Chromium has ended"
            self._received += part
        line, _, self._received = self._received.partition(b"\0")
        return json.loads(line)

    def _note(self, message: dict[str, Any]) -> None:
        tab, params = self._tabs.get(message.get("sessionId", "")), message.get("params", {})
        if tab is None:
            return
        match message["method"]:
            case "Runtime.exceptionThrown":
                tab.said.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                tab.said.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser of its own profile until the end of the block."""
    assert PROGRAM is not None, REASON
    # Its other processes may still write for a moment when it has ended.
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        (their_in, to_browser), (from_browser, their_out) = os.pipe(), os.pipe()
        # It expects the pipes as its descriptors 3 and 4.
        script = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
        options = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]
        process = subprocess.Popen(
            ["bash", "-c", script, PROGRAM, *options],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in (their_in, their_out):
            os.close(descriptor)
        try:
            yield Browser(to_browser, from_browser)
        finally:
            process.kill()
            process.wait()
            for descriptor in (to_browser, from_browser):
                os.close(descriptor)
