"""Wrong answers of lesson 03: what people write before they get it right."""

import torch
import torch.distributed as dist

from dtlab.course.mutants import edit


def _averages_weights(model):
    """Parameter averaging: with plain SGD it even looks like learning."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


def _only_to_rank_0(model):
    """Reduces to rank 0 and forgets to give the mean back."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.reduce(parameter.grad, dst=0)
            parameter.grad /= dist.get_world_size()


def _only_on_rank_0(model):
    """A collective under `if rank == 0`: rank 0 waits for ranks that never come."""
    if dist.get_rank() == 0:
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


def _one_flat(model):
    """Right means, but not what was asked for: one all-reduce for everything."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _on_copies(model):
    """Averages copies of the gradients and drops them."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            copy = parameter.grad.clone()
            dist.all_reduce(copy)
            copy /= dist.get_world_size()


def _each_alone(model, bucket_bytes):
    """No buckets at all."""
    parameters = list(model.parameters())
    for parameter in reversed(parameters):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return len(parameters)


def _forward_outside(model, micro_batches, loss_of):
    """Only backward stands inside no_sync: DDP decided at the forward, so every micro-batch is shared."""
    count, total = len(micro_batches), 0.0
    for number, (x, y) in enumerate(micro_batches, start=1):
        loss = loss_of(model(x), y) / count
        total += loss.item()
        if number == count:
            loss.backward()
        else:
            with model.no_sync():
                loss.backward()
    return total


def _last_one_only(model, micro_batches, loss_of):
    """Forgets all micro-batches but the last."""
    x, y = micro_batches[-1]
    loss = loss_of(model(x), y)
    loss.backward()
    return loss.item()


def _joins_the_batch(model, micro_batches, loss_of):
    """The right gradient, from a batch that was to be too large for memory; the loss as a tensor."""
    loss = loss_of(model(torch.cat([x for x, _ in micro_batches])), torch.cat([y for _, y in micro_batches]))
    loss.backward()
    return [loss.item()]


MUTANTS = {
    "03-average": {
        "sum instead of mean": edit("parameter.grad /= dist.get_world_size()", "pass"),
        "divides by 2, whatever the world": edit(
            "parameter.grad /= dist.get_world_size()", "parameter.grad /= 2"
        ),
        "divides twice": edit(
            "parameter.grad /= dist.get", "parameter.grad /= dist.get_world_size() * dist.get"
        ),
        "the largest gradient": edit(
            "dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad, op=dist.ReduceOp.MAX)"
        ),
        "no buffers": edit("[*model.parameters(), *model.buffers()]", "model.parameters()"),
        "no frozen parameters": edit(
            "[*model.parameters(), *model.buffers()]",
            "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]",
        ),
        "broadcasts a copy": edit("tensor.detach()", "tensor.detach().clone()"),
        "starts without a broadcast": edit("dist.broadcast(tensor.detach(), src=0)", "pass"),
        "the last rank's weights": edit("src=0", "src=dist.get_world_size() - 1"),
        "trips over a frozen parameter": edit("if parameter.grad is not None:", "if True:"),
        "averages the weights": _averages_weights,
        "reduces to rank 0 only": _only_to_rank_0,
        "only rank 0 calls": _only_on_rank_0,
        "one flat all-reduce": _one_flat,
        "averages copies": _on_copies,
    },
    "03-buckets": {
        "first layer first": edit("reversed(list(model.parameters()))", "list(model.parameters())"),
        "closes a bucket after it is too large": edit(
            "filled + gradient.nbytes > bucket_bytes", "filled > bucket_bytes"
        ),
        "a full bucket is too full": edit("> bucket_bytes", ">= bucket_bytes // 2"),
        "a bucket that is exactly full is too full": edit(
            "filled + gradient.nbytes > bucket_bytes", "filled + gradient.nbytes >= bucket_bytes"
        ),
        "never closes a bucket": edit("buckets[-1] and filled", "False and filled"),
        "opens a bucket for a first gradient that is too large": edit("buckets[-1] and filled", "filled"),
        "forgets to start at zero": edit("            filled = 0\n", ""),
        "counts numbers, not bytes": edit("gradient.nbytes", "gradient.numel()"),
        "forgets the last bucket": edit("for gradients in buckets:", "for gradients in buckets[:-1]:"),
        "sum instead of mean": edit("bucket /= dist.get_world_size()", "pass"),
        "writes nothing back": edit("gradient.copy_(mean.view_as(gradient))", "mean.view_as(gradient)"),
        "returns nothing": edit("return len(buckets)", "return 0"),
        "no buckets": _each_alone,
    },
    "03-accumulate": {
        "synchronises every time": edit("model.no_sync()", "nullcontext()"),
        "never synchronises": edit("nullcontext() if is_last else model.no_sync()", "model.no_sync()"),
        "synchronises the first": edit("number == count", "number == 1"),
        "synchronises one too early": edit("number == count", "number == max(1, count - 1)"),
        "does not divide": edit("loss_of(model(x), y) / count", "loss_of(model(x), y)"),
        "divides by the ranks too": edit("y) / count", "y) / count / dist.get_world_size()"),
        "zeroes between micro-batches": edit(
            "        with nullcontext()", "        model.zero_grad()\n        with nullcontext()"
        ),
        "returns the last loss": edit("total += loss.item()", "total = loss.item()"),
        "returns a tensor": edit("return total", "return torch.tensor(total, dtype=torch.float64)"),
        "returns the sum": edit("return total", "return total * count"),
        "forward outside no_sync": _forward_outside,
        "the last micro-batch only": _last_one_only,
        "joins the batch": _joins_the_batch,
    },
}
