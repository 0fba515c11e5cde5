"""``python -m llmperf``: the command line, for launchers of modules (``torchrun -m llmperf``)."""

from llmperf.cli.main import run

if __name__ == "__main__":
    run()
