"""The ``llmperf`` command: one module a group of commands, each thin over the packages below."""
