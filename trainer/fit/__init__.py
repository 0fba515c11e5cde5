"""Training of the regressor: engine, loss, schedule, checkpoints, logs. May import torch."""
