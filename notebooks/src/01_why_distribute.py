# %% [markdown]
# # Why distribute?
#
# An epoch of a recommender took 142 minutes on one card, so it was moved to four cards and then to eight. By the author's
# own figures about 33 of the 142 minutes were spent waiting for a disk, which no number of cards makes faster: eight
# cards on that disk would have paid 22 dollars an epoch where the same eight with a cache paid 8.
#
# What do more ranks make faster, what not, and how do you know before you pay?
#
# (This is told by a recommender team that moved from one card to SageMaker: S0. Two more write-ups appear below: S3, a team that tuned a
# model of images and text three times in vain, and S4, an engineer who got eight cards for a new recommender. 00 says more.
# The bill at the end shows the arithmetic.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, goal, hint, predict, recap, running, solved, time_budget

goal(
    [
        "say in bytes what a training holds on one card, and which remedy its largest item asks for",
        "split a step into data, compute and sync, and say what it is bound by",
        "predict the speed-up on 2, 4 and 8 ranks before you pay for them",
    ],
    minutes=40,
)

# %% tags=["hide-input"]
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

import dtlab
from dtlab import launch, world
from dtlab.cost import catalogue, memory, scaling
from dtlab.cost.cards import cards, smallest_card
from dtlab.cost.presets import PRESETS
from dtlab.course.lessons.l01_traces import recorded_traces
from dtlab.data.throttle import SharedDisk
from dtlab.figures.scaling import step_figure, throughput_figure
from dtlab.figures.style import show
from dtlab.widgets.scaling import amdahl_explorer, memory_explorer

# %% [markdown]
# ## Predict
# A rank is one process of a training job, usually one for each card (GPU). Four ranks read from one disk that gives 1,600 rows a second; one rank alone
# computes far faster than that. S0 says that "4 cards give 3-4x throughput". Commit to an answer before you go on.

# %%
ask = predict(
    "01-ranks",
    "Four ranks instead of one on that disk: how many times the rows per second?",
    [
        "4x: there are four of them",
        "about 3.2x: communication takes its share",
        "about 1x",
        "about 0.25x: they share it",
    ],
)

# %% [markdown]
# ## Break it: add ranks
# `SharedDisk` stands in for the disk or file server of a cluster: it hands out so many rows a second, whoever asks, and
# serves ranks one after another. A training step has three parts. Here is each as a function:


# %%
RATE, BATCH = 1600, 32  # rows a second of the disk; rows a step of each rank


def three_parts(w, disk, width=64):
    """read, compute and sync of this rank's training. Without a disk the rows are in memory."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    in_memory = torch.randn(1024, width)

    def read():
        if disk is not None:
            disk.read(BATCH)
        return in_memory[torch.randint(1024, (BATCH,))]

    def compute(batch):
        model.zero_grad()
        model(batch).square().mean().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    def sync(gradient):
        if w.size > 1:
            dist.all_reduce(gradient)

    return read, compute, sync


# %% [markdown]
# The optimizer's update is left out; it would count as compute. Now the same job on one, two and four real ranks:


# %% tags=["lab-failure", "varies"]
def rows_per_second(disks, width=64, steps=9):
    """Rows per second of all ranks together. Rank r reads from disks[r], or all from the only one."""
    with world() as w:
        read, compute, sync = three_parts(w, disks[w.rank % len(disks)], width)
        clock = [time.perf_counter()]
        for _ in range(steps):
            sync(compute(read()))
            clock.append(time.perf_counter())
        taken = [end - start for start, end in zip(clock, clock[1:])]
        return w.size * BATCH / statistics.median(taken)  # one slow step must not decide


with time_budget(8):
    one_disk = SharedDisk(RATE)
    measured = {
        n: min(launch(rows_per_second, n, [one_disk], timeout=30, echo=False)) for n in (1, 2, 4)
    }
for n, rows in measured.items():
    ranks = "1 rank:" if n == 1 else f"{n} ranks:"
    print(f"{ranks:8} {rows:6,.0f} rows per second, {rows / measured[1]:.2f}x")
assert measured[4] < 1.5 * RATE, "four ranks got more rows than the disk has"

# %%
ask.reveal(
    "c",
    because="The disk gives 1,600 rows a second, to one rank or to four. "
    "More ranks divide the rows, they add none.",
)

# %% [markdown]
# (The last line of the cell is for you: what this cell took here, beside the time that the lesson planned for it.)
#
# Nothing failed, and no message came. Each of the four ranks worked, and the bill of four was paid.
# "4 cards give 3-4x" is right for a job that is bound by computing: 34 published runs on four cards gave
# 3.2 to 4.3 times one card. Here it was not.
#
# ## Break it: add ranks for memory
# The other reason to distribute: S4 says "distributed training exists because one card's memory is too small", and S3 met an
# out-of-memory error with `DDP` (torch's data parallel) on eight cards. What do two ranks hold that one did not?


# %% tags=["lab-failure", "nbval-check-output"]
def held(width=256):
    """Bytes that this rank holds from step to step, by item, after one step of Adam under DDP."""
    with world():
        model = dtlab.data_parallel(nn.Linear(width, width))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(4, width)).sum().backward()
        optimizer.step()
        parameters = list(model.parameters())
        moments = [s[name] for s in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        gradients = [p.grad for p in parameters]
        items = {"parameters": parameters, "gradients": gradients, "optimizer": moments}
        return {name: sum(tensor.nbytes for tensor in tensors) for name, tensors in items.items()}


P = 256 * 256 + 256
for n in (1, 2):
    for rank, items in enumerate(launch(held, n, timeout=30, echo=False)):
        total = sum(items.values())
        print(f"rank {rank} of {n}: {items}")
        print(f"  together {total:,} bytes = {total // P} for each of {P:,} parameters")
        assert total == 16 * P

# %% [markdown]
# Both ranks hold everything: two cards, and not a byte less on either. Data parallel divides the *data*. A model that does
# not fit one card does not fit eight of them under DDP; other ways of splitting (lessons 07 to 09) divide the model.
#
# ## Look: what the ranks gave

# %%
show(throughput_figure(measured, RATE))

# %% [markdown]
# ## Look: what fills a card
# From step to step a rank holds parameters, gradients and the optimizer's numbers; Adam keeps two for each parameter. In FP32 a
# number has 4 bytes, so each parameter costs $4 + 4 + 2 \cdot 4 = 16$ bytes: the 16 that you saw on both ranks. On top come
# *activations*, what the forward pass keeps for the backward pass. They grow with the micro-batch (the samples in one forward pass);
# the 16 bytes do not. Choose a model, and watch which item is the largest:

# %%
memory_explorer()

# %% [markdown]
# The verdict is "fits" below 80 % of a card, "risky" below 92 %, and "does not fit" above: the rest goes to the CUDA context and to
# gaps between tensors. Five of the course's models, with Adam in FP32 and a micro-batch of 4, each with the smallest card on which it fits:

# %% tags=["nbval-check-output"]
for name in ("ResNet-50", "BERT-large", "S3 multimodal 320M", "S4 DeepFM 1M x 1024", "GPT-3 175B"):
    need = memory.training_bytes(name, 4)
    card = smallest_card(need.total) or "no card"
    fits = "activations unknown" if need.unknown else card
    size = f"{PRESETS[name].parameters / 1e6:9,.0f}M  {need.total / 1e9:8.1f} GB"
    print(f"{name:20} {size}, most: {need.largest:11}  {fits}")

# %% [markdown]
# S0: "a V100 with 32 GB holds about 300M FP32 parameters". The arithmetic, with the card's own bytes:

# %% tags=["nbval-check-output"]
v100 = cards()["V100 32 GiB"]
print(f"weights alone:       {v100:,} / 4  = {v100 / 4 / 1e9:.1f}e9 parameters")
print(f"training with Adam:  {v100:,} / 16 = {v100 / 16 / 1e9:.1f}e9 parameters, before activations")
left = v100 - 16 * 300e6
taken = 16 * 300e6 / 1e9
print(f"300M parameters take {taken:.1f} GB; S0 is right if activations fill the other {left / 1e9:.0f} GB")

# %% [markdown]
# The calculator says 13.4 GiB for BERT-large (335M, FP32, micro-batch 4, 512 tokens); a published run measured 14.6 GiB, on a card of
# 16 GB. So S0's figure is no limit of the card. It may describe his batch size.
#
# ### Two models, two pieces of advice
# S3, 320M parameters, out of memory: "don't use DDP to the bitter end; model parallel may suit your model". S4, a DeepFM whose embedding
# table went from 256 to 1,024 columns and no longer fitted a T4: "save memory first" (mixed precision and checkpointing), split
# the model last. Decide with the calculator. First S3, who reports 38 GB a card at a micro-batch of 128:

# %% tags=["nbval-check-output"]
state = memory.training_bytes("S3 multimodal 320M", 128).total
activations = 38e9 - state
print(f"states {state / 1e9:.1f} GB, so activations {activations / 1e9:.1f} GB:", end=" ")
print(f"{activations / 38e9:.0%} of the 38 GB")
for micro_batch in (128, 64, 32, 16):
    need = (state + activations * micro_batch / 128) / 1e9
    print(f"  one card, micro-batch {micro_batch:3}: {need:5.1f} GB")
print(f"  two cards, half the model each: {38 / 2:5.1f} GB a card")
sold = catalogue.instance("ml.p3.16xlarge")
has = f"its {sold.gpu}s have {sold.gpu_memory_gb:.1f} GB"
print(f"S3 claims 18 GB a card on {sold.sagemaker_name}; {has}")
assert 18 > sold.gpu_memory_gb

# %% [markdown]
# A micro-batch of 16 on *one* card needs less than half of what each of two cards needs in model parallel, and eight
# micro-batches added up before the update (gradient accumulation, lesson 06) give the same batch of 128. We assume that
# activations grow in proportion to the micro-batch, as they do in every formula that we know. Now S4's table, of a million rows:

# %% tags=["nbval-check-output"]
t4 = cards()["T4 16 GiB"]
print(f"a T4 has {t4 / 1e9:.2f} GB")
for precision in ("fp32", "amp"):
    need = memory.training_bytes("S4 DeepFM 1M x 1024", 256, precision=precision)
    states = sum(need.items[item] for item in ("parameters", "gradients", "optimizer"))
    kept = need.items["activations"]
    told = f"states {states / 1e9:.2f} GB, activations {kept / 1e9:.2f} GB"
    print(f"{precision:5} {told}: {need.verdict(t4)}")
print(f"rows split over 4 T4: {states / 4 / 1e9:.2f} GB of states each")
assert need.verdict(t4) == "does not fit"

# %% [markdown]
# Mixed precision halves activations, and there are next to none: 0.01 GB saved of 16. What fills the card are the
# states of the table, and for those the remedies are sparse gradients, an optimizer that keeps one number a row, or rows
# split over the ranks (lesson 07). So the two advised the wrong way round: S3's model should save memory
# first, S4's table should be split. The rule that decides is neither's: **find the largest item of the bill, and take the
# remedy that shrinks it.** S0's "batch size and accumulation did not cure the out-of-memory error" is what you see
# when the largest item is states.
#
# ## Build it: bytes of one rank


# %% tags=["exercise"]
def bytes_of_one_rank(parameters, per_sample, micro_batch, moments=2, ranks=1):
    """Bytes that each rank of a DDP training in FP32 holds, as a dict of integers.

    Keys: "parameters", "gradients", "optimizer" (`moments` numbers for each parameter),
    "activations" (`per_sample` bytes for each sample of the micro-batch), "buckets": DDP's copy
    of the gradients, which torch makes by default when there is more than one rank; otherwise 0.
    """
    ### BEGIN SOLUTION
    weights = 4 * parameters
    return {
        "parameters": weights,
        "gradients": weights,
        "optimizer": moments * weights,
        "activations": per_sample * micro_batch,
        "buckets": weights if ranks > 1 else 0,
    }
    ### END SOLUTION


# %% tags=["hint"]
hint("01-memory")

# %% [markdown]
# ## Check: bytes of one rank

# %% tags=["check"]
check("01-memory", bytes_of_one_rank)

# %% [markdown]
# ## Build it: split a step
# Now time. `read`, `compute` and `sync` are functions as above. `clock` gives the time; in the check it is a simulated clock that
# moves only while a part works, so that your answer is compared exactly.


# %% tags=["exercise"]
def split(read, compute, sync, steps, clock):
    """Run `steps` training steps and return what each of them took.

    A step is batch = read(), gradient = compute(batch), sync(gradient). Return a list with one
    dict for each step: {"data": ..., "compute": ..., "sync": ...}, differences of clock().
    """
    ### BEGIN SOLUTION
    trace = []
    for _ in range(steps):
        began = clock()
        batch = read()
        have_data = clock()
        gradient = compute(batch)
        computed = clock()
        sync(gradient)
        done = clock()
        step = {"data": have_data - began, "compute": computed - have_data, "sync": done - computed}
        trace.append(step)
    return trace
    ### END SOLUTION


# %% tags=["hint"]
hint("01-split")

# %% [markdown]
# ## Check: split a step

# %% tags=["check"]
check("01-split", split)

# %% [markdown]
# ## Build it: what is it bound by?
# The time in `sync` is two things: moving the gradient, and waiting for the rank that comes last. Look at one step of a recorded
# trace (two ranks, microseconds):

# %% tags=["nbval-check-output"]
trace = recorded_traces()["A"]
for rank, steps in enumerate(trace):
    print(f"rank {rank}, step 1: {steps[1]}")

# %% [markdown]
# Rank 0 alone looks as if communication took all its time. It waited for rank 1, which waited for its data. The rank that came
# last waits for nobody, so its `sync` is the shortest. The rule of this lesson:
#
# 1. In each step take the rank with the least `sync`; its three parts are the step.
# 2. Leave out the first step, which pays for warming up.
# 3. Take `statistics.median_low` of each part over the other steps: one step that opens a new file must not decide.
# 4. The longest part names what the step is bound by: `"input-bound"` (data), `"compute-bound"` or `"communication-bound"` (sync).


# %% tags=["exercise"]
def typical_step(trace):
    """The typical step of `trace`; trace[rank][step] is {"data": ..., "compute": ..., "sync": ...}.

    Return {"data": ..., "compute": ..., "sync": ..., "bound": ...} by the four rules above.
    """
    ### BEGIN SOLUTION
    last = [min(step, key=lambda one: one["sync"]) for step in zip(*trace)]
    names = {"data": "input-bound", "compute": "compute-bound", "sync": "communication-bound"}
    typical = {part: statistics.median_low(one[part] for one in last[1:]) for part in names}
    return {**typical, "bound": names[max(typical, key=typical.get)]}
    ### END SOLUTION


# %% tags=["hint"]
hint("01-bound")

# %% [markdown]
# ## Check: what is it bound by?
# Four traces that were recorded on two ranks each.

# %% tags=["check"]
check("01-bound", typical_step)

# %% tags=["nbval-check-output"]
if solved("01-bound"):
    for name, trace in recorded_traces().items():
        print(f"trace {name}: {typical_step(trace)}")

# %% [markdown]
# ## Look: one step of your own run
# Your two functions on real ranks: the job of the beginning on one, two and four ranks, all on one disk.


# %%
def timeline(disks, width, split):
    """This rank's trace of nine steps, in seconds."""
    with world() as w:
        return split(*three_parts(w, disks[w.rank % len(disks)], width), 9, time.perf_counter)


def step_of(n, disks, width=64):
    return typical_step(launch(timeline, n, disks, width, split, timeout=30, echo=False))


# %% tags=["varies"]
ready = solved("01-split") and solved("01-bound")
if ready:
    with running("one, two and four ranks"):
        names = {1: "1 rank, one disk", 2: "2 ranks, one disk", 4: "4 ranks, one disk"}
        steps = {name: step_of(n, [one_disk]) for n, name in names.items()}
    show(step_figure(steps))
else:
    print("to do: solve 01-split and 01-bound, then run this cell again")

# %% [markdown]
# With $n$ ranks on one disk the last of them waits $n$ times as long for its rows. Computing takes as long as before.
#
# ## Build it: predict before you scale
# One rank takes $T_1 = d + c$ seconds a step (data, compute). On $n$ ranks the step takes $T_n = d_n + c + s$, with $d_n = n\,d$ when
# they share a disk and $d_n = d$ when each has its own, and with the sync of $s$ seconds when there is more than one rank. In that
# step $n$ times as many rows are trained on.


# %% tags=["exercise"]
def speedup(n, data, compute, sync, shared):
    """Rows per second on `n` ranks, divided by rows per second on one.

    `data` and `compute` are seconds of one rank's step, `sync` is the sync among n ranks.
    `shared` says whether all ranks read from one disk. Reading and computing do not overlap.
    """
    ### BEGIN SOLUTION
    one = data + compute
    many = (n * data if shared else data) + compute + (sync if n > 1 else 0)
    return n * one / many
    ### END SOLUTION


# %% tags=["hint"]
hint("01-speedup")

# %% [markdown]
# ## Check: predict before you scale

# %% tags=["check"]
check("01-speedup", speedup)

# %% [markdown]
# ## The real thing: predicted and measured
# From one rank's step and the sync of two ranks, predict one disk for all and a disk for each; then run it.

# %% tags=["varies"]
predictions = ready and solved("01-speedup")
disks = [SharedDisk(RATE) for _ in range(4)]
own = {1: measured[1]}
for n in (2, 4):
    own[n] = min(launch(rows_per_second, n, disks, timeout=30, echo=False))
if predictions:
    d, c = (steps["1 rank, one disk"][part] for part in ("data", "compute"))
    s = steps["2 ranks, one disk"]["sync"]
    print(f"d = {d * 1e3:.2f} ms, c = {c * 1e3:.2f} ms, s = {s * 1e3:.2f} ms")
    print(f"a disk each, 4 ranks: 4 x ({d:.4f} + {c:.4f}) / ({d:.4f} + {c:.4f} + {s:.4f})")
    for shared, runs in ((True, measured), (False, own)):
        for n in (2, 4):
            told = f"{'one disk for all' if shared else 'a disk each':17} {n} ranks"
            told += f": predicted {speedup(n, d, c, s, shared):.2f}x"
            print(f"{told}, measured {runs[n] / runs[1]:.2f}x")
show(throughput_figure(own))

# %% [markdown]
# If the last line falls short (3.7x predicted and 2.2x measured is usual on a laptop of two cores): the formula
# gives every rank a processor of its own, as every rank has a card of its own on a cluster. Here four ranks share this machine's cores. Their
# reading overlaps all the same, since a rank that waits for its disk needs no core; their computing and their sync queue for the cores, and a rank that has no core keeps the
# others waiting in sync. With as many cores as ranks the two columns come close.
#
# With one disk and no sync your formula is $\frac{n(d+c)}{n d + c}$, and with $f = \frac{d}{d+c}$ it becomes
# $\frac{1}{f + (1-f)/n}$. That is **Amdahl's law**: the share $f$ of the work that is not divided limits the speed-up to
# $1/f$, on any number of ranks. Move the share, and see where the measured points lie:

# %% tags=["varies"]
share = d / (d + c) if predictions else scaling.implied_serial_share(measured[4] / measured[1], 4)
share = min(1.0, max(0.01, share))
most = f"1 / {share:.2f} = {1 / share:.2f}x"
print(f"serial share f = {share:.2f}: at most {most} on any number of ranks")
amdahl_explorer(share, {n: rows / measured[1] for n, rows in measured.items()})

# %% [markdown]
# S0 gives speed-ups of data parallel as 1.8x on 2, 3.2x on 4 and 5.6x on 8. Turned round, Amdahl's law says which serial share
# each of them needs:

# %% tags=["nbval-check-output"]
for n, claimed in ((2, 1.8), (4, 3.2), (8, 5.6)):
    f = scaling.implied_serial_share(claimed, n)
    told = f"f = ({n}/{claimed} - 1) / ({n} - 1) = {f:.3f}"
    print(f"{claimed}x on {n}: {told}, efficiency {claimed / n:.0%}")

# %% [markdown]
# Three different shares: these runs are not held back by one serial part. What grows with the ranks there is
# communication, 10, 20 and 30 % of the step. The figures are plausible, and the law does not describe them. Predict with the parts of the step.
#
# ### Prove it: take one part away
# A split by clock can be wrong. An experiment is harder to argue with: feed the same job from memory, then halve its network, one
# at a time. The part whose removal changes the throughput is the one that the job is bound by.

# %% tags=["varies"]
as_it_is = measured[1]
from_memory = launch(rows_per_second, 1, [None], steps=99, timeout=30, echo=False)[0]
half_network = launch(rows_per_second, 1, [one_disk], width=32, timeout=30, echo=False)[0]
print(f"as it is: 1.00x; rows from memory: {from_memory / as_it_is:.2f}x")
print(f"half the network: {half_network / as_it_is:.2f}x")
assert from_memory > as_it_is, "the disk was not what this job waited for"

# %% [markdown]
# ### In dtlab's own training loop
# `Trainer` keeps the same account: the share of time that it waited for data, and the share in gradient all-reduces.


# %%
from dtlab.data.batch import Batch


class Scores(nn.Module):
    """A small network of the dense columns."""

    def __init__(self, columns):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(columns, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, categorical, dense):
        return self.net(dense).squeeze(1)


def trainer_shares(rows=4096, columns=16):
    with world(seed=0):
        dense = torch.randn(rows, columns)
        no_categories = torch.zeros(rows, 0, dtype=torch.int64)
        table = Batch(torch.arange(rows), no_categories, dense, (dense[:, 0] > 0).float())
        model = Scores(columns)
        trainer = dtlab.Trainer(model, torch.optim.AdamW(model.parameters()), show_progress=False)
        loader = dtlab.Loader(table, dtlab.GlobalBatchSampler(rows, 256))
        done = trainer.train_epoch(loader)
        return done.samples_per_second, done.wait_share, done.communication_share


# %% tags=["varies"]
shares = launch(trainer_shares, 2, timeout=30, echo=False)
for rank, (rows, wait, communication) in enumerate(shares):
    bound = scaling.classify_step(wait, max(0.0, 1 - wait - communication), communication)
    print(f"rank {rank}: {rows:,.0f} rows/s, data {wait:.0%}, sync {communication:.0%}: {bound}")

# %% [markdown]
# A small network on shared cores: expect sync to be large, because in it a rank waits for the other to get its turn. Print these two
# shares and the memory every 100 steps of every job (S4's checklist asks for it; `dtlab train` does it).
#
# ## On a GPU
# Two things change. A card works behind the back of Python: `compute(batch)` returns before the card has computed, and the time
# turns up in the next part that waits, often `sync`. Call `torch.cuda.synchronize()` before each reading of the clock, or use
# CUDA events. And `nvidia-smi`'s utilisation is the share of time in which *any* kernel ran: a rank that waits inside NCCL shows
# about 100 %. S0's and S4's "80 or 70 % is healthy" can hold for a card that does nothing but wait.

# %% tags=["gpu-optional", "varies"]
if torch.cuda.is_available():
    x = torch.randn(4096, 4096, device="cuda")
    for wait in (False, True):
        torch.cuda.synchronize()
        began = time.perf_counter()
        x @ x
        if wait:
            torch.cuda.synchronize()
        taken = time.perf_counter() - began
        print(f"{'with' if wait else 'without'} synchronize: {taken * 1e3:.3f} ms")
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# S0's epochs: 142 minutes on one card from disk, 31 on four and 18 on eight with a cache, of which communication 12 and 22 %. How
# much of the 142 minutes was disk, and what would eight cards on that disk have taken?

# %% tags=["nbval-check-output"]
computing = 31 * (1 - 0.12) * 4
disk = 142 - computing
eight = disk + computing / 8
print(f"computing on one card: 31 x 0.88 x 4 = {computing:.0f} min", end=" ")
print(f"(from eight: 18 x 0.78 x 8 = {18 * 0.78 * 8:.0f})")
print(f"waiting for the disk:  142 - {computing:.0f} = {disk:.0f} min, {disk / 142:.0%}")
print(f"eight cards, one disk: {disk:.0f} + {computing:.0f} / 8 = {eight:.1f} min, plus the sync")
print(f"at most 1 / {disk / 142:.2f} = {142 / disk:.1f}x on any number of cards with that disk")

# %%
bill(
    "8 cards on the one disk, an epoch",
    "8 cards with a cache, as S0 ran it",
    instance="ml.p3.16xlarge",
    fault_seconds=eight * 60,
    fix_seconds=18 * 60,
)

# %% [markdown]
# S0 counts the whole way from 142 to 18 minutes as the gain of cards. It is two gains: about 1.3x from the cache, and 6.1x from eight
# cards. Lesson 14 takes the rest of his table apart.
#
# ## Recap

# %%
recap(
    "01",
    [
        "Ranks divide computing. A disk that all share stays as slow as it is: "
        "find the serial share before you buy cards.",
        "Data parallel divides the data, not the model: every rank holds 16 bytes a parameter "
        "(Adam, FP32) and its activations.",
        "Split the step on the rank that comes last, name the longest part, take it away to prove it, "
        "and predict before you scale.",
    ],
)
