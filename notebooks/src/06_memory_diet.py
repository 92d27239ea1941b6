# %% [markdown]
# # Memory diet: mixed precision, accumulation, checkpointing
#
# A model of 320M parameters ran out of memory in its first step on eight A100, "although memory was enough". The team cut it in two over twice as many
# cards: two `ml.p3.16xlarge` for 18 hours, $1,013 at the last list price, to bring 38 GB a card down to 18 GB, on cards that have 16.
#
# What filled the card, and which of three diets takes it away: numbers of half the size, smaller pieces of the batch, or forgetting and computing again?
#
# (The incident is S3's, a team that tuned a model of images and text. S0 is a recommender team that went from one card to SageMaker, S4 an engineer
# who got eight cards for a new recommender. The course takes its incidents from their three write-ups.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, expect_failure, goal, hint, predict, recap, running, solved

goal(
    [
        "say which item of the bill fills a card, and which diet shrinks that item",
        "train in fp16 without losing gradients, and say why bf16 needs no loss scale",
        "accumulate micro-batches so that the result is that of the big batch, with one all-reduce",
        "recompute blocks: keep their inputs, and pay with a second forward",
    ],
    minutes=55,
    needs=["01", "03"],
)

# %% tags=["hide-input"]
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from dtlab import RankError, Trainer, launch, traffic, world
from dtlab.cost import billing, catalogue
from dtlab.cost.cards import cards
from dtlab.data.text import load_text
from dtlab.diagnose.memory_trace import OverBudget, trace_memory
from dtlab.figures.gradients import gradient_sizes_figure
from dtlab.figures.step_memory import step_memory_figure
from dtlab.figures.style import show
from dtlab.models.gpt import GPT, token_loss
from dtlab.train.precision import Precision, pick_precision
from dtlab.train.recompute import recompute_blocks

# %% [markdown]
# ## Predict
# S0 took memory use "from 92 % to 68 %" with gradient accumulation and mixed precision together. Below, a small GPT has the same bill as S3's model: nine tenths of
# the bytes are activations. We try each of the two alone: half-precision numbers, or eight micro-batches of an eighth. Commit to an answer before you go on.

# %%
ask = predict(
    "06-which",
    "Which of the two takes more off the peak?",
    [
        "mixed precision: it halves everything",
        "accumulation, by far",
        "each about the same",
        "neither alone; only together they work",
    ],
)

# %% [markdown]
# ## Break it: over the budget
# A GPT of four blocks on text, in windows of 32 bytes. A rank has 32 windows, 1,024 tokens, in one optimizer step. A CPU has no card that could be full, so
# `trace_memory(budget)` plays the card: it counts every tensor from birth to death, and the operation that exceeds the budget fails.

# %% tags=["hide-input"]
torch.set_num_threads(1)  # as a rank has
SEQUENCE, BUDGET = 32, 24_000_000
sample = load_text(SEQUENCE).train.take(torch.arange(1000, 1128))  # 128 windows


def new_model():
    torch.manual_seed(0)
    return GPT(sequence=SEQUENCE, dim=64, num_layers=4, num_heads=4)


def mean_loss(model, batch):
    loss = token_loss(model(batch.tokens), batch.targets)
    return loss.total / loss.tokens


def labelled(trace, model, optimizer):
    """Tell the trace which tensors are which; what is left over is "activations"."""
    parameters, states = list(model.parameters()), optimizer.state
    trace.label("batch", [sample.ids, sample.tokens, sample.targets])
    trace.label("parameters", parameters)
    trace.label("gradients", lambda: [p.grad for p in parameters if p.grad is not None])
    trace.label("optimizer", lambda: [t for state in states.values() for t in state.values()])


# %% [markdown]
# `one_step` makes two steps of one window first, so that Adam's moments and DDP's buckets are there, as in every step but the first. Then comes the step that is marked.


# %%
class Plan(NamedTuple):
    rows: int = 32  # windows of this rank in one optimizer step
    micro: int = 32  # windows in one forward
    precision: str = "fp32"
    recompute: bool = False


def one_step(plan, budget=None):
    """What this rank holds over one optimizer step, as a trace."""
    with world() as w, trace_memory(budget) as trace:
        model, precision = new_model(), Precision(plan.precision)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        labelled(trace, model, optimizer)
        if plan.recompute:
            recompute_blocks(model)
        with trace.allocating("buckets"):
            if w.size > 1:
                model = DistributedDataParallel(model)
            for small in sample.split([1, 1, 126])[:2]:
                mean_loss(model, small).backward()
                optimizer.step()
                optimizer.zero_grad()
        marked_step(trace, plan, precision, model, optimizer)
    return trace


# %%
def marked_step(trace, plan, precision, model, optimizer):
    """One optimizer step: forward and backward of each micro-batch, then the update."""
    trace.mark("step")
    pieces = sample.split([plan.micro] * (128 // plan.micro))
    for piece in pieces[: plan.rows // plan.micro]:
        trace.mark("forward")
        with precision.autocast():
            loss = mean_loss(model, piece)
        trace.mark("backward")
        loss.backward()
        del loss
    trace.mark("optimizer")
    optimizer.step()


# %% [markdown]
# One process first, this notebook's own (outside `launch`, `world()` is a world of one). The budget is 24 MB.

# %% tags=["lab-failure"]
with expect_failure(
    OverBudget,
    match=r"MB alive after \w+, the budget is 24.00 MB",
    within=60,
    explain={
        "MB alive after": "the operation that went over: anywhere in forward, the first to find no room",
        "parameters 0.86, optimizer 1.73": "what is there between steps. 3 MB of 24: not the cause",
        "activations": "what forward keeps for backward: the item to look at",
    },
):
    one_step(Plan(), BUDGET)

# %% [markdown]
# On a GPU you would read `torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of ...`. It names the *last* allocation, the drop, and
# not what had filled the card. So make the bill yourself, item by item.
#
# S3 then wrapped the model in DDP and started it on more cards. Two ranks, 32 windows on each, the same budget for each:

# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match=r"rank [01] of 2 failed: OverBudget: .* the budget is 24.00 MB",
    within=90,
    explain={
        "of 2 failed: OverBudget": "more ranks did not help: each holds a whole replica",
        "buckets 0.86": "new in the bill: DDP's copy of all gradients, 4 bytes for each parameter",
    },
    lines=1,
) as failure:
    launch(one_step, 2, Plan(), BUDGET, timeout=80, echo=False)

# %% [markdown]
# Now without a budget, to the end. And S3's first remedy, accumulation, where he tried it: at the *same* micro-batch, two of 32 windows instead of one.


# %% tags=["lab-failure", "nbval-check-output"]
def steps(plans):
    return {name: one_step(plan) for name, plan in plans.items()}


plans = {
    "32 windows at once": Plan(),
    "2 x 32 windows": Plan(rows=64),
    "8 x 4 windows": Plan(micro=4),
    "blocks recomputed": Plan(recompute=True),
    "bf16": Plan(precision="bf16"),
    "all three": Plan(micro=4, recompute=True, precision="bf16"),
}
with running("the six plans"):
    alone = steps(plans)
P, whole = new_model().num_parameters, alone["32 windows at once"]
print(f"DDP's buckets, 4 bytes for each of {P:,} parameters: {4 * P / 1e6:.2f} MB")
assert f"buckets {4 * P / 1e6:.2f}" in failure.message
again = (alone["2 x 32 windows"].peak - whole.peak) / P
print("2 x 32 windows more than 32 windows, bytes for each parameter:", again)
assert again == 4

# %% [markdown]
# Read the two lines against S3's story.
#
# - **DDP is no diet.** Every rank holds what one process holds, and by default a second copy of the gradients. At 320M parameters the copy is 1.28 GB. His 38 GB are 88 % of an A100 with 40 GiB; with the
#   copy and a CUDA context of 1 GiB they are 94 %. So "although memory was enough" and "out of memory in the first step" can both be true.
# - **Accumulation at the same micro-batch saves nothing.** It costs the gradients that wait while the next forward runs: 4 bytes for each parameter. S3 says "at no extra memory" in one place and
#   8 % in another. 1.28 GB are 8.0 % of a card of 16 GB, so the second figure is right for such a card, and it is the most that it can be.
# - What saves is the *smaller micro-batch* that accumulation makes possible. Here is what each plan needs at its peak:

# %%
for name, trace in alone.items():
    change = 1 - trace.peak / whole.peak
    fits = "within" if trace.peak <= BUDGET else "over"
    print(f"{name:20} {trace.peak / 1e6:5.1f} MB, {change:4.0%} saved, {fits} the budget")
saved = {name: whole.peak - trace.peak for name, trace in alone.items()}
assert saved["8 x 4 windows"] > 2 * saved["bf16"] > 0

# %%
ask.reveal("b", because="An eighth of the micro-batch is an eighth of the activations. bf16 saved a quarter.")

# %% [markdown]
# Why does half precision not halve? Under autocast the weights, gradients and Adam's moments stay FP32, the weights get a copy in half precision on top, and norms, the residual stream and the loss compute in
# FP32. Only what the matrix products keep is halved.
#
# ## Break it: gradients that become exact zeros
# fp16 has a second problem. Its smallest number is $2^{-24}$, and half of that, 0.00000003, is rounded to 0. We train the GPT for eight steps, and then take one micro-batch of
# eight: its loss is divided by eight, as accumulation must do.


# %%
def trained_model():
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for piece in sample.split([8] * 16)[:8]:
        optimizer.zero_grad()
        mean_loss(model, piece).backward()
        optimizer.step()
    return model


def gradients(model, precision, scale=1.0):
    """Gradients by parameter of an eighth of the loss, which is multiplied by `scale` first."""
    model.zero_grad()
    with Precision(precision).autocast():
        loss = mean_loss(model, sample.split([32, 96])[0]) / 8
    (loss * scale).backward()
    return {name: p.grad / scale for name, p in model.named_parameters()}


def zeros(found):
    return sum(int((gradient == 0).sum()) for gradient in found.values())


# %% tags=["lab-failure", "nbval-check-output"]
trained = trained_model()
exact, half = gradients(trained, "fp32"), gradients(trained, "fp16")
dead = [name for name, gradient in half.items() if not gradient.any()]
print("zeros in fp32:", zeros(exact))
print("more than a tenth of all numbers are 0 in fp16:", zeros(half) > P / 10)
print("whole matrices without any gradient, in fp32:", sum(not g.any() for g in exact.values()))
print("and in fp16, at least one:", len(dead) > 0)
assert zeros(exact) == 0
assert zeros(half) > P / 10
assert dead

# %%
print(f"fp16: {zeros(half):,} of {P:,} numbers are 0; nothing at all arrives in")
print(*dead, sep="\n")

# %% [markdown]
# (Your numbers may differ a little: eight steps of training differ from machine to machine.) No message, a loss that is right to four digits, and some layers of the model do not train. The forward was fine: it is the way back, where numbers get smaller, that fp16 cannot hold.
#
# ## Break it: accumulation as it is often written
# `loss.backward()` for each micro-batch, then a step. Two ranks with 8 windows each, at once and as eight micro-batches of one, once with SGD and once with Adam.


# %%
def as_often_written(optimizer_of, micro):
    """All-reduces, gradient norm, and how far the weights moved, of one step on this rank."""
    with world() as w:
        model = DistributedDataParallel(new_model())
        optimizer = optimizer_of(model.parameters())
        before = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        mine = sample.split([8] * 16)[w.rank]
        with traffic() as sent:
            for piece in mine.split([micro] * (8 // micro)):
                mean_loss(model, piece).backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        optimizer.step()
        after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        return sent.by_op["all_reduce"].calls, norm.item(), (after - before).norm().item()


def both_optimizers():
    kinds = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}
    return {
        (name, micro): as_often_written(kind, micro)
        for name, kind in kinds.items()
        for micro in (8, 1)
    }


# %% tags=["lab-failure", "nbval-check-output"]
results = launch(both_optimizers, 2, timeout=90, echo=False)[0]
for name in ("SGD", "Adam"):
    (calls, norm, moved), (calls_8, norm_8, moved_8) = results[name, 8], results[name, 1]
    print(f"{name:4}  all-reduces: {calls} at once, {calls_8} in pieces;", end=" ")
    print(f"gradient {norm_8 / norm:.1f} times, weights moved {moved_8 / moved:.1f} times as far")
    assert calls_8 == 8 * calls and round(norm_8 / norm, 1) == 8.0
assert round(results["SGD", 1][2] / results["SGD", 8][2], 1) == 8.0
assert round(results["Adam", 1][2] / results["Adam", 8][2], 1) == 1.0

# %% [markdown]
# Two faults. The sum was not divided: SGD takes a step of eight times the length. Adam divides by the size of the gradients anyway and hides it, until you clip, or decay, or compare with a run at another
# $k$. And every micro-batch was all-reduced: eight times the bytes for the same result.
#
# ## Look: where the bytes are
# One step of four of the plans above, operation by operation. Grey is what was there before the step. Look at *when* the peak comes, and what the hill is made of.

# %%
shown = ("32 windows at once", "8 x 4 windows", "blocks recomputed", "all three")
show(step_memory_figure({name: alone[name] for name in shown}, BUDGET))

# %% [markdown]
# The forward climbs, because each operation leaves what its backward needs; backward walks down the other side. Eight micro-batches are eight small hills. Recomputed blocks
# leave only their inputs, so the climb is slow; the four teeth on the way down are the four blocks, each of which runs a second time. The peak is such a tooth.
#
# With $A$ bytes of activations at the whole batch, $k$ micro-batches keep about $A/k$. $L$ equal blocks that are recomputed keep $L$ inputs and the inside of one block. Ours, in FP32: a block keeps about
# $(16 \cdot 4 + 2)\,h$ bytes for each token (lesson 01's formula), its input is $4\,h$, so four blocks keep $4 \cdot 4\,h + 66\,h = 82\,h$ instead of $264\,h$.

# %%
kept = {name: alone[name].items["activations"] / 1e6 for name in shown}
h, tokens = 64, 32 * SEQUENCE
print(f"formula, blocks only: {264 * h * tokens / 1e6:.1f} MB, recomputed {82 * h * tokens / 1e6:.1f} MB")
print("measured, with the head:", ", ".join(f"{name} {mb:.1f} MB" for name, mb in kept.items()))

# %% [markdown]
# ## Look: where the gradients are
# The same gradients, computed in FP32, against what fp16 can hold. A number that is multiplied by 65,536 moves 16 places to the right.

# %%
flat = np.concatenate([gradient.numpy().ravel() for gradient in exact.values()])
show(gradient_sizes_figure({"an eighth of the loss": flat, "times 65,536": flat * 65536}))

# %% [markdown]
# The zone holds fewer numbers than became 0: what vanishes on the way back in one layer is missing in every layer before it. And nearly all
# of the others lose bits. At the upper end there is room, so multiply the *loss* by a number before backward (every gradient on the way is multiplied with it), and divide the gradients
# by it before anybody uses them. Too large a number, and something becomes infinite. That is easy to see, so: start high, and halve when it happens.
#
# ## Build it: a loss scale


# %% tags=["exercise"]
def scaled_step(loss, optimizer, scale, good, clip, every=2000):
    """One step in fp16. Return the scale and the number of good steps in a row, for the next one.

    Backward starts from loss * scale, so all gradients arrive multiplied; a parameter may have none.
    If every number is finite: divide by the scale, clip the common norm to `clip`, step; after
    `every` good steps in a row double the scale and count from 0. If not: no step, half the scale,
    count from 0. Either way, leave no gradients for the next step.
    """
    ### BEGIN SOLUTION
    (loss * scale).backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
    if finite:
        for gradient in gradients:
            gradient /= scale
        torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
    optimizer.zero_grad()
    if not finite:
        return scale / 2, 0
    return (scale * 2, 0) if good + 1 == every else (scale, good + 1)
    ### END SOLUTION


# %% tags=["hint"]
hint("06-scale")

# %% [markdown]
# ## Check: a loss scale
# Ten steps through an fp16 product whose gradients reach from $2^{-40}$ to beyond fp16: how many steps were made, how many numbers were 0 when the optimizer saw them, then scales and weights.

# %% tags=["check"]
check("06-scale", scaled_step)

# %% [markdown]
# ## Build it: accumulate
# Lesson 03 accumulated micro-batches of one size. Real ones differ: a tail of the epoch, sequences of unequal length, a rank that has no row left. A mean of means weighs the tokens of a short
# micro-batch more. So take the *sum* over tokens, and divide it by all tokens of the step, on all ranks.


# %% tags=["exercise"]
def accumulate(model, tokens, targets, micro_batch, loss_sum, total, ranks):
    """Leave in .grad the gradient of the mean loss over all tokens of all ranks; return a float.

    tokens and targets, [rows, S], are this rank's part, perhaps of fewer rows than another rank's,
    or of none. At most `micro_batch` rows go through model(tokens) at once, and the activations of one
    micro-batch are gone before the next begins. loss_sum(output, targets) adds up the loss over
    tokens; `total` is the number of tokens on all `ranks` together. model is wrapped by DDP: it
    averages over ranks, and must do so once. The float is this rank's loss, summed over its tokens.
    """
    ### BEGIN SOLUTION
    pieces = list(zip(tokens.split(micro_batch), targets.split(micro_batch), strict=True))
    summed = 0.0
    for number, (inputs, wanted) in enumerate(pieces, start=1):
        with nullcontext() if number == len(pieces) else model.no_sync():
            loss = loss_sum(model(inputs), wanted)
            (loss * ranks / total).backward()
        summed += loss.item()
    return summed
    ### END SOLUTION


# %% tags=["hint"]
hint("06-accumulate")

# %% [markdown]
# ## Check: accumulate
# Two ranks with unequal rows, and with none on one of them; some targets are no token. All-reduces, rows in one forward, what is still alive when a forward begins, then the gradient of one process.

# %% tags=["check"]
check("06-accumulate", accumulate)

# %% [markdown]
# ## Build it: recompute a block
# An `autograd.Function` writes its own backward. `forward` runs without recording, so nothing inside the block is kept; what you save on `ctx` is all that backward has. There the
# block runs once more, with recording, from the same input and with the same random numbers (dropout!), and its own backward puts gradients into the block's parameters.


# %% tags=["exercise"]
class Recompute(torch.autograd.Function):
    """Recompute.apply(x, block) is block(x), of which only x is kept."""

    @staticmethod
    def forward(ctx, x, block):
        """Save x, the block, and the state of torch's generator as it was before the block ran."""
        ### BEGIN SOLUTION
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(x)
        return block(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x, and None for the block. The generator ends as it was found."""
        ### BEGIN SOLUTION
        x = ctx.saved_tensors[0].detach().requires_grad_()
        found = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            output = ctx.block(x)
        torch.set_rng_state(found)
        output.backward(gradient)
        return x.grad, None
        ### END SOLUTION


# %% tags=["hint"]
hint("06-recompute")

# %% [markdown]
# ## Check: recompute a block
# Three blocks with dropout: how often each ran, how many bytes wait for backward; then output, gradients and random numbers against the plain blocks.

# %% tags=["check"]
check("06-recompute", Recompute)

# %% [markdown]
# ## The real thing
# `dtlab.Trainer` does all three: `micro_batch=`, `checkpoint_activations=`, `precision=`. Under it are DDP's `no_sync`, `torch.utils.checkpoint` and `torch.amp.GradScaler`. One process with the whole batch of 16 windows
# against two ranks with 8 each:


# %%
def with_trainer(options):
    """Weights after one clipped step of SGD, all-reduces and peak of this rank, for each of `options`."""
    found = {}
    with world() as w:
        mine = sample.split([16 // w.size] * w.size + [112])[w.rank]
        for name, chosen in options.items():
            with trace_memory() as trace:
                model = new_model()
                trainer = Trainer(
                    model,
                    torch.optim.SGD(model.parameters(), lr=0.1),
                    loss=lambda m, b: token_loss(m(b.tokens), b.targets).total / SEQUENCE,
                    clip=1.0,
                    **chosen,
                )
                with traffic() as sent:
                    trainer.step(mine, 16)
            weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
            found[name] = weights, sent.by_op["all_reduce"].calls, trace.peak
    return found


# %% tags=["nbval-check-output"]
small = {"micro_batch": 4, "checkpoint_activations": True}
diets = {
    "fp32, 4 at a time, recomputed": small,
    "bf16, 4 at a time, recomputed": small | {"precision": "bf16"},
    "fp16, 4 at a time, recomputed": small | {"precision": "fp16"},
}
(one,) = [with_trainer({"fp32": {}})]
two = launch(with_trainer, 2, diets, timeout=90, echo=False)
right, start = one["fp32"][0], torch.nn.utils.parameters_to_vector(new_model().parameters()).detach()
for name in diets:
    same = torch.equal(two[0][name][0], two[1][name][0])
    wrong = float((two[0][name][0] - right).norm() / (right - start).norm())
    close = wrong < (1e-3 if name.startswith("fp32") else 0.05)
    calls, fits = two[0][name][1], two[0][name][2] <= BUDGET
    print(f"{name:30} all-reduces {calls}, replicas equal {same}, as one process {close}, fits {fits}")
    assert same and close and fits and calls == 1

# %% [markdown]
# "As one process" means: the step differs from that of the whole batch by less than a thousandth of its length in FP32, and by less than a twentieth in half precision.
# The diets are no approximation: recomputing and accumulating change the order of sums, and nothing else.
#
# If you solved the exercises, your own functions in the same GPT, on two ranks:


# %%
def with_yours(accumulate, recompute):
    """All-reduces, peak, and distance from DDP's gradient, of this rank."""
    with world() as w:
        mine = sample.split([32, 32, 64])[w.rank]
        plain = DistributedDataParallel(new_model())
        mean_loss(plain, mine).backward()
        wanted = torch.cat([p.grad.flatten() for p in plain.parameters()])
        with trace_memory() as trace, traffic() as sent:
            model = new_model()
            for block in model.blocks:
                block.forward = lambda x, run=block.forward: recompute.apply(x, run)
            model = DistributedDataParallel(model)
            calls = sent.by_op["all_reduce"].calls
            accumulate(
                model, mine.tokens, mine.targets, 4, lambda *a: token_loss(*a).total, 2048, w.size
            )
            calls = sent.by_op["all_reduce"].calls - calls
        got = torch.cat([p.grad.flatten() for p in model.parameters()])
        return calls, trace.peak, float((got - wanted).norm() / wanted.norm())


# %%
if solved("06-accumulate") and solved("06-recompute"):
    for rank, (calls, peak, wrong) in enumerate(
        launch(with_yours, 2, accumulate, Recompute, timeout=90, echo=False)
    ):
        print(f"rank {rank}: all-reduces {calls}; within the budget: {peak <= BUDGET};", end=" ")
        print(f"DDP's gradient: {wrong < 1e-4}")
        assert calls == 1 and peak <= BUDGET and wrong < 1e-4
else:
    print("to do: solve 06-accumulate and 06-recompute, then run this cell again")

# %% [markdown]
# (Blocks that run inside a backward report their gradients to DDP one by one, as they should. `torch.utils.checkpoint` with `use_reentrant=False`, which `recompute_blocks` uses, does it by saving hooks instead: it
# also works when no input needs a gradient, and for `torch.autograd.grad`.)
#
# ### fp16 with a scale, and bf16

# %% tags=["nbval-check-output"]
counted = {
    "fp32": zeros(exact),
    "fp16": zeros(half),
    "fp16, loss times 65,536": zeros(gradients(trained, "fp16", 65536.0)),
    "bf16": zeros(gradients(trained, "bf16")),
}
for name, count in counted.items():
    print(f"{name:24} over 10 % zeros: {count > P / 10!s:6} under 0.1 %: {count < P / 1000}")
assert counted["fp16, loss times 65,536"] < P / 1000 and counted["bf16"] < P / 1000

# %% [markdown]
# bf16 has FP32's 8 bits of exponent, so nothing vanishes and no scale is needed. It pays with precision: 7 bits of fraction. That is enough for a gradient, and not for a weight, because a small
# step from 1.0 is rounded back to 1.0. So the weights stay in FP32, with both formats, and autocast makes the copies:

# %% tags=["nbval-check-output"]
for kind in (torch.float32, torch.bfloat16):
    weight = torch.ones(1, dtype=kind)
    for _ in range(100):
        weight -= 0.001
    print(f"{kind!s:15} after 100 steps of 0.001 down from 1: {weight.item():.3f}")
assert weight.item() == 1.0

# %% [markdown]
# Which one? Cards compute in bf16 from capability 8.0 (A100) on. On a T4 or V100 torch says that bf16 is supported, and emulates it.

# %% tags=["nbval-check-output"]
for card, capability in (("V100", (7, 0)), ("T4", (7, 5)), ("A100", (8, 0)), ("H100", (9, 0))):
    picked = pick_precision(capability)
    print(f"{card}, {capability[0]}.{capability[1]}: {picked.name}, loss scale: {picked.uses_scaler}")
print(f"CPU: {pick_precision('cpu').name}, {pick_precision('cpu').reason}")

# %% [markdown]
# ### Faults that people reported
# S4's final script has `scale(loss).backward()`, `step`, `update`, `zero_grad`: the right order, with a scaler that is now spelled `torch.amp.GradScaler("cuda")`. Add clipping to
# it without `unscale_`, and training all but stops. True gradient norm 5, `max_norm` 1, SGD with rate 1:


# %% tags=["lab-failure", "nbval-check-output"]
def weight_after(unscale, times=1):
    weight = torch.zeros(4, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler("cpu")
    scaler.scale((weight * 2.5).sum()).backward()
    for _ in range(times):
        if unscale:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
    scaler.step(optimizer)
    return weight.detach().norm().item()


print(f"clip, then step:           the weights move by {weight_after(False):.1e}")
print(f"unscale, clip, then step:  the weights move by {weight_after(True):.2f}")
assert weight_after(False) < 1e-4 and round(weight_after(True), 2) == 1.0

# %% [markdown]
# Clipping each micro-batch instead of each step unscales twice, and raises. Once per optimizer step, after the last micro-batch:

# %% tags=["lab-failure"]
with expect_failure(
    RuntimeError,
    match="already been called on this optimizer",
    within=10,
    explain={
        "unscale_() has already been called": "the gradients of this step are divided already",
        "since the last update()": "update() opens the next step",
    },
):
    weight_after(True, times=2)

# %% [markdown]
# And a window in which nothing has a gradient: torch's scaler stops with `No inf checks were recorded for this optimizer`. dtlab's step is skipped, with a reason, and so is one that overflows:

# %% tags=["nbval-check-output"]
precision = Precision("fp16")
unused = torch.zeros(1, requires_grad=True)
print(precision.optimizer_step(torch.optim.SGD([unused], lr=1.0)).reason)
weight = torch.ones(1, requires_grad=True)
with precision.autocast():
    loss = torch.nn.functional.linear(torch.full((1, 1), 60000.0), weight[None]).sum()
precision.scale(loss).backward()
print(precision.optimizer_step(torch.optim.SGD([weight], lr=1.0)).reason)

# %% [markdown]
# A skipped step must not advance the schedule (lesson 05). Ranks need no message for it: they look at gradients that are already averaged, so an infinity of one rank is everybody's.
#
# ### From 38 GB to 18 GB
# Now S3's model: 320M parameters in FP32 with Adam, 38 GB at 128 samples a card. Lesson 01 took the bill apart: 5.1 GB of states, 32.9 GB of activations. What each remedy would have given:
#
# ("Fits" keeps 20 % of the card free, `need < 0.8 * size`: the sums leave out the CUDA context, kernels' work space, communication buffers and the allocator's gaps. The 20 % are our allowance.)

# %% tags=["nbval-check-output"]
states, count = 16 * 320e6, 320e6
activations = 38e9 - states
per_block = 2 / 34 + 1 / 24  # inputs of 24 equal blocks, and the inside of one: our assumption
remedies = {
    "one card, 128 at once": 38e9,
    "DDP, 128 on each card": 38e9 + 4 * count,
    "autocast, if all activations are halved": states + 2 * count + activations / 2,
    "8 micro-batches of 16": states + activations / 8,
    "blocks recomputed, 128 at once": states + activations * per_block,
    "pipeline of 2, all micro-batches alive": 38e9 / 2,
    "pipeline of 2, 1F1B, 4 micro-batches": (states + activations * 2 / 4) / 2,
}
v100, a100 = cards()["V100 16 GiB"], cards()["A100 40 GiB"]
for name, need in remedies.items():
    fits = [card for card, size in (("V100 16", v100), ("A100 40", a100)) if need < 0.8 * size]
    print(f"{name:40} {need / 1e9:5.1f} GB  fits: {', '.join(fits) or 'neither'}")
sold = catalogue.instance("ml.p3.16xlarge")
print(f"{sold.sagemaker_name}: {sold.gpus} cards of {sold.gpu_memory_gb:.1f} GB")

# %% [markdown]
# His 18 GB are what a pipeline of two stages needs while *all* micro-batches are alive (GPipe; 19 GB by this sum). They do not fit the cards that he names. And the largest item was activations, so the
# diets reach further on *one* card than the cut does on two. For "model parallel may suit your model" to hold, the states alone would have to fill the card: at 16 bytes for each parameter, from about 2 billion parameters on for 40 GiB.
#
# S3's rule "gradient accumulation before anything else when memory is short" is right in the same case, with the smaller micro-batch that he left out. It is not throughput: an update takes
# $k$ times as long, on $k$ times the samples.
#
# ### From 92 % to 68 %
# S0's total is plausible, the credit is not. Measurements of BERT-large on a V100 with 16 GB, from the documentation of a well-known library (512 tokens, batch of 4, FP32, Adam):
#
# | change | GiB | saved |
# |---|---|---|
# | none | 14.60 | |
# | mixed precision (fp16) | 13.61 | 7 % |
# | 4 micro-batches of 1 | 8.48 | 42 % |
# | 4 micro-batches of 1, blocks recomputed | 6.62 | 55 % |
# | all three | 7.10 | 51 % |
#
# Mixed precision on top made it *more*: the weights' copies came, and there was little left to halve. From 92 % to 68 % is 26 % of what was used. For autocast alone to save it, at least 52 % of the memory would have to be
# activations and all of them be halved.
#
# S0 also writes that changing the batch and accumulating did *not* cure the error. That is true when the largest item is the states, or a single sample. A wide embedding table is such a case: lesson 07
# shows that these diets do not move its bytes. Always look at the bill first.

# %% [markdown]
# ## On a GPU
# The bill is the same, and three items come on top: the CUDA context (about 1 GiB), what the allocator rounds up and keeps, and workspaces of kernels. `torch.cuda.max_memory_allocated()` is the peak of tensors;
# `dtlab train` prints it every `log_every` steps.

# %% tags=["gpu-optional"]
if torch.cuda.is_available():
    torch.cuda.reset_peak_memory_stats()
    model, batch = new_model().cuda(), sample.to("cuda")
    picked = pick_precision("cuda")
    with picked.autocast():
        loss = mean_loss(model, batch)
    picked.scale(loss).backward()
    peak = torch.cuda.max_memory_allocated()
    print(f"{picked.name}: {peak / 1e6:.0f} MB; {picked.reason}")
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# In time the three differ. Half precision is faster on tensor cores. Accumulation is free as long as a micro-batch keeps the card busy. Recomputing runs every block's forward twice: a
# third more arithmetic in theory, 30-40 % more time for a layer in published measurements. So: smaller micro-batches first, mixed precision for speed, and recompute when one sample is still too big.
#
# ## The bill
# S3's job: 18 hours on two hosts, in pipelines of two. With 4 micro-batches a pipeline of 2 idles for $(p-1)/(m+p-1) = 1/5$ of the time (lesson 08). The same cards in plain data
# parallel, 8 micro-batches of 16, do not have this bubble: 14.4 hours, if everything else stays the same. (He does not print `microbatches`; that library's default of 1 would make the bubble a half.)

# %%
bill(
    "18 hours in pipelines of two",
    "14.4 hours, data parallel with 8 micro-batches",
    instance="ml.p3.16xlarge",
    count=2,
    fault_seconds=18 * 3600,
    fix_seconds=18 * 3600 * 4 / 5,
)

# %% [markdown]
# And the error in the first step, on eight A100 with 40 GiB? The way out with money is the same host with cards of 80 GiB. A day on each:

# %%
for name, memory in (("ml.p4de.24xlarge", 80), ("ml.p4d.24xlarge", 40)):
    print(f"{memory} GiB a card: {billing.cost(name, 24 * 3600).line()}")

# %% [markdown]
# ## Recap

# %%
recap(
    "06",
    [
        "Make the bill first. Activations: smaller micro-batches, then recompute. States: split the model.",
        "fp16 needs a loss scale, bf16 does not; unscale, look, clip, step, once per optimizer step.",
        "Sum the losses, divide by all tokens of all ranks, synchronise once, drop each graph at once.",
    ],
)
