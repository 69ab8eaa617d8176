"""Imported by the fork server of the loader processes, first of all, and by nobody else.

Runs on: the fork server of a worker.

Invariant: it imports nothing and changes only what the server's children would print.
"""

from __future__ import annotations

import warnings

# Each child runs the worker's main module (pyspark.daemon) again under another name, which runpy remarks on since it is preloaded
warnings.filterwarnings("ignore", message=".*found in sys.modules after import of package", category=RuntimeWarning, module="runpy")
