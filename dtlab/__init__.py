"""Distributed PyTorch training, learned by breaking real multi-process runs.

Names are loaded on first use, so that ``import dtlab`` costs milliseconds and does not import torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "UserError": "dtlab.errors",
    "DtlabWarning": "dtlab.errors",
    "launch": "dtlab.ranks.launcher",
    "RankResults": "dtlab.ranks.launcher",
    "RankError": "dtlab.ranks.report",
    "World": "dtlab.ranks.worlds",
    "world": "dtlab.ranks.worlds",
    "rank": "dtlab.ranks.agreement",
    "world_size": "dtlab.ranks.agreement",
    "barrier": "dtlab.ranks.agreement",
    "mean": "dtlab.ranks.agreement",
    "gather": "dtlab.ranks.agreement",
    "broadcast": "dtlab.ranks.agreement",
    "all_agree": "dtlab.ranks.agreement",
    "traffic": "dtlab.collectives.traffic_counter",
    "same_collectives": "dtlab.collectives.same_collectives",
    "GlobalBatchSampler": "dtlab.data.sampler",
    "Batch": "dtlab.data.batch",
    "Loader": "dtlab.data.loader",
    "data_loader": "dtlab.data.torch_adapter",
    "load_dataset": "dtlab.data.datasets",
    "data_parallel": "dtlab.parallel.ddp",
    "Trainer": "dtlab.train.trainer",
    "global_steps": "dtlab.train.steps",
    "TrainConfig": "dtlab.train.config",
    "Schedule": "dtlab.train.schedule",
    "ScheduleConfig": "dtlab.train.config_schedule",
    "EarlyStopping": "dtlab.train.stopping",
    "Checkpointer": "dtlab.train.checkpoint",
    "Generators": "dtlab.train.generators",
    "pick_precision": "dtlab.train.precision",
    "doctor": "dtlab.diagnose.doctor",
    "loss_parity": "dtlab.diagnose.parity",
    "gradient_agreement": "dtlab.diagnose.gradient_agreement",
    "sample_coverage": "dtlab.diagnose.sample_coverage",
    "step_profile": "dtlab.diagnose.profiler",
    "find_batch": "dtlab.diagnose.batch_finder",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from difflib import get_close_matches

        near = [] if name.startswith("_") else get_close_matches(name, _HOME, n=1, cutoff=0.7)
        hint = f": did you mean {near[0]}?" if near else ""
        raise AttributeError(f"module 'dtlab' has no attribute {name!r}{hint}", name=name)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
