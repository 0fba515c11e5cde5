"""The ``llmperf`` command: one module per group of commands; the work is done in other packages."""
