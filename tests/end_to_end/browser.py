"""A real headless Chromium, spoken to by the WebDriver protocol: what a page did, and how it looked."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

CHROMIUM = Path("/usr/bin/chromium")
DRIVER = Path("/usr/bin/chromedriver")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
_direct = build_opener(ProxyHandler({}))


class Browser:
    """One browser with one page."""

    def __init__(self, driver: str, session: str) -> None:
        self._address = f"{driver}/session/{session}"

    def call(self, path: str, **body: Any) -> Any:
        """Send one WebDriver command."""
        return _post(f"{self._address}{path}", body)

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Send one command of the DevTools protocol."""
        return self.call("/goog/cdp/execute", cmd=command, params=parameters)

    def resize(self, width: int, height: int = 900) -> None:
        """Be a screen of this size."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """Be set to ``light`` or ``dark``."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, page: Path) -> None:
        """Open a file."""
        self.call("/url", url=page.as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page."""
        return self.call("/execute/sync", script=script, args=list(arguments))

    def screenshot(self, path: Path) -> Path:
        """Take a picture of the whole page."""
        taken = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def errors(self) -> list[str]:
        """Give what the console said since the last call: script errors, refused requests, broken policies."""
        return [entry["message"] for entry in self.call("/se/log", type="browser")]

    def requests(self) -> list[str]:
        """Give the addresses that were asked for since the last call."""
        messages = (json.loads(entry["message"])["message"] for entry in self.call("/se/log", type="performance"))
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start one with an empty profile, and end it with its driver."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver,
    ):
        try:
            address = _address(driver)
            options = {"binary": str(CHROMIUM), "args": [*_FLAGS, f"--user-data-dir={profile}"]}
            wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
            session = _post(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            try:
                yield Browser(address, session)
            finally:
                _post(f"{address}/session/{session}", None)
        finally:
            driver.terminate()


def _address(driver: subprocess.Popen[str]) -> str:
    assert driver.stdout is not None
    for line in driver.stdout:
        if found := re.search(r"started successfully on port (\d+)", line):
            return f"http://127.0.0.1:{found[1]}"
    msg = "chromedriver ended before it said its port"
    raise RuntimeError(msg)


def _post(address: str, body: dict[str, Any] | None) -> Any:
    """Send a command; without a body it deletes what stands at the address."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(address, data, {"Content-Type": "application/json"}, method="DELETE" if body is None else "POST")  # noqa: S310 - ours
    with _direct.open(request, timeout=120) as answer:
        return json.load(answer)["value"]
