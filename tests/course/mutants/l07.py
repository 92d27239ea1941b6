"""Wrong answers of lesson 07: what people write before they get it right."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.nn.functional import all_reduce

from dtlab.course.mutants import edit


def _torchs_own(x, first, bias, second, last_bias):
    """Forward is right; backward sums gradients that every rank has whole already."""
    return all_reduce(F.linear(F.gelu(F.linear(x, first, bias)), second)) + last_bias


def _whole_on_every_rank(x, first, bias, second, last_bias):
    """All matrices gathered: right, and nothing is cut."""

    def gathered(part, dim):
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.detach().contiguous())
        parts[dist.get_rank()] = part
        return torch.cat(parts, dim)

    hidden = F.gelu(F.linear(x, gathered(first, 0), gathered(bias, 0)))
    return F.linear(hidden, gathered(second, 1), last_bias)


def _a_whole_table(ids, part, num_rows, ranks):
    """Every rank gathers the whole table and reads it."""
    most = -(-num_rows // ranks)
    padded = torch.zeros(most, part.shape[1], dtype=part.dtype)
    padded[: len(part)] = part.detach()
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(parts, padded)
    return torch.stack(parts, 1).flatten(0, 1)[ids] + 0 * part.sum()


def _always_s4(rows, dim, other, activations, card, ranks):
    """S4's order: mixed precision and recompute first, the table last."""
    bill = {"table": 16 * rows * dim, "states": 16 * other, "activations": activations}
    taken = []
    for name, item, size in (
        ("smaller micro-batch", "activations", activations // 4),
        ("recompute", "activations", activations // 16),
        ("sparse gradients", "table", 12 * rows * dim),
        ("row-wise state", "table", 4 * rows * dim + 4 * rows),
        ("rows over ranks", "table", (4 * rows * dim + 4 * rows) // ranks),
        ("states over ranks", "states", 16 * other // ranks),
    ):
        if sum(bill.values()) <= card:
            return taken, bill
        taken.append(name)
        bill[item] = size
    if sum(bill.values()) > card:
        raise ValueError("table states activations")
    return taken, bill


MUTANTS = {
    "07-pair": {
        "no sum in forward": edit(
            "        total = x.clone()\n        dist.all_reduce(total)\n", "        total = x.clone()\n"
        ),
        "no all-reduce in backward": edit(
            "        total = gradient.clone()\n        dist.all_reduce(total)\n",
            "        total = gradient.clone()\n",
        ),
        "f left out": edit("CopyToRanks.apply(x)", "x"),
        "g left out": edit("SumOverRanks.apply(F.linear(hidden, second))", "F.linear(hidden, second)"),
        "g's backward all-reduces too": edit(
            '"""Return the gradient of this rank\'s part."""',
            '"""Return the gradient of this rank\'s part."""\n        dist.all_reduce(gradient)',
        ),
        "the mean instead of the sum": edit(
            "return SumOverRanks.apply(F.linear(hidden, second)) + last_bias",
            "return SumOverRanks.apply(F.linear(hidden, second)) / dist.get_world_size() + last_bias",
        ),
        "the bias inside the sum": edit(
            "SumOverRanks.apply(F.linear(hidden, second)) + last_bias",
            "SumOverRanks.apply(F.linear(hidden, second, last_bias))",
        ),
        "the last bias forgotten": edit(" + last_bias", ""),
        "gelu after the sum": edit(
            "F.gelu(F.linear(CopyToRanks.apply(x), first, bias))",
            "F.linear(CopyToRanks.apply(x), first, bias)",
        ),
        "the first matrix cut by inputs": edit("first.chunk(ranks, 0)", "first.chunk(ranks, 1)"),
        "the second matrix cut by outputs": edit("second.chunk(ranks, 1)", "second.chunk(ranks, 0)"),
        "every rank takes part 0": edit("second.chunk(ranks, 1)[rank]", "second.chunk(ranks, 1)[0]"),
        "nothing cut": edit("second.chunk(ranks, 1)[rank]", "second"),
        "an all-reduce between the matrices": edit(
            "hidden = F.gelu(F.linear(CopyToRanks.apply(x), first, bias))",
            "hidden = F.gelu(SumOverRanks.apply(F.linear(CopyToRanks.apply(x), first, bias)))",
        ),
        "torch's all-reduce with a backward": _torchs_own,
        "matrices gathered": _whole_on_every_rank,
    },
    "07-lookup": {
        "blocks of neighbours": edit(
            "return rows % ranks, rows // ranks",
            "return rows // -(-num_rows // ranks), rows % -(-num_rows // ranks)",
        ),
        "everything on rank 0": edit(
            "return rows % ranks, rows // ranks", "return torch.zeros_like(rows), rows"
        ),
        "the row as its slot": edit("return rows % ranks, rows // ranks", "return rows % ranks, rows"),
        "slots that collide": edit(
            "return rows % ranks, rows // ranks", "return rows % ranks, rows // ranks // 2"
        ),
        "owner and slot swapped": edit(
            "return rows % ranks, rows // ranks", "return rows // ranks, rows % ranks"
        ),
        "duplicates are asked for": edit(
            "wanted, position = ids.unique(return_inverse=True)",
            "wanted, position = ids, torch.arange(len(ids))",
        ),
        "not spread over the duplicates": edit("[order.argsort()][position]", "[order.argsort()]"),
        "left in the order of owners": edit("vectors[order.argsort()][position]", "vectors[position]"),
        "put back by the order itself": edit("vectors[order.argsort()]", "vectors[order]"),
        "questions not sorted by owner": edit("all_to_all(slots[order]", "all_to_all(slots"),
        "rows asked for, not slots": edit("all_to_all(slots[order]", "all_to_all(wanted[order]"),
        "an answer without a way back": edit("exchange(part[questions]", "all_to_all(part[questions]"),
        "the part is detached": edit("exchange(part[questions]", "exchange(part.detach()[questions]"),
        "a rank without ids leaves": edit(
            "    wanted, position", "    if not len(ids):\n        return part[:0]\n    wanted, position"
        ),
        "the whole table is gathered": _a_whole_table,
    },
    "07-remedy": {
        "a fixed order": _always_s4,
        "one remedy only": edit("while sum(bill.values()) > card:", "if sum(bill.values()) > card:"),
        "one more than needed": edit("while sum(bill.values()) > card:", "while sum(bill.values()) >= card:"),
        "the largest item alone against the card": edit(
            "while sum(bill.values()) > card:", "while max(bill.values()) > card:"
        ),
        "the smallest item first": edit("max(bill, key=bill.get)", "min(bill, key=bill.get)"),
        "the last in the alphabet": edit("max(bill, key=bill.get)", "max(bill)"),
        "always the table": edit("max(bill, key=bill.get)", '"table"'),
        "remedies from the end": edit(".pop(0)", ".pop()"),
        "Adam's moments forgotten": edit('"table": 16 * rows * dim', '"table": 8 * rows * dim'),
        "sparse gradients free the state too": edit("12 * rows * dim", "8 * rows * dim"),
        "no state at all by row": edit("4 * rows * dim + 4 * rows", "4 * rows * dim"),
        "the state stays whole on each rank": edit("row_wise // ranks", "4 * rows * dim // ranks + 4 * rows"),
        "gives up in silence": edit(
            'raise ValueError(f"{item}: {bill[item]:,} bytes, and no remedy left")', "break"
        ),
        "the error names no item": edit('f"{item}: {bill[item]:,} bytes, and no remedy left"', '"too large"'),
        "takes nothing": lambda rows, dim, other, activations, card, ranks: (
            [],
            {"table": 16 * rows * dim, "states": 16 * other, "activations": activations},
        ),
    },
}
