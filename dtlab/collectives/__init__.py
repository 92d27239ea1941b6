"""Collectives by hand over send and receive, and a counter of what crosses between ranks."""

from dtlab.collectives.by_hand import (
    chunk_bounds,
    parameter_server_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from dtlab.collectives.message_order import in_steps
from dtlab.collectives.traffic_counter import Message, Traffic, traffic
from dtlab.collectives.wire_formulas import wire_bytes

__all__ = [
    "Message",
    "Traffic",
    "chunk_bounds",
    "in_steps",
    "parameter_server_all_reduce",
    "ring_all_reduce",
    "traffic",
    "tree_all_reduce",
    "wire_bytes",
]
