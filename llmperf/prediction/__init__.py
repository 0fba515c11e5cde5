"""Predictions: a loaded model predicts the run time of a kernel from its source.

Connects the packages workers and trainer, which do not import each other: source reading, memory
analysis and the planner of ``collect`` on one side, the trained run on the other.
"""
