"""Start of a training: in this process, under torchrun, or on a Ray cluster."""
