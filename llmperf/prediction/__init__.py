"""Predictions: a loaded model is asked about a source.

Wires what the trainer and the workers do not know of each other: the source's reading, its memory
analysis and the planner of ``collect`` on one side, the trained run on the other.
"""
