"""``python -m sparkinfer``, and what ``spark-submit`` starts: the command line."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    if not __package__:  # started by its path, as spark-submit does: Python then takes this very folder for a place of modules
        sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    from sparkinfer.cli import main

    sys.exit(main())
