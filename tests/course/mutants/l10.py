"""Wrong answers of lesson 10: what people write before they get it right."""

import numpy as np
import torch
import torch.distributed as dist

from dtlab.course.mutants import edit


def _adds_up(compute, communication):
    """All communication, hidden or not, and twice where spans overlap."""
    return sum(end - start for start, end in communication)


def _subtracts_totals(compute, communication):
    """How much, where only when tells what lies behind what."""
    total = sum(end - start for start, end in communication)
    return max(0, total - sum(end - start for start, end in compute))


def _tail(compute, communication):
    """Only what comes after the last computing."""
    ends = [end for _, end in communication]
    return max(0, max(ends, default=0) - max(end for _, end in compute))


def _each_span(compute, communication):
    """Right for one span; counts a microsecond once for every span that covers it."""
    busy = {t for start, end in compute for t in range(start, end)}
    return sum(t not in busy for start, end in communication for t in range(start, end))


def _idle(compute, communication):
    """Every microsecond without computing, also when nothing travels."""
    busy = {t for start, end in compute for t in range(start, end)}
    return max(end for _, end in [*compute, *communication]) - len(busy)


def _all_in_finish(buckets, start, end):
    """Buckets, and no overlap: what lesson 03 built."""

    def finish():
        for bucket in buckets:
            end(*start(bucket))

    return finish


def _at_the_first_gradient(buckets, start, end):
    """Starts a bucket when its first gradient is there."""
    bucket_of = {p: number for number, bucket in enumerate(buckets) for p in bucket}
    begun = {}

    def arrived(parameter):
        number = bucket_of[parameter]
        if number not in begun:
            begun[number] = start(buckets[number])

    def finish():
        for one in begun.values():
            end(*one)
        begun.clear()

    for parameter in bucket_of:
        parameter.register_post_accumulate_grad_hook(arrived)
    return finish


def _alone(buckets, start, end):
    """One all-reduce for each parameter, early, but no buckets."""
    begun = []

    def finish():
        for one in begun:
            end(*one)
        begun.clear()

    for bucket in buckets:
        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(lambda p: begun.append(start([p])))
    return finish


def _textbook(points, ranks):
    """alpha + k S / B by least squares."""
    size, seconds = np.array(points).T
    slope, alpha = np.polyfit(2 * (ranks - 1) / ranks * size, seconds, 1)
    return alpha, 1 / slope


def _smallest_and_largest(points, ranks):
    """The shortest time for latency, the largest message for bandwidth."""
    (_, alpha), (size, seconds) = min(points), max(points)
    return alpha, 2 * (ranks - 1) / ranks * size / seconds


def _flat_all_reduce(tensor, local, across):
    dist.all_reduce(tensor)


def _whole_tensor_across(tensor, local, across):
    """The right sum; every rank sends the whole tensor to the other hosts."""
    dist.all_reduce(tensor, group=local)
    dist.all_reduce(tensor, group=across)


def _across_first(tensor, local, across):
    """The right sum, with the two groups exchanged: everything crosses between hosts."""
    part = torch.empty(tensor.numel() // dist.get_world_size(across), dtype=tensor.dtype)
    dist.reduce_scatter_tensor(part, tensor, group=across)
    dist.all_reduce(part, group=local)
    dist.all_gather_into_tensor(tensor, part, group=across)


def _into_a_copy(tensor, local, across):
    part = torch.empty(tensor.numel() // dist.get_world_size(local), dtype=tensor.dtype)
    dist.reduce_scatter_tensor(part, tensor, group=local)
    dist.all_reduce(part, group=across)
    dist.all_gather_into_tensor(tensor.clone(), part, group=local)


MUTANTS = {
    "10-exposed": {
        "all communication, each span": _adds_up,
        "all communication, once": edit("len(sent - busy)", "len(sent)"),
        "what is hidden": edit("sent - busy", "sent & busy"),
        "computing without communication": edit("sent - busy", "busy - sent"),
        "one microsecond too many a span": edit(
            "for start, end in communication for t in range(start, end)",
            "for start, end in communication for t in range(start, end + 1)",
        ),
        "difference of the totals": _subtracts_totals,
        "after the last computing": _tail,
        "overlapping spans count twice": _each_span,
        "all idle time": _idle,
        "a share": edit("return len(sent - busy)", "return len(sent - busy) / max(1, len(sent))"),
    },
    "10-overlap": {
        "starts in finish": _all_in_finish,
        "waits in the hook": edit("begun.append(start(buckets[number]))", "end(*start(buckets[number]))"),
        "starts at the first gradient": _at_the_first_gradient,
        "one for each parameter": _alone,
        "forgets nothing": edit("        begun.clear()\n", ""),
        "is not ready for the second step": edit(
            "        missing[:] = [set(bucket) for bucket in buckets]\n", ""
        ),
        "the last bucket never ends": edit("for one in begun:", "for one in begun[:-1]:"),
        "never waits": edit("            end(*one)\n", "            pass\n"),
        "no hooks": edit("parameter.register_post_accumulate_grad_hook(arrived)", "pass"),
        "hooks on the last bucket only": edit("for parameter in bucket_of:", "for parameter in buckets[-1]:"),
        "returns nothing to call": edit("return finish", "return 0"),
        "calls finish itself": edit("return finish", "return finish()"),
    },
    "10-fit": {
        "the root of the latency": edit("return intercept**2,", "return intercept,"),
        "the root of the bandwidth": edit("1 / slope**2", "1 / slope"),
        "no k": edit("k * size", "size"),
        "k of an all-gather": edit("2 * (ranks - 1)", "(ranks - 1)"),
        "n for k": edit("k = 2 * (ranks - 1) / ranks", "k = ranks"),
        "every point alike": edit(", w=1 / root", ""),
        "large messages count": edit("w=1 / root", "w=root"),
        "microseconds": edit("return intercept**2,", "return intercept**2 * 1e6,"),
        "the other way round": edit("return intercept**2, 1 / slope**2", "return 1 / slope**2, intercept**2"),
        "slope and intercept exchanged": edit("slope, intercept =", "intercept, slope ="),
        "the textbook's line": _textbook,
        "two points": _smallest_and_largest,
    },
    "10-bucket": {
        "the last bucket stays": edit('[*gradients, (None, float("inf"))]', "gradients"),
        "buckets overlap on the link": edit(
            "free = max(free, ready) + microseconds(filled)",
            "free = max(free, ready + microseconds(filled))",
        ),
        "leaves before it is complete": edit("max(free, ready) + micro", "free + micro"),
        "waits for backward": edit("max(free, ready)", "max(free, gradients[-1][0])"),
        "until the end, from zero": edit("return count, free - ready", "return count, free"),
        "exactly full is too full": edit("filled + size > bucket_bytes", "filled + size >= bucket_bytes"),
        "closes after it is too large": edit("filled + size > bucket_bytes", "filled > bucket_bytes"),
        "forgets to empty": edit("            filled = 0\n", ""),
        "every gradient alone": edit("if filled and filled + size > bucket_bytes", "if filled"),
        "an empty first bucket": edit("if filled and filled", "if filled"),
        "latency only": edit("microseconds(filled)", "microseconds(0)"),
        "only the count": edit("return count, free - ready", "return count, 0"),
    },
    "10-two-level": {
        "one all-reduce over all": _flat_all_reduce,
        "the whole tensor across": _whole_tensor_across,
        "groups exchanged": _across_first,
        "not across": edit("dist.all_reduce(part, group=across)", "pass"),
        "across over everybody": edit("dist.all_reduce(part, group=across)", "dist.all_reduce(part)"),
        "not gathered": edit("dist.all_gather_into_tensor(tensor, part, group=local)", "pass"),
        "into a copy": _into_a_copy,
        "a mean": edit("group=across)\n", "group=across)\n    part /= dist.get_world_size(across)\n"),
    },
}
