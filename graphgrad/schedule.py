"""Learning-rate schedules: functions of the step number for ``step.learning_rate``."""

from .train.schedule import Schedule, constant, cosine, one_cycle, step_decay, warmup

__all__ = ["Schedule", "constant", "cosine", "one_cycle", "step_decay", "warmup"]
