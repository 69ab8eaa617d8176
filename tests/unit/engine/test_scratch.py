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


def owner(folder: Path, end: str) -> subprocess.Popen[str]:
    """Start a process that has a folder, and ends when it is told to."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SCRIPT.format(end=end)], env=environment, stdin=pipe, stdout=pipe, text=True)


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
