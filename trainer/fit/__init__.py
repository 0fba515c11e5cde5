"""Training of the regressor: engine, loss, schedule, checkpoints, logs. A door to ``torch``."""
