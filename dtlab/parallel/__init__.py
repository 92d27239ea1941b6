"""Functions that take a model and return it parallelised."""

from dtlab.parallel.by_hand_ddp import HandDDP, broadcast_state
from dtlab.parallel.checks import check_sparse_gradients, explain_unused, sparse_parameters, unused_parameters
from dtlab.parallel.ddp import TorchDDP, data_parallel, no_sync, unwrap
from dtlab.parallel.embedding import plan_embeddings, shard_embeddings
from dtlab.parallel.replicas import parameter_hash
from dtlab.parallel.statistics import weighted_statistics
from dtlab.parallel.timeline import BackwardLine, BucketTrip, record_backward

__all__ = [
    "BackwardLine",
    "BucketTrip",
    "HandDDP",
    "TorchDDP",
    "broadcast_state",
    "check_sparse_gradients",
    "data_parallel",
    "explain_unused",
    "no_sync",
    "parameter_hash",
    "plan_embeddings",
    "record_backward",
    "shard_embeddings",
    "sparse_parameters",
    "unused_parameters",
    "unwrap",
    "weighted_statistics",
]
