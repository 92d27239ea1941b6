"""Wrong answers of lesson 04: what people write before they get it right."""

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import dtlab
from dtlab.course.mutants import edit


def _slice_then_cut(samples, global_batch, rank, size, seed, epoch, position=0):
    """Each sample once, but each rank walks through its own part: step counts differ."""
    mine = np.random.default_rng([seed, epoch]).permutation(samples)[position:][rank::size].tolist()
    local = global_batch // size
    return [mine[start : start + local] for start in range(0, len(mine), local)]


def _padded(samples, global_batch, rank, size, seed, epoch, position=0):
    """torch's way: start again at the beginning until the ranks have equal lengths."""
    order = np.random.default_rng([seed, epoch]).permutation(samples)[position:]
    order = np.concatenate([order, order[: -len(order) % global_batch]])
    return [part[rank::size].tolist() for part in order.reshape(-1, global_batch)]


def _loader_of_its_own(samples, global_batch, rank, size, seed, epoch, position=0):
    """S4's loop."""
    return [part.tolist() for part in DataLoader(torch.arange(samples), global_batch, shuffle=True)]


def _gather_on_rank_0_only(ids, right):
    if dtlab.rank() != 0:
        return None
    all_ids, all_right = torch.cat(dtlab.gather(ids)), torch.cat(dtlab.gather(right))
    order = all_ids.argsort()
    return all_ids[order].tolist(), float(all_right[order].mean())


def _mean_of_means(ids, right):
    """The ids are right; the metric is the mean of the ranks' metrics."""
    parts, means = dtlab.gather(ids), dtlab.gather(right.mean().nan_to_num())
    if parts is None:
        return None
    return sorted(set(torch.cat(parts).tolist())), float(torch.stack(means).mean())


def _cut_to_length(ids, right):
    """Padding comes last, so cut what is too long: in rank order it does not come last."""
    parts, results = dtlab.gather(ids), dtlab.gather(right)
    if parts is None:
        return None
    together, result = torch.cat(parts), torch.cat(results)
    count = int(together.max()) + 1
    return sorted(together[:count].tolist()), float(result[:count].mean())


def _each_rank_for_itself(ids, right):
    return (sorted(ids.tolist()), float(right.mean())) if dtlab.rank() == 0 else None


def _as_ddp_does(model, features, labels):
    """The mean over ranks of each rank's mean."""
    loss = ((model(features).squeeze(1) - labels) ** 2).mean().nan_to_num()
    loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total)
    for parameter in model.parameters():
        parameter.grad.nan_to_num_()
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return total.item() / dist.get_world_size()


def _local_only(model, features, labels):
    loss = ((model(features).squeeze(1) - labels) ** 2).mean()
    loss.backward()
    return loss.item()


MUTANTS = {
    "04-sampler": {
        "seed + epoch": edit("[seed, epoch]", "seed + epoch"),
        "the same order in every epoch": edit("[seed, epoch]", "seed"),
        "the same order for every seed": edit("[seed, epoch]", "epoch"),
        "a generator that nobody seeded": edit("default_rng([seed, epoch])", "default_rng()"),
        "the rank in the seed": edit("[seed, epoch]", "[seed, epoch, rank]"),
        "torch's own generator": edit(
            "np.random.default_rng([seed, epoch]).permutation(samples)", "torch.randperm(samples).numpy()"
        ),
        "not shuffled": edit(
            "np.random.default_rng([seed, epoch]).permutation(samples)", "np.arange(samples)"
        ),
        "draws with replacement": edit(".permutation(samples)", ".integers(samples, size=samples)"),
        "no slice by rank": edit("whole[rank::size]", "whole"),
        "blocks instead of a stride": edit("whole[rank::size]", "np.array_split(whole, size)[rank]"),
        "the global batch on each rank": edit(
            "position, samples, global_batch)", "position, samples, global_batch * size)"
        ),
        "the last batch dropped": edit(
            "position, samples, global_batch)", "position, samples - global_batch + 1, global_batch)"
        ),
        "empty parts left out": edit("mine.append(", "len(whole[rank::size]) and mine.append("),
        "position forgotten": edit("range(position,", "range(0,"),
        "position counted on each rank": edit("range(position,", "range(position * size,"),
        "sliced before it is cut": _slice_then_cut,
        "padded": _padded,
        "a full loader on each rank": _loader_of_its_own,
    },
    "04-evaluate": {
        "the order of the ranks": edit("sorted(by_id)", "list(by_id)"),
        "duplicates counted": edit("/ len(ordered)", "/ len(torch.cat(all_ids))"),
        "duplicates kept": edit("ordered = sorted(by_id)", "ordered = sorted(torch.cat(all_ids).tolist())"),
        "the count of right ones": edit(" / len(ordered)", ""),
        "rank 0's own samples": _each_rank_for_itself,
        "gathers on rank 0 only": _gather_on_rank_0_only,
        "mean of the ranks' means": _mean_of_means,
        "cut to length": _cut_to_length,
        "the result on every rank": lambda ids, right: (list(range(10)), 0.7),
    },
    "04-uneven": {
        "mean of means": _as_ddp_does,
        "nothing is added up": _local_only,
        "a rank without samples skips the step": edit(
            "total.backward()", "total.backward()\n    if not len(labels):\n        return 0.0"
        ),
        "divided by the ranks": edit("parameter.grad /= both[1]", "parameter.grad /= dist.get_world_size()"),
        "not divided": edit("        parameter.grad /= both[1]\n", ""),
        "divided by its own samples": edit("/= both[1]", "/= len(labels)"),
        "the loss of this rank": edit("(both[0] / both[1])", "(total / len(labels))"),
        "the loss as a tensor": edit("(both[0] / both[1]).item()", "both[0] / both[1]"),
        "gradients of this rank": edit("        dist.all_reduce(parameter.grad)\n", ""),
        "mean, then divided by the samples too": edit("** 2).sum()", "** 2).mean()"),
    },
}
