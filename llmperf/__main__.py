"""``python -m llmperf``: the same as ``llmperf``; ``torchrun -m llmperf`` needs this form."""

from llmperf.cli.start import run

if __name__ == "__main__":
    run()
