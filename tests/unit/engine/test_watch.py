"""What the worker knows of its loader processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkinfer.engine.watch import has_ended


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system tells of no ended child: it has no /proc")
def test_a_child_that_nobody_waited_for_has_ended() -> None:
    """It died by itself, and is not to be told as one that was ended for being late."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        assert not has_ended(child.pid)
        child.kill()
        end = time.monotonic() + 30
        while not has_ended(child.pid) and time.monotonic() < end:
            time.sleep(0.01)
        assert has_ended(child.pid)
    assert has_ended(child.pid)  # waited for, as a fork server does
