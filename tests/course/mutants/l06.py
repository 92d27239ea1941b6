"""Wrong answers of lesson 06: what people write before they get it right."""

from contextlib import nullcontext

import torch

from dtlab.course.mutants import edit


def _joined_graph(model, tokens, targets, micro_batch, loss_sum, total, ranks):
    """Adds up the losses and calls backward once: the right gradient, and every graph alive at once."""
    pieces = list(zip(tokens.split(micro_batch), targets.split(micro_batch), strict=True))
    loss = 0.0
    for number, (inputs, wanted) in enumerate(pieces, start=1):
        with nullcontext() if number == len(pieces) else model.no_sync():
            loss = loss + loss_sum(model(inputs), wanted)
    (loss * ranks / total).backward()
    return loss.item()


def _whole_batch(model, tokens, targets, micro_batch, loss_sum, total, ranks):
    """The right gradient, from a batch that was to be too large for memory."""
    loss = loss_sum(model(tokens), targets)
    (loss * ranks / total).backward()
    return loss.item()


def _mean_of_means(model, tokens, targets, micro_batch, loss_sum, total, ranks):
    """Each micro-batch's mean over its own tokens, divided by their number: lesson 03's rule."""
    pieces = list(zip(tokens.split(micro_batch), targets.split(micro_batch), strict=True))
    summed = 0.0
    for number, (inputs, wanted) in enumerate(pieces, start=1):
        with nullcontext() if number == len(pieces) else model.no_sync():
            loss = loss_sum(model(inputs), wanted)
            (loss / max(1, int((wanted != -100).sum())) / len(pieces)).backward()
        summed += loss.item()
    return summed


def _skips_when_empty(model, tokens, targets, micro_batch, loss_sum, total, ranks):
    """A rank without rows has nothing to do, it thinks; the other waits for it in the all-reduce."""
    starts = list(range(0, len(tokens), micro_batch))
    summed = 0.0
    for start in starts:
        with nullcontext() if start == starts[-1] else model.no_sync():
            rows = slice(start, start + micro_batch)
            loss = loss_sum(model(tokens[rows]), targets[rows])
            (loss * ranks / total).backward()
        summed += loss.item()
    return summed


class _RunsForward(torch.autograd.Function):
    """Keeps the whole graph of the block instead of its input."""

    @staticmethod
    def forward(ctx, x, block):
        ctx.x = x.detach().requires_grad_()
        with torch.enable_grad():
            ctx.output = block(ctx.x)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.output.backward(gradient)
        return ctx.x.grad, None


MUTANTS = {
    "06-scale": {
        "the loss is never scaled": edit("(loss * scale).backward()", "loss.backward()"),
        "neither scaled nor divided": edit("            gradient /= scale", "            pass"),
        "clipped before it is divided": edit(
            "        for gradient in gradients:\n            gradient /= scale\n"
            "        torch.nn.utils.clip_grad_norm_(parameters, clip)\n",
            "        torch.nn.utils.clip_grad_norm_(parameters, clip)\n"
            "        for gradient in gradients:\n            gradient /= scale\n",
        ),
        "clipped to the scaled norm": edit("(parameters, clip)", "(parameters, clip * scale)"),
        "never clipped": edit("        torch.nn.utils.clip_grad_norm_(parameters, clip)\n", ""),
        "infinities reach the weights": edit("    if finite:\n", "    if True:\n"),
        "no gradient looked at": edit("for gradient in gradients)", "for gradient in gradients[:0])"),
        "a parameter without gradient": edit(" if p.grad is not None]", "]"),
        "gradients stay after a skipped step": edit(
            "        optimizer.step()\n    optimizer.zero_grad()\n",
            "        optimizer.step()\n        optimizer.zero_grad()\n",
        ),
        "gradients are never cleared": edit("    optimizer.zero_grad()\n", ""),
        "the scale is kept after an infinity": edit("return scale / 2, 0", "return scale, 0"),
        "good steps go on after an infinity": edit("return scale / 2, 0", "return scale / 2, good"),
        "doubled after every step": edit("if good + 1 == every", "if True"),
        "doubled one step late": edit("if good + 1 == every", "if good == every"),
        "never doubled": edit("(scale * 2, 0)", "(scale, 0)"),
        "the count goes on after doubling": edit("(scale * 2, 0)", "(scale * 2, good + 1)"),
        "no step at all": edit("        optimizer.step()\n", ""),
        "only the scale": lambda loss, optimizer, scale, good, clip, every=2000: scale,
        "the state and no step": lambda loss, optimizer, scale, good, clip, every=2000: (scale, good),
    },
    "06-accumulate": {
        "synchronises every time": edit("model.no_sync()", "nullcontext()"),
        "never synchronises": edit("nullcontext() if number == len(pieces) else ", ""),
        "synchronises the first": edit("number == len(pieces)", "number == 1"),
        "not divided": edit("loss * ranks / total", "loss * ranks"),
        "not multiplied by the ranks": edit("loss * ranks / total", "loss / total"),
        "multiplied twice": edit("loss * ranks / total", "loss * ranks * ranks / total"),
        "divided by the micro-batches too": edit("ranks / total", "ranks / total / len(pieces)"),
        "this rank's tokens": edit("ranks / total", "1 / max(1, int((targets != -100).sum()))"),
        "one micro-batch too many rows": edit("tokens.split(micro_batch)", "tokens.split(micro_batch + 1)"),
        "zeroes between micro-batches": edit(
            "        with nullcontext()", "        model.zero_grad()\n        with nullcontext()"
        ),
        "every loss twice": edit("loss_sum(model(inputs), wanted)", "2 * loss_sum(model(inputs), wanted)"),
        "returns the mean": edit("return summed", "return summed / total"),
        "returns the last": edit("summed += loss", "summed = loss"),
        "returns a tensor": edit("loss.item()", "loss.detach()"),
        "one backward at the end": _joined_graph,
        "the whole batch at once": _whole_batch,
        "a mean of means": _mean_of_means,
        "a rank without rows stays away": _skips_when_empty,
    },
    "06-recompute": {
        "other dropout in backward": edit("        torch.set_rng_state(ctx.state)\n", ""),
        "the generator is left where it was": edit("        torch.set_rng_state(found)\n", ""),
        "forgets the gradient that came": edit(
            "output.backward(gradient)", "output.backward(torch.ones_like(gradient))"
        ),
        "no gradient for the input": edit("return x.grad, None", "return None, None"),
        "the gradient passed on as it came": edit("return x.grad, None", "return gradient, None"),
        "runs without recording": edit("with torch.enable_grad():", "with torch.no_grad():"),
        "x is no leaf that wants a gradient": edit(".detach().requires_grad_()", ".detach()"),
        "x goes on in its graph": edit(".detach().requires_grad_()", ".requires_grad_()"),
        "the gradient of x alone": edit(
            "        output.backward(gradient)\n        return x.grad, None",
            "        return torch.autograd.grad(output, x, gradient)[0], None",
        ),
        "one gradient for two inputs": edit("return x.grad, None", "return x.grad"),
        "no backward": edit("        output.backward(gradient)\n", "        x.grad = gradient.clone()\n"),
        "the block runs twice in forward": edit(
            "        return block(x)\n", "        block(x)\n        return block(x)\n"
        ),
        "returns its input": edit("        return block(x)\n", "        return x.clone()\n"),
        "keeps the output too": edit("ctx.save_for_backward(x)", "ctx.save_for_backward(x, x.clone())"),
        "keeps the whole graph": _RunsForward,
        "the block itself": lambda x, block: block(x),
    },
}
