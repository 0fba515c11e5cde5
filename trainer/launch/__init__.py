"""Where a training runs: in this process, under torchrun, or on a Ray cluster."""
