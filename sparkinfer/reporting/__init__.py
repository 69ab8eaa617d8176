"""What a run tells people: figures, one HTML file, progress, MLflow.

Runs on: driver. Each module imports its own heavy library, and nothing is imported here.
"""
