"""Spark's Python daemon with the frameworks imported: the workers that it forks, many of which are killed, need not import them again.

Imported only, and not used: no model has run in the daemon, so that a worker is what it would be after its own import.
"""

from __future__ import annotations

if __name__ == "__main__":  # and not in a fork server's children, which import this module again by its name
    import keras  # noqa: F401 - see above
    import torch  # noqa: F401
    from pyspark.daemon import manager

    manager()
