# %% [markdown]
# # FSDP, ZeRO and hybrid meshes
#
# A team's model had filled its card, so it moved to eight A100 with DDP. All eight ran out of memory at step 1: DDP puts the whole model on every card, and for about
# \$25 an hour the host held the same numbers eight times.
#
# Which numbers does a card need, and when? What do the other seven charge for keeping the rest?
#
# (The incident is S3's, a team that tuned a model of images and text. S0 is a recommender team that went from one card to SageMaker, S4 an engineer who got eight cards for a new
# recommender. The course takes its incidents from their three write-ups. In S3's case the cards were full of *activations*, lesson 06; this lesson is about the other part, the *states*.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, expect_failure, goal, hint, predict, recap, running, solved

goal(
    [
        "say to the byte what a rank holds under DDP, ZeRO-1, ZeRO-2 and FSDP",
        "shard a block by hand: gather before use, reduce-scatter the gradient",
        "see from two integers whether a model is wrapped block by block",
        "lay ranks out as a mesh, and say what crosses between hosts",
        "save a sharded model on four ranks and go on with it on another number",
    ],
    minutes=60,
    needs=["03", "06"],
)

# %% tags=["hide-input"]
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from torch.func import functional_call

# %% tags=["hide-input"]
from dtlab import RankError, data_parallel, launch, traffic, world
from dtlab.cost.cards import cards, smallest_card
from dtlab.cost.memory import state_bytes_per_parameter, state_bytes_per_rank
from dtlab.cost.presets import Preset
from dtlab.cost.rank_memory import rank_memory
from dtlab.cost.strategy import Strategy
from dtlab.cost.zero import zero_bytes
from dtlab.diagnose.layouts import Layout, LayoutTrainer, Task, compare_layout, train_alone, train_in_layout
from dtlab.diagnose.memory_trace import trace_memory
from dtlab.figures.rank_grid import mesh_figure
from dtlab.figures.style import show
from dtlab.figures.zero import SHAPES, decoder_of, zero_figure
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.fsdp import fully_sharded
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.sharded import local_part
from dtlab.parallel.zero import ShardedOptimizer
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.full_state import gather_state
from dtlab.widgets.explorer import explorer

# %% [markdown]
# ## Predict
# FSDP ("fully sharded data parallel") cuts parameters, gradients and optimizer state over the ranks. With four ranks each holds a quarter of them. Whatever a rank lacks, the others send when it is needed. Commit to an answer before you go on.

# %%
ask = predict(
    "09-bytes",
    "Against DDP, how many bytes does a rank send in one step?",
    ["a quarter", "as many", "one and a half times", "four times"],
)

# %% [markdown]
# ## Break it: a copy on every card
# A parameter that is trained needs more room than its value. In bytes, with Adam:

# %% tags=["nbval-check-output"]
fp32 = state_bytes_per_parameter("fp32")
mixed = state_bytes_per_parameter("bf16-mixed")
summed = state_bytes_per_parameter("bf16-mixed", fp32_gradients=True)
print(f"FP32: value 4 + gradient 4 + two moments 8 = {fp32}")
print(f"bf16 with an FP32 master copy: 2 + 2 + (4 + 8) = {mixed}; gradients summed in FP32: {summed}")
for billions in (0.32, 1, 7, 10):
    low, high = mixed * billions, summed * billions
    print(f"{billions:5} billion parameters: {low:5.1f} to {high:5.1f} GB")

# %% [markdown]
# 16 to 18 bytes for each parameter, so a card of 40 GiB, filled to 80 %, ends at 2.1 billion, before the first activation. Now on real ranks, in our size: a GPT of 0.8 million parameters, 12.8 MB of states, on "cards" of 9 MB. Two of
# them, 18 MB together. The operation that exceeds a rank's budget fails, as on a full card.

# %% tags=["hide-input"]
VOCAB, SEQUENCE, BUDGET = 64, 32, 9_000_000
SCRATCH = tempfile.TemporaryDirectory()  # gone when the kernel ends
torch.set_num_threads(1)  # as a rank has


def new_gpt():
    torch.manual_seed(0)
    return GPT(VOCAB, SEQUENCE, dim=128, num_layers=4, num_heads=4)


def windows(rank, step):
    """One window of 32 tokens for this rank, and the targets."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(VOCAB, (1, SEQUENCE + 1), generator=draw)
    return tokens[:, :-1], tokens[:, 1:]


# %%
def build(way, w):
    """The GPT on this rank, and its optimizer."""
    model, adam = new_gpt(), torch.optim.Adam
    if way in ("DDP", "ZeRO-1"):
        model = data_parallel(model, w)
        if way == "ZeRO-1":
            return model, ShardedOptimizer(model.parameters(), adam, lr=1e-3)
    else:
        mesh = build_mesh(ParallelDims(dp_shard=-1))
        options = {
            "FSDP, wrapped as a whole": {"blocks": []},
            "FSDP, block by block": {},  # the default for a model with .blocks
            "FSDP, kept after forward": {"reshard_after_forward": False},
        }
        fully_sharded(model, mesh, **options[way])
    return model, adam(model.parameters(), lr=1e-3)


# %%
def one_step(model, optimizer, rank, step):
    inputs, targets = windows(rank, step)
    optimizer.zero_grad()
    (token_loss(model(inputs), targets).total / SEQUENCE).backward()
    optimizer.step()


def states(model, optimizer):
    """Every tensor that lives from step to step, by item."""
    moments = getattr(optimizer, "optim", optimizer).state.values()
    return {
        "parameters": list(model.parameters()),
        "gradients": [p.grad for p in model.parameters() if p.grad is not None],
        "optimizer": [v for state in moments for v in state.values() if v.dim()],
    }


# %% tags=["hide-input"]
class Held(NamedTuple):
    bytes: dict  # what this rank holds after a step, by item
    peak: int  # most bytes at once, activations included
    whole: int  # most parameters that were whole at once
    gathered: int  # bytes beside its own parameters at the peak of a forward without samples
    sent: int  # bytes sent in one step


def gathered_bytes(model):
    """Without samples nothing but parameters takes memory: what is there beside this rank's own?"""
    parameters = list(model.parameters())
    with trace_memory() as trace, torch.no_grad():
        trace.label("parameters", parameters)
        model(windows(0, 0)[0][:0])
    return trace.peak - sum(local_part(p).nbytes for p in parameters)


# %%
def hold(ways, budget=None):
    """Three steps in each way: what this rank held, and sent in the third."""
    found = {}
    with world() as w:
        for way in ways:
            model, optimizer = build(way, w)
            most = watch_whole(model)
            with trace_memory(budget) as trace:
                trace.label("parameters", list(model.parameters()))
                for item in ("gradients", "optimizer"):
                    trace.label(item, lambda item=item: states(model, optimizer)[item])
                for step in range(2):
                    one_step(model, optimizer, w.rank, step)
            with traffic() as sent:
                one_step(model, optimizer, w.rank, 2)
            held = {
                item: sum(local_part(t).nbytes for t in tensors)
                for item, tensors in states(model, optimizer).items()
            }
            found[way] = Held(held, trace.peak, max(most), gathered_bytes(model), sent.bytes)
    return found


# %% tags=["hide-input"]
def watch_whole(model):
    """A list to which each block adds how many numbers of the model are whole while it runs."""
    most, bare = [], getattr(model, "module", model)

    def count(*_):
        most.append(sum(p.numel() for p in bare.parameters() if not isinstance(p, DTensor)))

    for block in bare.blocks:
        block.mlp.register_forward_hook(count)
        block.mlp.register_full_backward_hook(count)
    return most


# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match=r"rank \d of 2 failed: OverBudget: .* the budget is 9.00 MB",
    within=60,
    explain={
        "of 2 failed: OverBudget": "both get there; which of them is first is chance",
        "the budget is 9.00 MB": "of each rank: the 18 MB of both do not help it",
        "gradients": "forward and backward had gone well",
        "optimizer": "the moments are made in the first optimizer step, so it fails 'at step 1'",
    },
    lines=1,
):
    launch(hold, 2, ["DDP"], BUDGET, timeout=50, echo=False)

# %% [markdown]
# Would four ranks have done it, or eight? By DDP's arithmetic no number of them does: each holds everything. ("DDP, because the model does not fit one card" is what S3 and S4 both write. It is the one case in which DDP cannot help.)
#
# *ZeRO* ("zero redundancy optimizer") cuts what the ranks hold twice, in three steps. ZeRO-1 deals out the optimizer's moments, ZeRO-2 the gradients too, ZeRO-3 the parameters too; FSDP is torch's name for the last. In closed form, for our GPT
# (`units` are its four blocks, and the rest of it as a fifth):

# %% tags=["nbval-check-output"]
model = new_gpt()
of_blocks = [sum(p.numel() for p in block.parameters()) for block in model.blocks]
UNITS = [*of_blocks, model.num_parameters - sum(of_blocks)]
print("units:", UNITS, "together", f"{sum(UNITS):,}")
for zero in (0, 1, 2, 3):
    parts = [zero_bytes(UNITS, n, zero, precision="fp32") for n in (1, 4, 8)]
    kept = [sum(one.items[i] for i in ("parameters", "gradients", "optimizer")) for one in parts]
    print(f"ZeRO-{zero}: held on 1, 4 and 8 ranks:", *(f"{each:11,}" for each in kept), "bytes")

# %% [markdown]
# ## Break it: cut, and gathered all at once
# So cut the parameters: `fully_sharded(model, mesh, blocks=[])` makes *one* group of the whole model. (In torch: `fully_shard(model)` on the root alone, which is what one writes first.) On four ranks each holds a quarter of everything. The budget is the same 9 MB:

# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match=r"rank \d of 4 failed: OverBudget: .* the budget is 9.00 MB",
    within=60,
    explain={
        "of 4 failed: OverBudget": "four ranks now, of which each holds a quarter",
        "the budget is 9.00 MB": "a quarter of the states is 3.2 MB",
        "activations": "what nobody labelled: here the gathered weights, and their gradients",
    },
    lines=1,
):
    launch(hold, 4, ["FSDP, wrapped as a whole"], BUDGET, timeout=50, echo=False)

# %% [markdown]
# A group is what is gathered together. With one group the whole model is whole on each rank all through forward and all through backward; and before a rank gives the gradients away, it has all of them too. Sharding saved what is held *between*
# the steps, and little in them. Block by block, and the others beside it:

# %% tags=["nbval-check-output"]
WAYS = [
    "DDP",
    "ZeRO-1",
    "FSDP, wrapped as a whole",
    "FSDP, block by block",
    "FSDP, kept after forward",
]
with running("five ways on four ranks"):
    four = launch(hold, 4, WAYS, timeout=120, echo=False)
print("rank 0                     parameters  gradients  optimizer   whole at once   fits")
for way in WAYS:
    one = four[0][way]
    sizes = " ".join(f"{size:10,}" for size in one.bytes.values())
    print(f"{way:25} {sizes} {one.whole:15,}   {one.peak <= BUDGET}")

# %% tags=["nbval-check-output"]
stage = {"DDP": 0, "FSDP, wrapped as a whole": 3, "FSDP, block by block": 3}
for way, zero in stage.items():
    closed = zero_bytes(UNITS, 4, zero, precision="fp32").items
    for rank in four:
        assert all(rank[way].bytes[item] == closed[item] for item in rank[way].bytes)
for rank in four:
    assert rank["FSDP, wrapped as a whole"].whole == sum(UNITS)
    assert rank["FSDP, block by block"].whole == max(UNITS) + UNITS[-1]
    assert rank["FSDP, block by block"].peak <= BUDGET < rank["DDP"].peak
print("bytes of DDP and FSDP as calculated, on every rank: True")
print("whole at once: everything when wrapped as a whole, else a block and the rest of the model")
moments = [rank["ZeRO-1"].bytes["optimizer"] for rank in four]
print("ZeRO-1's moments by rank:", moments, "together", sum(moments) == 8 * sum(UNITS))

# %% [markdown]
# How many bytes is that? At the peak of a forward without a single sample, beside what is held, in blocks of the model:

# %%
for way in WAYS:
    in_blocks = four[0][way].gathered / (4 * max(UNITS))
    print(f"{way:25} {in_blocks:5.2f} blocks of {4 * max(UNITS):,} bytes")
assert four[0]["FSDP, block by block"].gathered < 4.5 * 4 * max(UNITS)
assert four[0]["FSDP, wrapped as a whole"].gathered > 8 * 4 * max(UNITS)

# %% [markdown]
# At rest plus the largest block: that is the sum, and with your own hands it will be exactly one block. torch has three here: the block, the message in which it came, and that of the block before. Wrapped as a whole, it is the message and the model, twice all four blocks.
#
# Two integers tell how a model is wrapped. The *numbers held* are a quarter in all three kinds of FSDP, so they tell nothing about the wrapping; the numbers that are *whole at once* do. Print them once for your own model: `isinstance(p, DTensor)`
# is true for a parameter that is cut at this moment.
#
# (ZeRO-1 in torch deals out whole parameters, so ranks hold unequal shares. "Kept after forward" is between ZeRO-2 and ZeRO-3: cut between the steps, whole from a block's forward to its backward.)
#
# ### The bytes sent
# $S$ are the bytes of all parameters, $n$ ranks. DDP's ring all-reduce sends $2\frac{n-1}{n}S$ from each. FSDP gathers a block for forward and again for backward, and reduce-scatters its gradient: three times $\frac{n-1}{n}S$.

# %% tags=["nbval-check-output"]
part = 4 * 3 // 4  # 4 bytes, (n - 1) / n of them
blocks, rest = sum(UNITS[:-1]), UNITS[-1]
expected = {
    "DDP": 2 * part * (blocks + rest),
    "ZeRO-1": 3 * part * (blocks + rest),  # all-reduce, then the new parameters from their owners
    "FSDP, wrapped as a whole": 3 * part * (blocks + rest),
    "FSDP, block by block": part * (3 * blocks + 2 * rest),  # the rest stays from forward to backward
    "FSDP, kept after forward": 2 * part * (blocks + rest),
}
for way, size in expected.items():
    sent = four[0][way].sent
    print(f"{way:25} {sent:11,} bytes, {sent / expected['DDP']:.3f} x DDP")
    assert sent == size or way == "ZeRO-1"

# %%
ask.reveal("c", because="Two all-gathers and a reduce-scatter, where an all-reduce is two of these.")

# %% [markdown]
# One and a half times, for every block. (What no block holds, embedding, last norm and head, is needed first in backward, so torch does not let it go after forward: two times.) And it is *per micro-batch*: with gradient accumulation over $k$ micro-batches DDP sends once a step,
# with `no_sync`; FSDP gathers the weights $2k$ times.
#
# ## Break it: rank 0 saves alone
# In DDP every rank has the model, so one saves: `if rank == 0`. With FSDP the same lines, on two ranks:


# %%
def save_on_rank_0(path):
    with world() as w:
        model, _ = build("FSDP, block by block", w)
        if w.rank == 0:
            whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
            save_file(whole, path)
        w.barrier()  # nobody goes on before the file is there


# %% tags=["lab-failure"]
folder = Path(tempfile.mkdtemp(dir=SCRATCH.name))
with expect_failure(
    RankError,
    match="rank 0 waits in all_gather .* rank 1 waits in barrier",
    within=40,
    explain={
        "timeout after 3 s": "our limit. Without one NCCL gives up after 10 minutes, gloo after 30",
        "the ranks call different operations": "nobody is late: each waits for a call "
        "that the other never makes",
        "rank 0 waits in all_gather": "inside full_tensor(): to put a parameter together "
        "takes all its holders",
        "rank 1 waits in barrier": "it went round the `if`, and waits for the file",
    },
    lines=1,
):
    launch(save_on_rank_0, 2, folder / "model.safetensors", timeout=3, echo=False)
assert not (folder / "model.safetensors").exists()

# %% [markdown]
# `state_dict()` alone would have returned: it gives DTensors, of which this rank has a half. What hangs is putting it together. Reading a parameter has become a *collective*, and the rule of all collectives holds: every rank, or none (lesson 12).
# The barrier is no help (S0 calls it a cure for deadlocks): it is where the other rank stands. Without it rank 1 would have begun the next step, whose gather of a block meets rank 0's gather of a parameter: on gloo a crash for unlike sizes, or, when the sizes
# happen to agree, weights of one parameter in the place of another.
#
# ## Look: who holds what
# States of a GPT-3 on each rank, without activations. Move the sliders: when does ZeRO-1 suffice? What do more ranks still bring? What becomes of the pink part when the model is wrapped as a whole?

# %%
explorer(
    zero_figure,
    billions=list(SHAPES),
    ranks=[2, 4, 8, 16, 64, 256],
    precision=["fp32", "bf16-mixed", "bf16"],
    per_block=True,
    card=["T4 16 GiB", "A10G 22.4 GiB", "A100 40 GiB", "A100 80 GiB", "H200 141 GiB"],
)

# %% [markdown]
# ZeRO-1 divides 12 of the 16 bytes, the larger part of what there is to get, and in principle for DDP's traffic: reduce-scatter the gradient, gather the new weights. (torch's, as counted above, all-reduces and then sends the weights: one and a half times.) ZeRO-3's bar goes on falling with the ranks, down to the pink part: the
# largest block's weights and its gradient.
#
# Is the arithmetic true of real runs? torchtitan's published table has Llama 3.1 8B on 8 and on 128 H100 (batch 2 a card, bf16, compiled), 77.0 and 62.0 GiB a card at the peak. What differs is sharding over 16 times the cards:

# %% tags=["nbval-check-output"]
on_8, on_128 = (state_bytes_per_rank(8_030_000_000, n, zero=3) for n in (8, 128))
print(f"by the formula {(on_8 - on_128) / 2**30:.1f} GiB less; measured {77.0 - 62.0:.1f}")

# %% [markdown]
# ## Look: a mesh
# Ranks of one host are near each other, hosts are not. So the ranks are laid out as a grid, a *mesh*, and each axis gets its own groups. Two hosts of two cards, as *HSDP* ("hybrid sharded data parallel"): each host has a copy, cut over its cards.

# %%
show(mesh_figure(ParallelDims(dp_replicate=2, dp_shard=2)))

# %% [markdown]
# Weights are gathered among neighbours only. What crosses to the other host is one all-reduce a step, of a rank's own part. The other common grid of this size cuts matrices inside the host (lesson 07) and shards over the hosts what is left:

# %%
show(mesh_figure(ParallelDims(dp_shard=2, tp=2)))

# %% [markdown]
# The axis that talks most changes fastest with the rank's number, so that its ranks are neighbours: `tp`, then `dp_shard`, `dp_replicate`, `pp`. For the sampler (lesson 04) and the learning rate (lesson 05) only `dp_replicate` $\times$ `dp_shard`
# count: ranks that differ in `tp` alone see the same samples.
#
# ## Build it: the bill of a rank
# Write the calculator that was used above.


# %% tags=["exercise"]
def held(units, ranks, zero, each=(2, 2, 12)):
    """Bytes on each rank, as a dict with "parameters", "gradients", "optimizer" and "in use".

    units: parameters of each unit. each: bytes for each parameter, of the weights, the gradients,
    the optimizer. ZeRO-1 cuts the optimizer's, ZeRO-2 the gradients' too, ZeRO-3 the weights' too:
    every unit by itself, into `ranks` equal parts, the last one padded.
    "in use": what is cut has to be whole for a moment, one unit at a time: a unit's gradient until
    it is reduced, a unit's weights while it computes. The optimizer works on the parts. Whole numbers.
    """
    ### BEGIN SOLUTION
    weights, gradients, optimizer = each
    whole, part = sum(units), sum(-(-size // ranks) for size in units)
    in_use = (gradients if zero >= 2 else 0) + (weights if zero >= 3 else 0)
    return {
        "parameters": weights * (part if zero >= 3 else whole),
        "gradients": gradients * (part if zero >= 2 else whole),
        "optimizer": optimizer * (part if zero >= 1 else whole),
        "in use": in_use * max(units),
    }
    ### END SOLUTION


# %% tags=["hint"]
hint("09-zero")

# %% [markdown]
# ## Check: the bill of a rank
# Four models under all four stages, with units that do not divide.

# %% tags=["check"]
check("09-zero", held)

# %% [markdown]
# ## Build it: a block in shards
# Now FSDP itself, for one block. All its parameters stand in one flat tensor of `n` numbers, of which a rank keeps a part. `block(x, whole)` computes the block from the whole of it.
#
# Forward: gather, compute, let go. Backward: gather again, and compute once more to have something to differentiate. (That is recomputation, lesson 06, because it is the shortest to write. torch keeps the activations and gathers the weights alone.) Then give
# every rank its part of the mean gradient. (torch 2.13 renames `reduce_scatter_tensor` to `reduce_scatter_single` and says so in a warning; the older name works in all versions that dtlab supports.)


# %% tags=["exercise"]
def shard_of(flat, rank, ranks):
    """This rank's part of flat [n]: ceil(n / ranks) numbers, a copy. Zeros fill the last part."""
    ### BEGIN SOLUTION
    size = -(-len(flat) // ranks)
    padded = F.pad(flat, (0, size * ranks - len(flat)))
    return padded[rank * size : (rank + 1) * size].clone()
    ### END SOLUTION


def gather(shard, n):
    """The whole parameter [n] from the parts of all ranks. Uses dist.all_gather_into_tensor."""
    ### BEGIN SOLUTION
    whole = shard.new_empty(len(shard) * dist.get_world_size())
    dist.all_gather_into_tensor(whole, shard)
    return whole[:n]
    ### END SOLUTION


def reduce(gradient, size):
    """This rank's part, `size` numbers, of the mean over ranks of gradient [n].

    Uses dist.reduce_scatter_tensor, which takes a multiple of `size`."""
    ### BEGIN SOLUTION
    ranks = dist.get_world_size()
    part = gradient.new_empty(size)
    dist.reduce_scatter_tensor(part, F.pad(gradient, (0, size * ranks - len(gradient))))
    return part / ranks
    ### END SOLUTION


# %% tags=["exercise"]
class ShardedBlock(torch.autograd.Function):
    """block(x, whole), where whole has n numbers and this rank keeps `shard` of them."""

    @staticmethod
    def forward(ctx, x, shard, n, block):
        """Return the block's output. Save x and the shard with ctx, nothing whole."""
        ### BEGIN SOLUTION
        ctx.save_for_backward(x, shard)
        ctx.n, ctx.block = n, block
        return block(x, gather(shard, n))
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of x and of the shard, then None, None for n and block."""
        ### BEGIN SOLUTION
        x, shard = ctx.saved_tensors
        x = x.detach().requires_grad_()
        whole = gather(shard, ctx.n).requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x, whole)
        of_x, of_whole = torch.autograd.grad(y, (x, whole), gradient)
        return of_x, reduce(of_whole, len(shard)), None, None
        ### END SOLUTION


# %% tags=["hint"]
hint("09-block")

# %% [markdown]
# ## Check: a block in shards
# Three blocks whose numbers do not divide, on 2 and on 3 ranks: parts, messages and their bytes, what stays whole from forward to backward; then outputs and gradients of one process.

# %% tags=["check"]
check("09-block", ShardedBlock, shard_of)

# %% [markdown]
# ## Build it: two hosts
# On a mesh a rank has two groups. Its gradient is whole and its own; what it needs is its part of the mean over *all* ranks, and as little as possible shall cross between the copies.


# %% tags=["exercise"]
def peers(rank, copies, shards):
    """Two sorted lists of ranks: the shards of this rank's copy, and the copies of its shard.

    Both hold `rank` itself. The ranks of a copy are neighbours: copy 0 has ranks 0 to shards - 1.
    """
    ### BEGIN SOLUTION
    copy, shard = divmod(rank, shards)
    return (
        [copy * shards + s for s in range(shards)],
        [c * shards + shard for c in range(copies)],
    )
    ### END SOLUTION


def hybrid_reduce(gradient, size, shard_group, copy_group):
    """This rank's part, `size` numbers, of the mean over all ranks of gradient [n].

    The groups are those of `peers`. Leave `gradient` as it is.
    """
    ### BEGIN SOLUTION
    shards, copies = dist.get_world_size(shard_group), dist.get_world_size(copy_group)
    part = gradient.new_empty(size)
    padded = F.pad(gradient, (0, size * shards - len(gradient)))
    dist.reduce_scatter_tensor(part, padded, group=shard_group)
    dist.all_reduce(part, group=copy_group)
    return part / (shards * copies)
    ### END SOLUTION


# %% tags=["hint"]
hint("09-mesh")

# %% [markdown]
# ## Check: two hosts
# Groups of four grids, then three meshes of four real ranks: bytes inside a copy, bytes between copies, and the mean.

# %% tags=["check"]
check("09-mesh", hybrid_reduce, peers)

# %% [markdown]
# ## Build it: a checkpoint in pieces
# Every rank writes its own part: no gathering, no rank that waits for another, and a file of $1/n$. The price comes when the next job has other ranks: rank 1 of 3 needs numbers that stand in two files of four. Which?


# %% tags=["exercise"]
def pieces(n, saved_by, rank, ranks):
    """What `rank` of `ranks` reads of a tensor [n]: a list of (file, start, stop), in order.

    File i was written by rank i of `saved_by`: ceil(n / saved_by) numbers, padded behind n. start
    and stop count inside the file. Together the pieces are this rank's part without padding; it may
    have none. Each file is read in one piece, or not at all.
    """
    ### BEGIN SOLUTION
    size, own = -(-n // saved_by), -(-n // ranks)
    at, stop = min(rank * own, n), min((rank + 1) * own, n)
    found = []
    while at < stop:
        file = at // size
        end = min(stop, (file + 1) * size)
        found.append((file, at - file * size, end - file * size))
        at = end
    return found
    ### END SOLUTION


# %% tags=["hint"]
hint("09-pieces")

# %% [markdown]
# ## Check: a checkpoint in pieces
# Eight moves from one number of ranks to another, some with ranks that hold nothing: numbers read, files opened, then every number.

# %% tags=["check"]
check("09-pieces", pieces)

# %% [markdown]
# ## The real thing
# `ParallelDims`, `build_mesh` and `parallelize` do this for any model (matrices are cut in the GPT alone), with torch's `fully_shard` underneath. A small GPT in FP64, two steps with AdamW and clipping, eight windows a step, on four ranks in five layouts. One process is the reference. The 2 x 2 mesh then saves a
# checkpoint, each rank its own parts.

# %%
TASK = Task(steps=2, clip=0.5)
LAYOUTS = {
    "DDP": Layout(ParallelDims(dp_replicate=4)),
    "ZeRO-1": Layout(ParallelDims(dp_replicate=4), zero=True),
    "FSDP": Layout(ParallelDims(dp_shard=4)),
    "HSDP, 2 x 2": Layout(ParallelDims(dp_replicate=2, dp_shard=2)),
    "FSDP 2 x TP 2": Layout(ParallelDims(dp_shard=2, tp=2)),
}


def train_and_save(folder):
    """Every layout's run; the 2 x 2 mesh's next loss after saving, and its whole state."""
    with world():
        runs = {name: train_in_layout(layout, TASK) for name, layout in LAYOUTS.items()}
        trainer = LayoutTrainer(LAYOUTS["HSDP, 2 x 2"], TASK)
        trainer.step(0)
        parts = {"model": trainer.model, "optimizer": trainer.optimizer}
        with Checkpointer(folder, asynchronous=False) as checkpoints:
            checkpoints.save(parts, 1, samples=TASK.batch)
        state = gather_state(trainer.model)  # every rank calls it, rank 0 gets it
        return runs, trainer.step(1)[0], len(state.get("model", {}))


# %% tags=["nbval-check-output"]
saved = Path(tempfile.mkdtemp(dir=SCRATCH.name)) / "run"
with running("five layouts on four ranks"):
    results = launch(train_and_save, 4, saved, timeout=180, echo=False)
alone = train_alone(TASK)
for name in LAYOUTS:
    runs = [rank[0][name] for rank in results]
    losses, parameters, norms = compare_layout(runs, alone)
    held_numbers = [run.num_parameters for run in runs]
    same = max(losses, parameters, norms) < 1e-6
    print(f"{name:14} numbers on each rank {held_numbers}, as one process: {same}")
    assert same
assert results[0][0]["FSDP"].num_parameters * 4 == results[0][0]["DDP"].num_parameters
print("tensors in the whole state, by rank:", [rank[2] for rank in results])

# %% [markdown]
# Equal to DDP and to one process, to the last digits of FP64. `gather_state` is the full state dict as a call of every rank: a tensor is put together, rank 0 keeps it, the others drop it before the next one starts. Under `if rank == 0` it does not hang: after 10 seconds
# `all ranks must enter gather_state(), and rank 1 did not` comes, with the line at which rank 1 is.
#
# The checkpoint goes on with two ranks in plain FSDP, and in one process. Nobody gathered it, and nobody has to: what a rank needs it reads, from the files in which it stands.


# %%
def go_on(folder, layout):
    """The loss of the step after the checkpoint, in another layout."""
    with world():
        trainer = LayoutTrainer(layout, TASK)
        with Checkpointer(folder) as checkpoints:
            checkpoints.load({"model": trainer.model, "optimizer": trainer.optimizer})
        return trainer.step(1)[0]


# %% tags=["nbval-check-output"]
two = launch(go_on, 2, saved, Layout(ParallelDims(dp_shard=2)), timeout=60, echo=False)
one = go_on(saved, None)  # here, in the notebook
for name, losses in (("2 ranks, FSDP", two), ("one process", [one])):
    same = all(abs(loss - results[0][1]) < 1e-9 for loss in losses)
    print(f"saved by 2 x 2 ranks, next step on {name}: the same loss {same}")
    assert same

# %% [markdown]
# ### Yours beside it
# If you solved the exercises: the blocks of the GPT above as your `ShardedBlock` on two ranks, against DDP; and your `pieces`, from four files to three ranks.


# %%
def flat_block(block):
    """A block's parameters as one flat tensor, and the block as a function (x, whole)."""
    named = dict(block.named_parameters())
    sizes = [p.numel() for p in named.values()]

    def use(x, whole):
        parts = zip(named, named.values(), whole.split(sizes), strict=True)
        return functional_call(block, {name: part.view_as(p) for name, p, part in parts}, (x,))

    return torch.cat([p.detach().flatten() for p in named.values()]), use


# %%
class ByHand(torch.nn.Module):
    """The GPT whose blocks are yours; embedding and head are whole on every rank."""

    def __init__(self, gpt, sharded, shard_of, rank, ranks):
        super().__init__()
        self.embedding, self.head, self.sharded = gpt.embedding, gpt.head, sharded
        self.shards, self.used = torch.nn.ParameterList(), []
        for block in gpt.blocks:
            flat, use = flat_block(block)
            self.shards.append(shard_of(flat, rank, ranks))
            self.used.append((len(flat), use))

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for shard, (n, use) in zip(self.shards, self.used, strict=True):
            hidden = self.sharded.apply(hidden, shard, n, use)
        return self.head(hidden)


# %%
def gathered_by(sharded, model, rank):
    """Bytes beside the shard at the peak of one block's forward, without samples."""
    shard, (n, use) = model.shards[0], model.used[0]
    hidden = model.embedding(windows(rank, 0)[0][:0])
    with trace_memory() as trace:
        trace.label("shard", [shard])
        sharded.apply(hidden, shard, n, use)
    return trace.peak - shard.nbytes


def yours_beside_ddp(sharded, shard_of):
    """Difference of a shard's gradient from DDP's; bytes sent for blocks; bytes gathered at the peak."""
    with world() as w:
        model = ByHand(new_gpt(), sharded, shard_of, w.rank, w.size)
        ddp = data_parallel(new_gpt(), w)
        inputs, targets = windows(w.rank, 0)
        with traffic() as sent:
            (token_loss(model(inputs), targets).total / SEQUENCE).backward()
        gathered = min(gathered_by(sharded, model, w.rank) for _ in range(3))
        (token_loss(ddp(inputs), targets).total / SEQUENCE).backward()
        apart = []
        for shard, block in zip(model.shards, ddp.module.blocks, strict=True):
            mean = torch.cat([p.grad.flatten() for p in block.parameters()])
            apart.append(float((shard.grad - shard_of(mean, w.rank, w.size)).abs().max()))
        return max(apart), sent.bytes, gathered


# %%
if solved("09-block"):
    yours = launch(yours_beside_ddp, 2, ShardedBlock, shard_of, timeout=60, echo=False)
    for apart, sent, gathered in yours:
        assert apart < 1e-6
        assert sent == 3 * 2 * blocks  # half of 4 bytes
        assert 0 <= gathered - 4 * max(UNITS) < 100  # attention keeps a few numbers of its own
    print("gradients as DDP's: True")
    print(f"bytes for the blocks: {sent:,}, 1.5 times DDP's {2 * 2 * blocks:,}")
    print(f"gathered at the peak: {gathered / 4 / max(UNITS):.2f} blocks")
else:
    print("to do: solve 09-block, then run this cell again")

# %%
if solved("09-pieces"):
    n, folder = 13, Path(tempfile.mkdtemp(dir=SCRATCH.name))
    flat = torch.arange(1.0, n + 1)
    for rank in range(4):
        part_of_rank = F.pad(flat, (0, 16 - n))[4 * rank : 4 * rank + 4].clone()
        save_file({"part": part_of_rank}, folder / f"{rank}.safetensors")
    for rank in range(3):
        found = [
            load_file(folder / f"{file}.safetensors")["part"][start:stop]
            for file, start, stop in pieces(n, 4, rank, 3)
        ]
        print(f"rank {rank} of 3:", pieces(n, 4, rank, 3), "->", torch.cat(found).int().tolist())
else:
    print("to do: solve 09-pieces, then run this cell again")

# %% [markdown]
# ### From 38 GB to 18 GB, by sharding
# S3's model again: 320M parameters, 38 GB on one card, and 18 GB "with pipeline parallel" (lesson 08). Would sharding have done it? 16 bytes for each parameter are states, the rest of the 38 GB is activations, and ZeRO does not touch these:

# %% tags=["nbval-check-output"]
states_gb = 16 * 0.32
activations_gb = 38 - states_gb
for zero in (0, 1, 2, 3):
    on_8 = state_bytes_per_rank(320_000_000, 8, zero=zero, precision="fp32") / 1e9 + activations_gb
    on_many = state_bytes_per_rank(320_000_000, 1024, zero=zero, precision="fp32") / 1e9 + activations_gb
    print(f"ZeRO-{zero}: {on_8:.1f} GB on each of 8 cards, {on_many:.1f} on each of 1,024")
needed = (38 - 18) / (1 - 1 / 8)
print(f"for 18 GB on 8 cards: {needed:.1f} GB of the 38 would have to be states,")
print(f"{needed / 16:.2f} billion parameters, {needed / 16 / 0.32:.1f} times as many as he has")
print(f"micro-batch 16 instead of 128, on one card: {states_gb + activations_gb / 8:.1f} GB")

# %% [markdown]
# No number of cards brings 38 GB below 33 in this way. The claim would hold for a model of 1.4 billion parameters with 15 GB of activations. For his, the largest item of the bill is activations, and the remedy is a smaller micro-batch or recomputation (lessons 06 and 07). Ask for the largest
# item first: FSDP is the remedy when it is *states*.
#
# ### "Hybrid for 1 to 10 billion parameters"
# S0's guide says that models of 1-10B need a hybrid of data and model parallelism, "with a complex topology to schedule". The calculator of the core, `rank_memory`, knows activations, logits and message buffers too. Four decoders of GPT-3's shapes on the eight cards of one host: bf16 with a master copy, one sequence of 2,048 tokens a card, blocks recomputed.

# %%
def per_card(billions, ranks):
    """Bytes on each of `ranks` cards under FSDP: (states, all the rest)."""
    layers, hidden = SHAPES[billions]
    shape = Preset(
        name=f"GPT-3 {billions:g}B", family="gpt", parameters=sum(decoder_of(billions)), formula="",
        source="", layers=layers, hidden=hidden, ffn=4 * hidden, heads=hidden // 128, vocab=50257,
        seq_len=2048,
    )  # fmt: skip
    strategy = Strategy(dp_shard=ranks, zero=3, precision="bf16-mixed", recompute="full")
    items = rank_memory(shape, strategy)[0].items
    held = sum(items[name] for name in ("parameters", "gradients", "optimizer"))
    return held, sum(items.values()) - held


# %% tags=["nbval-check-output"]
print("      DDP: states   FSDP on 8: states + rest =  GB   smallest card")
for billions in SHAPES:
    copies = zero_bytes(decoder_of(billions), 8, 0).total / 1e9
    cut, kept = (size / 1e9 for size in per_card(billions, 8))
    fits = smallest_card(1e9 * (cut + kept))
    print(f"{billions:4}B {copies:9.1f} GB {cut:17.1f} {kept:6.1f} {cut + kept:5.1f}   {fits}")

# %% [markdown]
# None of them needs a second kind of parallelism. On a host with eight A100 of 40 GiB, *data parallelism, sharded*, holds 13 billion parameters; DDP ends at 2. (What the sum leaves out: the context of about 1 GB, and fragmentation. Hence the
# 80 %. How far it was off on published runs, `python -m benchmarks.accuracy` prints.) "BERT needs model parallelism", also his, is wrong by more: its 335M parameters are 5.4 GB of states.
#
# What would have to be true for S0 to be right? Cards like those of his own job:

# %% tags=["nbval-check-output"]
v100 = cards()["V100 16 GiB"]
for billions in SHAPES:
    fitting = next(n for n in (1, 2, 4, 8, 16, 32, 64) if sum(per_card(billions, n)) < 0.8 * v100)
    print(f"{billions:4}B fits on V100 with 16 GiB from {fitting} cards on, with FSDP alone")

# %% [markdown]
# On those, 6.7B takes two hosts of eight. More axes are needed when something that FSDP does not cut fills the card: one sample's activations (cut the sequence, or a matrix: lesson 07), or when there are more cards than samples in the global batch, or when a link between hosts is too slow for
# three times the weights in each micro-batch. The last case is the mesh's: a copy for each host, gathers inside it. That is what a hybrid is for in this range.

# %% [markdown]
# ## On a GPU
# The calls are the same, with two things more. `fully_sharded(..., param_dtype=torch.bfloat16)` gathers and computes in half precision, so half the bytes cross, while parameters and optimizer stay FP32. And the gather of the next block runs beside the computation of this one: that is why torch keeps a block or two more
# than the formula. With a large micro-batch the messages hide behind the computation; with a small one they do not (lesson 10).

# %% tags=["gpu-optional"]
if torch.cuda.is_available():
    before = torch.cuda.memory_allocated()
    on_card = GPT(sequence=256, dim=1024, num_layers=8, num_heads=16).cuda()
    optimizer = torch.optim.Adam(on_card.parameters())
    on_card(torch.zeros(1, 256, dtype=torch.int64, device="cuda")).sum().backward()
    optimizer.step()
    held_bytes = torch.cuda.memory_allocated() - before
    print(f"{held_bytes / on_card.num_parameters:.1f} bytes for each parameter; by the sum 16")
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# The incident's kind first. Say that a team tries batch sizes by hand for an afternoon of four hours (our number), each try an out-of-memory error at step 1, on a host of eight A100. The sum costs nothing, and one start of ten minutes shows that it is right.

# %%
bill(
    "an afternoon of tries under DDP",
    "the sum, and one start of ten minutes",
    instance="ml.p4d.24xlarge",
    fault_seconds=4 * 3600,
    fix_seconds=600,
)

# %% [markdown]
# And the mesh, for 6.7B in bf16 on two such hosts. In FSDP over all 16 cards a ring passes $3 \cdot \frac{15}{16} S$ through a host's link, $S$ = 13.3 GB. With a copy on each host, the eight cards' all-reduces of an eighth pass $2 \cdot \frac{1}{2} S$. At the full 400 Gbit/s, which nobody reaches, and with nothing
# hidden behind computation, 100,000 steps:

# %%
LINK = 400e9 / 8
size = 2 * sum(decoder_of(6.7))
whole_world, per_host = 3 * 15 / 16 * size, size
print(f"through a host's link in one step: {whole_world / 1e9:.1f} GB,", end=" ")
print(f"with a copy on each host {per_host / 1e9:.1f} GB")

bill(
    "messages of 100,000 steps, FSDP over 16 cards",
    "messages of 100,000 steps, HSDP 2 x 8",
    instance="ml.p4d.24xlarge",
    count=2,
    fault_seconds=100_000 * whole_world / LINK,
    fix_seconds=100_000 * per_host / LINK,
)

# %% [markdown]
# The price is memory: 13.3 + 0.9 GB of states for each card instead of 6.7 + 0.9. If that does not fit, the first line is the one to pay.
#
# ## Recap

# %%
recap(
    "09",
    [
        "16 to 18 bytes a parameter: DDP holds all of them n times, ZeRO 1, 2, 3 cut three items.",
        "Block by block: a shard of everything and one block whole, for 1.5 times DDP's bytes.",
        "Reading a sharded parameter is a collective: every rank, or none.",
    ],
)
