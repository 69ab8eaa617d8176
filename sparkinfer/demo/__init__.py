"""The demo: three real jobs, on real models and real files that Python packages ship.

Runs on: driver; its preprocess and postprocess functions on the workers.
"""
