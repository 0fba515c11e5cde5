"""``python -m llmperf.reference FOLDER``: write the pages of ``docs/reference`` from the code."""
