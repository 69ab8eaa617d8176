"""A model as a stage of a ``pyspark.ml`` pipeline: the public names.

Runs on: driver.

Invariant: saved pipelines name their stages by this module, so that what lies behind it may move.
"""

from __future__ import annotations

from sparkinfer.spark.ml import Predictor
from sparkinfer.spark.ml_files import trusted_pickles

__all__ = ["Predictor", "trusted_pickles"]
