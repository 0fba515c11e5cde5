"""Memory analysis: find how far a kernel reaches into each buffer, with an instrumented copy of it.

``preprocess`` → ``instrument`` → (a device's ``Prober``) → ``polynomials`` → ``fit`` → ``judging``
→ ``analyse``. Source: the input generation of LLMPerf (arXiv 2503.11244), which printed the indices
of subscripts at two sizes.
"""
