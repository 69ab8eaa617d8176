"""Folders of processes that ended without cleaning up are removed by the next one; those of living ones are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
from multiprocessing import util
from sparkinfer.engine.scratch import keep_scratch
keep_scratch()
keep_scratch()
print(util.get_temp_dir(), flush=True)
sys.stdin.readline()
{end}
"""


SLOW_TO_LOCK = """
import fcntl, sys
lock = fcntl.flock

def slow(*said):
    fcntl.flock = lock
    print("about to lock", flush=True)
    sys.stdin.readline()
    lock(*said)

fcntl.flock = slow
"""


def owner(folder: Path, end: str, before: str = "") -> subprocess.Popen[str]:
    """Start a process that has a folder, and ends when it is told to."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", before + SCRIPT.format(end=end)], env=environment, stdin=pipe, stdout=pipe, text=True)


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_a_folder_lives_as_long_as_its_owner_and_until_the_next_one(tmp_path: Path) -> None:
    """One owner lives on, one leaves by os._exit as Spark's workers do, one as Python does; a folder of somebody else is left alone."""
    (tmp_path / "pymp-others").mkdir()
    with owner(tmp_path, "") as living, owner(tmp_path, "os._exit(1)") as leaving:
        kept, left = folder_of(living), folder_of(leaving)
        leaving.communicate("go\n", timeout=60)
        assert left.exists()
        with owner(tmp_path, "") as following:
            new = folder_of(following)
            assert sorted(tmp_path.iterdir()) == sorted([kept, new, tmp_path / "pymp-others"])
            following.communicate("go\n", timeout=60)
        living.communicate("go\n", timeout=60)
    assert list(tmp_path.iterdir()) == [tmp_path / "pymp-others"]


def test_a_folder_is_not_taken_from_an_owner_that_is_about_to_lock_it(tmp_path: Path) -> None:
    """Another process looks between the making of the file and its lock, as two workers that start at once do: the folder stays."""
    with owner(tmp_path, "", SLOW_TO_LOCK) as slow:
        assert slow.stdout is not None
        assert slow.stdin is not None
        assert slow.stdout.readline().strip() == "about to lock"
        with owner(tmp_path, "os._exit(1)") as other:
            folder_of(other)
            other.communicate("go\n", timeout=60)
        slow.stdin.write("go\n")
        slow.stdin.flush()
        kept = folder_of(slow)
        assert kept.is_dir()
        with owner(tmp_path, "") as following:
            folder_of(following)
            following.communicate("go\n", timeout=60)
        assert list(tmp_path.iterdir()) == [kept]
        slow.communicate("go\n", timeout=60)
    assert list(tmp_path.iterdir()) == []
