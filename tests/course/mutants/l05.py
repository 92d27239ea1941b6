"""Wrong answers of lesson 05: what people write before they get it right."""

import math

from torch.optim.lr_scheduler import CosineAnnealingLR  # noqa: F401  (what a reader has at hand)

from dtlab.course.mutants import edit


def _by_cards(base_lr, base_batch, micro_batch, ranks, stages=1, accumulation=1, rule="linear"):
    """S4: lr = base_lr * world_size."""
    factor = {"none": 1, "linear": ranks, "sqrt": math.sqrt(ranks)}[rule]
    return micro_batch * ranks * accumulation, base_lr * factor


def _never_ends(step, base, total, warmup=0, low=0.0, kind="cosine"):
    """Warm-up as part of a cosine over the whole run: what a hand-written warm-up gives."""
    if total < 1 or warmup > total:
        raise ValueError(f"{warmup} {total}")
    if step < warmup:
        return base * (step + 1) / warmup
    share = min(1.0, step / total)
    return low + (base - low) * ((1 + math.cos(math.pi * share)) / 2 if kind == "cosine" else 1 - share)


def _every_micro_batch(optimizer, micro_batches, backward, rate, accumulation):
    """A step for each micro-batch."""
    used = []
    for micro_batch in micro_batches:
        backward(micro_batch)
        used.append(rate(len(used)))
        for group in optimizer.param_groups:
            group["lr"] = used[-1] * group["ratio"]
        optimizer.step()
        optimizer.zero_grad()
    return used


def _nothing_done(optimizer, micro_batches, backward, rate, accumulation):
    """The right list, and no step."""
    return [rate(step) for step in range(5)]


MUTANTS = {
    "05-scale": {
        "stages counted as samples": edit("(ranks // stages)", "ranks"),
        "accumulation left out": edit(" * accumulation", ""),
        "accumulation counted twice": edit(
            "global_batch / base_batch", "global_batch * accumulation / base_batch"
        ),
        "one rank's batch": edit(
            "micro_batch * (ranks // stages) * accumulation", "micro_batch * accumulation"
        ),
        "the ratio upside down": edit("global_batch / base_batch", "base_batch / global_batch"),
        "rounded down": edit("global_batch / base_batch", "global_batch // base_batch"),
        "never lower": edit("global_batch / base_batch", "max(1, global_batch / base_batch)"),
        "always linear": edit('"sqrt": math.sqrt', '"sqrt": lambda factor: factor'),
        "an unknown rule is none": edit(
            'raise ValueError(f"rule {rule!r}: choose none, linear or sqrt")', 'rule = "none"'
        ),
        "the message names no rule": edit(": choose none, linear or sqrt", ""),
        "the number of cards": _by_cards,
        "only the rate": lambda *a, **k: 1e-3,
    },
    "05-schedule": {
        "the first step has rate 0": edit("base * (step + 1) / warmup", "base * step / warmup"),
        "the full rate from the start": edit(
            "        return base * (step + 1) / warmup", "        return base"
        ),
        "the peak one step late": edit("peak = max(warmup - 1, 0)", "peak = warmup"),
        "the full rate used twice": edit("(step - peak)", "max(0, step - peak - 1)"),
        "ends one step early": edit("max(1, total - warmup)", "max(1, total - warmup - 1)"),
        "decay over the whole run": edit("max(1, total - warmup)", "total"),
        "divides by 0": edit("max(1, total - warmup)", "(total - warmup)"),
        "comes up again after the end": edit(
            "min(1.0, (step - peak) / max(1, total - warmup))", "(step - peak) / max(1, total - warmup)"
        ),
        "the floor left out": edit("low + (base - low) * (1", "base * (1"),
        "the floor left out of the line": edit("base + (low - base) * share", "base * (1 - share)"),
        "linear is cosine": edit('kind == "linear"', "False"),
        "a warm-up that is too long is cut": edit(
            'raise ValueError(f"warmup = {warmup}, total = {total}: the full rate is never reached")',
            "warmup = total",
        ),
        "the message has no numbers": edit("warmup = {warmup}, total = {total}: ", ""),
        "warm-up as long as the run refused": edit("warmup > total:", "warmup >= total:"),
        "warm-up by hand over a cosine": _never_ends,
    },
    "05-steps": {
        "a step for each micro-batch": _every_micro_batch,
        "the last ones dropped": edit(" and number < len(micro_batches)", ""),
        "only at the end": edit("number % accumulation and number", "number"),
        "NaN goes into the weights": edit("if all(p.grad.isfinite().all()", "if all(True"),
        "NaN stays in .grad": edit(
            "            used.append(lr)\n        optimizer.zero_grad()",
            "            used.append(lr)\n            optimizer.zero_grad()",
        ),
        "gradients cleared only after a skipped step": edit(
            "            used.append(lr)\n        optimizer.zero_grad()",
            "            used.append(lr)\n        else:\n            optimizer.zero_grad()",
        ),
        "gradients are never cleared": edit("        optimizer.zero_grad()\n", ""),
        "a skipped step counts": edit("lr = rate(len(used))", "lr = rate(number // accumulation - 1)"),
        "micro-batches counted": edit("rate(len(used))", "rate(number - 1)"),
        "one step behind": edit("rate(len(used))", "rate(max(0, len(used) - 1))"),
        "the rate after the step": edit(
            "            optimizer.step()\n            used.append(lr)",
            "            used.append(lr)",
        ),
        "one rate for all groups": edit('lr * group["ratio"]', "lr"),
        "only the first group": edit(
            "            for group in groups:", "            for group in groups[:1]:"
        ),
        "only the first group looked at": edit(
            'for group in groups for p in group["params"]', 'for p in groups[0]["params"][:0]'
        ),
        "returns the number of steps": edit("    return used", "    return [len(used)]"),
        "a list and no step": _nothing_done,
    },
}
