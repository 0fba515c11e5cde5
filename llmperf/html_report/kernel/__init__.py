"""The report's section about one kernel.

``sections`` puts it together and draws time against size; ``work`` and ``accesses`` draw what a
launch executes and which addresses it touches; ``launches`` has the table of its launches.
"""
