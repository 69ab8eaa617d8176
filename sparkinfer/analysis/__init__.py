"""What the figures say: what a run waited for, and what to change.

Runs on: driver. Nothing here imports Spark, a framework or a plotting library.
"""
