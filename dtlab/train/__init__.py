"""The training core: configuration, step, loop, metrics and records."""

from dtlab.lazy import loaded_on_first_use

_HOME = {
    "BestEpoch": "dtlab.train.stopping",
    "CheckpointConfig": "dtlab.train.config_core",
    "Checkpointer": "dtlab.train.checkpoint",
    "EarlyStopping": "dtlab.train.stopping",
    "Flags": "dtlab.train.flags",
    "Generators": "dtlab.train.generators",
    "ModelConfig": "dtlab.train.config",
    "NonFiniteError": "dtlab.train.non_finite",
    "OptimConfig": "dtlab.train.config",
    "Precision": "dtlab.train.precision",
    "PrecisionConfig": "dtlab.train.config_core",
    "RunConfig": "dtlab.train.config",
    "Schedule": "dtlab.train.schedule",
    "ScheduleConfig": "dtlab.train.config_schedule",
    "StoppingConfig": "dtlab.train.config_core",
    "TrainConfig": "dtlab.train.config",
    "Trainer": "dtlab.train.trainer",
    "clip_by_norm": "dtlab.train.gradients",
    "effective_batch": "dtlab.train.scaling",
    "evaluate": "dtlab.train.metrics",
    "micro_sizes": "dtlab.train.step",
    "pick_precision": "dtlab.train.precision",
    "run": "dtlab.train.job",
    "scaled_lr": "dtlab.train.scaling",
    "total_norm": "dtlab.train.gradients",
}
__all__ = list(_HOME)
__getattr__, __dir__ = loaded_on_first_use(__name__, _HOME)
