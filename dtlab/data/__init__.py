"""Data sets, features, shards, samplers and the columnar loader."""

from dtlab.lazy import loaded_on_first_use

_HOME = {
    "Batch": "dtlab.data.batch",
    "BlockStream": "dtlab.data.stream",
    "Coverage": "dtlab.data.coverage",
    "DataConfig": "dtlab.data.config",
    "GlobalBatchSampler": "dtlab.data.sampler",
    "Loader": "dtlab.data.loader",
    "TorchBatchSampler": "dtlab.data.torch_adapter",
    "data_loader": "dtlab.data.torch_adapter",
    "gather_by_id": "dtlab.data.evaluate",
    "load_dataset": "dtlab.data.datasets",
}
__all__ = list(_HOME)
__getattr__, __dir__ = loaded_on_first_use(__name__, _HOME)
