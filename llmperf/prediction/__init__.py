"""Predictions: the run time of a source's kernels from a loaded model.

Connects the packages workers and trainer, which do not import each other: source reading, memory
analysis and the planner of ``collect`` on one side, the trained run on the other.
"""
