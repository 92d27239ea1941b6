"""Wrong answers of lesson 02: what people write before they get it right."""

import os

import torch.distributed as dist

from dtlab.course.mutants import edit


def _one_name_at_a_time(environ):
    """The loop that makes five failed runs of one mistake."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        if name not in environ:
            raise ValueError(f"{name} is not set")
    card = environ["LOCAL_RANK"]
    return {"rank": int(environ["RANK"]), "size": int(environ["WORLD_SIZE"]), "device": f"cuda:{card}"}


def _other_environment(environ):
    """Right in a launched process, wrong for whatever else is handed in."""
    card = os.environ["LOCAL_RANK"]
    return {"rank": int(os.environ["RANK"]), "size": int(os.environ["WORLD_SIZE"]), "device": f"cuda:{card}"}


def _hard_coded(environ):
    return {"rank": 0, "size": 4, "device": "cuda:0"}


def _everyone_to_everyone(tensor, rank, size):
    """As many messages and bytes as a ring, and the right sum, but every rank talks to every other."""
    chunks = list(tensor.chunk(size))
    mine = chunks[rank].clone()
    for turn in range(1, size):
        to, source = (rank + turn) % size, (rank - turn) % size
        arrived = mine.clone()
        sending, receiving = dist.isend(chunks[to], to), dist.irecv(arrived, source)
        sending.wait(), receiving.wait()
        chunks[rank] += arrived
    for turn in range(1, size):
        to, source = (rank + turn) % size, (rank - turn) % size
        sending, receiving = dist.isend(chunks[rank], to), dist.irecv(chunks[source], source)
        sending.wait(), receiving.wait()
    return tensor


def _whole_tensor_round_the_ring(tensor, rank, size):
    """The ring without chunks: N-1 messages of S bytes."""
    passing = tensor.clone()
    for _ in range(size - 1):
        arrived = passing.clone()
        sending, receiving = dist.isend(passing, (rank + 1) % size), dist.irecv(arrived, (rank - 1) % size)
        sending.wait(), receiving.wait()
        passing = arrived
        tensor += arrived
    return tensor


def _gather_everything(tensor, rank, size):
    parts = [tensor.clone() for _ in range(size)]
    dist.all_gather(parts, tensor)
    return tensor.copy_(sum(parts))


MUTANTS = {
    "02-who": {
        "the rank as the card": edit("cuda:{environ['LOCAL_RANK']}", "cuda:{environ['RANK']}"),
        "card 0 for everybody": edit("cuda:{environ['LOCAL_RANK']}", "cuda:0"),
        "ranks of this host as the world": edit("environ['WORLD_SIZE']", "environ['LOCAL_WORLD_SIZE']"),
        "rank as text": edit("int(environ['RANK'])", "environ['RANK']"),
        "no look at what is missing": edit("if missing:", "if False:"),
        "one missing name at a time": _one_name_at_a_time,
        "os.environ instead of the argument": _other_environment,
        "hard-coded": _hard_coded,
    },
    "02-ring": {
        "one step too few in both halves": edit("range(size - 1)", "range(size - 2)"),
        "one step too many in both halves": edit("range(size - 1)", "range(size)"),
        "overwrites instead of adding": edit("+= buffer", "= buffer"),
        "the chunk after the right one": edit("chunks[(rank - step) % size]", "chunks[(rank + step) % size]"),
        "waits for its send before it asks for the other": edit(
            "sending = dist.isend(chunk, right)", "sending = dist.isend(chunk, right); sending.wait()"
        ),
        "assigns to the list": edit("mine += buffer", "chunks[(rank - step - 1) % size] = mine + buffer"),
        "works on a copy": edit("chunks = [tensor", "chunks = [tensor.clone()"),
        "right bytes and sum, no ring": _everyone_to_everyone,
        "a ring of whole tensors": _whole_tensor_round_the_ring,
        "torch's all_gather": _gather_everything,
    },
    "02-seconds": {
        "a ring of whole tensors": edit("whole / n", "whole"),
        "half of a ring": edit('"ring": 2 * (n - 1)', '"ring": (n - 1)'),
        "a tree down only": edit("2 * levels", "levels"),
        "a tree of n levels": edit("math.ceil(math.log2(n))", "n"),
        "levels rounded down": edit("math.ceil(", "math.floor("),
        "a server for which latency is paid once": edit(
            "(n - 1) * (latency + whole),", "latency + (n - 1) * whole,"
        ),
        "bits for bytes": edit("size / bandwidth", "8 * size / bandwidth"),
    },
}
