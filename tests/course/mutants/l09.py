"""Wrong answers of lesson 09: what people write before they get it right."""

import torch
import torch.distributed as dist

from dtlab.course.mutants import edit


class _Replica(torch.autograd.Function):
    """Gathers once and keeps the weights for backward: ZeRO-2's memory, right values."""

    @staticmethod
    def forward(ctx, x, shard, n, block):
        whole = torch.empty(len(shard) * dist.get_world_size(), dtype=shard.dtype)
        dist.all_gather_into_tensor(whole, shard)
        ctx.save_for_backward(x, shard, whole)
        ctx.n, ctx.block = n, block
        return block(x, whole[:n])

    @staticmethod
    def backward(ctx, gradient):
        x, shard, whole = ctx.saved_tensors
        x, whole = x.detach().requires_grad_(), whole[: ctx.n].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x, whole)
        of_x, of_whole = torch.autograd.grad(y, (x, whole), gradient)
        ranks, size = dist.get_world_size(), len(shard)
        padded = torch.zeros(ranks * size, dtype=shard.dtype)
        padded[: ctx.n] = of_whole
        part = torch.empty(size, dtype=shard.dtype)
        dist.reduce_scatter_tensor(part, padded)
        return of_x, part / ranks, None, None


def _everything_all_reduced(gradient, size, shard_group, copy_group):
    """The whole gradient is summed over all ranks, and each takes its slice: right, with too many bytes."""
    total = gradient.clone()
    dist.all_reduce(total)
    shards, shard = dist.get_world_size(shard_group), dist.get_rank(shard_group)
    padded = torch.cat([total, total.new_zeros(size * shards - len(total))])
    return padded[shard * size : (shard + 1) * size] / dist.get_world_size()


def _copies_first(gradient, size, shard_group, copy_group):
    """The copies all-reduce whole gradients, then each copy reduce-scatters: right values."""
    shards, copies = dist.get_world_size(shard_group), dist.get_world_size(copy_group)
    total = gradient.clone()
    dist.all_reduce(total, group=copy_group)
    padded = torch.cat([total, total.new_zeros(size * shards - len(total))])
    part = gradient.new_empty(size)
    dist.reduce_scatter_tensor(part, padded, group=shard_group)
    return part / (shards * copies)


MUTANTS = {
    "09-zero": {
        "the paper's sum, in fractions": lambda units, ranks, zero, each=(2, 2, 12): {
            "parameters": each[0] * sum(units) / (ranks if zero >= 3 else 1),
            "gradients": each[1] * sum(units) / (ranks if zero >= 2 else 1),
            "optimizer": each[2] * sum(units) / (ranks if zero >= 1 else 1),
            "in use": 0,
        },
        "rounded down": edit("-(-size // ranks)", "size // ranks"),
        "the whole model padded once": edit(
            "sum(-(-size // ranks) for size in units)", "-(-sum(units) // ranks)"
        ),
        "gradients cut from ZeRO-1 on": edit("part if zero >= 2 else whole", "part if zero >= 1 else whole"),
        "weights cut from ZeRO-2 on": edit("part if zero >= 3 else whole", "part if zero >= 2 else whole"),
        "nothing but the optimizer is cut": edit("part if zero >= 3 else whole", "whole"),
        "the optimizer is cut always": edit("part if zero >= 1 else whole", "part"),
        "all units whole at once": edit("in_use * max(units)", "in_use * sum(units)"),
        "the smallest unit": edit("in_use * max(units)", "in_use * min(units)"),
        "weights alone are whole": edit("(gradients if zero >= 2 else 0) + ", ""),
        "gradients alone are whole": edit(" + (weights if zero >= 3 else 0)", ""),
        "the optimizer is gathered too": edit(
            "(weights if zero >= 3 else 0)", "(weights + optimizer if zero >= 3 else 0)"
        ),
        "in use under DDP too": edit("(gradients if zero >= 2 else 0)", "gradients"),
        "no 'in use'": edit('        "in use": in_use * max(units),\n', ""),
        "always 16 bytes": lambda units, ranks, zero, each=(2, 2, 12): 16 * sum(units) // ranks,
    },
    "09-block": {
        "weights kept from the forward": _Replica,
        "weights saved beside the shard": edit(
            "        ctx.n, ctx.block = n, block\n        return block(x, gather(shard, n))",
            "        ctx.n, ctx.block = n, block\n        ctx.whole = gather(shard, n)\n"
            "        return block(x, ctx.whole)",
        ),
        "a graph of the forward is kept": edit(
            "        return block(x, gather(shard, n))",
            "        with torch.enable_grad():\n"
            "            ctx.y = block(x, gather(shard, n).requires_grad_())\n"
            "        return ctx.y.detach()",
        ),
        "the sum instead of the mean": edit("return part / ranks", "return part"),
        "divided twice": edit("return part / ranks", "return part / ranks**2"),
        "an all-reduce instead of a reduce-scatter": edit(
            "    dist.reduce_scatter_tensor(part, F.pad(gradient, (0, size * ranks - len(gradient))))\n",
            "    total = F.pad(gradient, (0, size * ranks - len(gradient))).clone()\n"
            "    dist.all_reduce(total)\n"
            "    part = total.view(ranks, size)[dist.get_rank()]\n",
        ),
        "the rank's own gradient": edit(
            "    dist.reduce_scatter_tensor(part, F.pad(gradient, (0, size * ranks - len(gradient))))\n"
            "    return part / ranks",
            "    return shard_of(gradient, dist.get_rank(), ranks)",
        ),
        "the padding is used": edit("return whole[:n]", "return whole"),
        "every rank keeps part 0": edit("padded[rank * size : (rank + 1) * size]", "padded[:size]"),
        "a view of the whole": edit(
            "padded[rank * size : (rank + 1) * size].clone()", "padded[rank * size : (rank + 1) * size]"
        ),
        "nothing is cut": edit(
            "return padded[rank * size : (rank + 1) * size].clone()", "return flat.clone()"
        ),
        "rounded down": edit(
            "size = -(-len(flat) // ranks)\n    padded = F.pad(flat, (0, size * ranks - len(flat)))",
            "size = len(flat) // ranks\n    padded = flat",
        ),
        "every n-th number": edit(
            "padded[rank * size : (rank + 1) * size].clone()", "padded[rank::ranks].clone()"
        ),
        "the gradient of x is lost": edit("return of_x, reduce", "return None, reduce"),
        "the gradient of the shard is lost": edit("reduce(of_whole, len(shard)), None", "None, None"),
        "starts from ones": edit(
            "torch.autograd.grad(y, (x, whole), gradient)",
            "torch.autograd.grad(y, (x, whole), torch.ones_like(y))",
        ),
        "gathered as a list": edit(
            "    dist.all_gather_into_tensor(whole, shard)\n    return whole[:n]",
            "    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(parts, shard)\n    return torch.cat(parts)[:n]",
        ),
    },
    "09-mesh": {
        "the groups swapped": edit(
            "group=shard_group)\n    dist.all_reduce(part, group=copy_group)",
            "group=copy_group)\n    dist.all_reduce(part, group=shard_group)",
        ),
        "the mean of the copy": edit("    dist.all_reduce(part, group=copy_group)\n", ""),
        "divided by the shards alone": edit("part / (shards * copies)", "part / shards"),
        "divided by the copies alone": edit("part / (shards * copies)", "part / copies"),
        "a sum": edit("part / (shards * copies)", "part"),
        "all-reduced over everybody": edit(
            "dist.all_reduce(part, group=copy_group)", "dist.all_reduce(part)"
        ),
        "the whole gradient over all ranks": _everything_all_reduced,
        "copies first, with whole gradients": _copies_first,
        "shards that are no neighbours": edit("divmod(rank, shards)", "divmod(rank, copies)"),
        "the two lists swapped": edit(
            "        [copy * shards + s for s in range(shards)],\n"
            "        [c * shards + shard for c in range(copies)],\n",
            "        [c * shards + shard for c in range(copies)],\n"
            "        [copy * shards + s for s in range(shards)],\n",
        ),
        "without the rank itself": edit("for s in range(shards)]", "for s in range(shards) if s != shard]"),
        "nothing is sent": lambda gradient, size, shard_group, copy_group: gradient[:size].clone(),
    },
    "09-pieces": {
        "file by file, as they are": lambda n, saved_by, rank, ranks: [
            (rank % saved_by, 0, -(-n // saved_by))
        ],
        "one file only": edit("while at < stop:", "if at < stop:"),
        "padding is read": edit("min((rank + 1) * own, n)", "(rank + 1) * own"),
        "counts in the whole tensor": edit("(file, at - file * size, end - file * size)", "(file, at, end)"),
        "parts of the old world": edit(
            "own = -(-n // saved_by), -(-n // ranks)", "own = -(-n // saved_by), -(-n // saved_by)"
        ),
        "rounded down": edit(
            "own = -(-n // saved_by), -(-n // ranks)", "own = -(-n // saved_by), n // ranks"
        ),
        "files rounded down": edit("size, own = -(-n // saved_by), ", "size, own = n // saved_by, "),
        "every file is opened": lambda n, saved_by, rank, ranks: [
            (file, 0, min(-(-n // saved_by), n - file * -(-n // saved_by)))
            for file in range(saved_by)
            if n > file * -(-n // saved_by)
        ],
        "number by number": lambda n, saved_by, rank, ranks: [
            (i // -(-n // saved_by), i % -(-n // saved_by), i % -(-n // saved_by) + 1)
            for i in range(min(rank * -(-n // ranks), n), min((rank + 1) * -(-n // ranks), n))
        ],
        "whole files": edit("end = min(stop, (file + 1) * size)", "end = (file + 1) * size"),
        "every n-th number": lambda n, saved_by, rank, ranks: [
            (i // -(-n // saved_by), i % -(-n // saved_by), i % -(-n // saved_by) + 1)
            for i in range(rank, n, ranks)
        ],
    },
}
