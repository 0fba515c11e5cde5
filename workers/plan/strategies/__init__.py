"""The input strategies: what sizes and values the arguments of a launch get.

``scalars.py``: values by role. ``buffers.py``: elements and contents from an analysis.
``memory_limits.py``: what fits on a device. ``rules.py``: the three strategies as functions of the
NDRange, and which of them a kernel allows. ``varied.py``: inputs other than the usual ones. Which
NDRanges are timed: ``ndranges.py``; how both become a plan: ``launch_plan.py``.
"""
