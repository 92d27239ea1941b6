# %% [markdown]
# # Data parallel from scratch
#
# Eight processes on two hosts trained a recommender for an afternoon, and each of them printed its loss. They never
# exchanged a gradient, so eight models came out where one was wanted; the author puts the bill at nearly \$200.
#
# What has to cross between the ranks so that they train *one* model, when does it have to cross, and how do you see after
# a single step that it did?
#
# (The script is that of an engineer who got eight cards for a new recommender: S4. S0, below, is a recommender team that moved from one
# card to SageMaker. 00 says more about both write-ups.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, goal, hint, predict, recap, running, solved

goal(
    [
        "tell from one step whether N processes train one model or N",
        "build data parallelism: broadcast, mean of the gradients, buckets, and when to synchronise",
        "say what changes between DDP's wrapper, Horovod's wrapper and asynchronous SGD",
    ],
    minutes=55,
    needs=["01", "02"],
)

# %% tags=["hide-input"]
import math
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dtlab import launch, traffic, world
from dtlab.figures.data_parallel import backward_figure, hash_figure, models_per_step
from dtlab.figures.style import show
from dtlab.parallel import HandDDP, data_parallel, parameter_hash, record_backward, unwrap

# %% [markdown]
# ## Predict
# Four ranks start from the same weights. Each calls `init_process_group`, reads its own shuffled batches, and does forward,
# backward and `optimizer.step()`. Nothing else. Commit to an answer before you go on.

# %%
ask = predict(
    "03-models",
    "How many different models are there after the first step?",
    [
        "1: the process group keeps them together",
        "2: rank 0's and everybody else's",
        "4",
        "1 now, 4 at the end of the epoch",
    ],
)

# %% [markdown]
# ## Break it: S4's script, as printed
# A small network in float64 and a table that every process can make for itself. (In float64, "equal" can mean twelve digits.)


# %%
def new_model(seed):
    """The network with weights drawn from `seed`; leaves this process's own random numbers alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()


def table(rows=1024):
    """Features [rows, 8] and labels 0 or 1 [rows, 1], the same on every rank."""
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, (x[:, :4].sum(1, keepdim=True) > 0).double()


loss_of = F.binary_cross_entropy_with_logits  # mean over the rows that it is given

# %% [markdown]
# The script, with `"gloo"` for `"nccl"` and without `.to(rank)`; the optimizer is that of his final version, which became the
# team's template and has no wrapper in its listing either. He sets no seed; here every rank starts from the same weights,
# which is kinder than the original. The last two lines of the loop are ours: they note the loss and a hash of all parameters.
# Two ranks have the same hash when every bit agrees.


# %% tags=["lab-failure"]
def s4_script(steps):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = new_model(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001 * world_size)
    loader = DataLoader(TensorDataset(*table()), batch_size=64, shuffle=True)
    losses, hashes = [], [parameter_hash(model)]
    with traffic() as sent:
        for _, (x, y) in zip(range(steps), loader):
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            hashes.append(parameter_hash(model))
    return losses, hashes, sent.bytes


# %% tags=["lab-failure", "nbval-check-output"]
with running("twelve steps on four ranks"):
    runs = launch(s4_script, 4, 12, timeout=30, echo=False)
s4_hashes = [hashes for _, hashes, _ in runs]
falls = [sum(losses[-4:]) < sum(losses[:4]) for losses, _, _ in runs]
models = models_per_step(s4_hashes)
print("loss falls, by rank:", falls)
print("bytes sent between ranks, by rank:", [sent for _, _, sent in runs])
print("different models before the first step:", models[0])
print("different models after it:", models[1], "- and at the end:", models[-1])
assert all(falls) and models == [1] + [4] * 12

# %%
ask.reveal(
    "c",
    because="init_process_group only makes it possible to communicate. Nobody did: 0 bytes crossed.",
)

# %% [markdown]
# No error, no warning, and four losses that fall. This is the usual face of a fault in data parallelism. S4 believed that
# "calling init_process_group is distributed training". He stared at the loss for two hours, and found the cause elsewhere, in CloudWatch. The
# loss of a rank cannot show it: each of the four is a sound training run, of another model.
#
# His own conclusion is right: **"data parallel is not starting several processes"**.
#
# ## Look: one hash for each rank and step
# Equal text is the same model. Step 0 is before the first step.

# %%
show(hash_figure({"S4's script": [row[:8] for row in s4_hashes]}))

# %% [markdown]
# S0's advice for this is to "print parts of the gradients on each rank and compare". A hash compares all of the parameters, to
# the last bit, in a few letters.
#
# ## Break it: an all-reduce, but not quite
# The next attempt is one line: add up the gradients. Three variants on four ranks, each with SGD and with Adam:
# `mean` is right, `sum` forgets to divide, `no broadcast` divides but lets each rank draw its own first weights.


# %% tags=["lab-failure"]
def attempt(optimizer_class, own_weights, divisor):
    """Length of the first step; distance to rank 0's parameters before it, and after five steps."""
    with world() as w:
        model = new_model(seed=w.rank if own_weights else 0)
        optimizer = optimizer_class(model.parameters(), lr=0.01)
        x, y = (column[w.rank :: w.size] for column in table())
        states = [flat(model)]
        for part in torch.arange(80).split(16):
            loss_of(model(x[part]), y[part]).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)  # the sum over the ranks
                parameter.grad /= divisor
            optimizer.step()
            optimizer.zero_grad()
            states.append(flat(model))
        apart = [(w.broadcast(state) - state).norm().item() for state in states]
        return (states[1] - states[0]).norm().item(), apart[0], apart[-1]


def flat(model):
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


# %% tags=["lab-failure", "nbval-check-output"]
def all_attempts():
    ways = {"mean": (False, 4), "sum": (False, 1), "no broadcast": (True, 4)}
    kinds = (torch.optim.SGD, torch.optim.Adam)
    with world():
        return {(kind.__name__, way): attempt(kind, *ways[way]) for kind in kinds for way in ways}


found = launch(all_attempts, 4, timeout=30, echo=False)[1]  # rank 1's view
print("                   first step   distance to rank 0")
print("                   to the mean's  at first  after 5 steps")
for (kind, way), (step, before, after) in found.items():
    longer = f"{step / found[kind, 'mean'][0]:.2f}" if way != "no broadcast" else "-"
    print(f"{kind:5} {way:12} {longer:>10} {before:13.3f} {after:12.3f}")
assert round(found["SGD", "sum"][0] / found["SGD", "mean"][0], 6) == 4
assert found["SGD", "no broadcast"][2] > 1

# %% [markdown]
# Read it like this.
#
# - **Sum.** The replicas agree, every hash is equal, and with SGD each step is $N$ times too long:
#   $\eta \sum_r g_r = N \cdot \eta \frac{1}{N}\sum_r g_r$, here $4 \times 0.01 = 0.04$ in place of 0.01. With Adam the ratio is 1.00: Adam divides the
#   gradient by its own size, so the fault hides until somebody changes the optimizer or clips the gradients.
# - **No broadcast.** Every rank adds the *same* update to *other* weights. So the distance never grows, and never
#   shrinks. Averaging gradients keeps replicas together; it does not bring them together.
#
# S0 asks for "the same seed, one initial parameter broadcast". The broadcast is what makes replicas equal. The same seed on every rank
# would also give every rank the same dropout, which is wrong, and the same shuffle, which lesson 04 looks at.
#
# ## Build it: one model
# Two functions. Every rank calls them, in the same order.


# %% tags=["exercise"]
def same_start(model):
    """Give every rank the values of rank 0 in model.parameters() and model.buffers().

    tensor.detach() is the same memory without autograd: that is what to hand to dist.broadcast.
    """
    ### BEGIN SOLUTION
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    ### END SOLUTION


def average_gradients(model):
    """After backward: make every parameter's .grad the mean over all ranks.

    One all-reduce for each parameter. A frozen parameter has .grad None: leave it out.
    """
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    ### END SOLUTION


# %% tags=["hint"]
hint("03-average")

# %% [markdown]
# ## Check: one model
# Three ranks that start from other weights, a frozen layer and a buffer; then three steps of SGD beside one process that sees the
# whole batch.

# %% tags=["check"]
check("03-average", average_gradients, same_start)

# %% [markdown]
# Now the same table of hashes, with your two functions in S4's loop. Each rank takes every fourth row (lesson 04 builds the sampler).


# %%
def averaged_run(steps, start, average):
    with world() as w:
        model = new_model(seed=w.rank)
        start(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
        hashes = [parameter_hash(model)]
        x, y = (column[w.rank :: w.size] for column in table())
        for part in torch.arange(16 * steps).split(16):
            loss_of(model(x[part]), y[part]).backward()
            average(model)
            optimizer.step()
            optimizer.zero_grad()
            hashes.append(parameter_hash(model))
        return hashes


if solved("03-average"):
    averaged = launch(averaged_run, 4, 5, same_start, average_gradients, timeout=20, echo=False)
    show(hash_figure({"S4's script": [row[:6] for row in s4_hashes], "averaged": averaged}))

# %% [markdown]
# ## Build it: buckets
# One all-reduce for each parameter pays the latency of a message for each bias of eight numbers. One all-reduce for everything
# must wait for the last gradient. *Buckets* are between the two. Backward meets the last layer first, so buckets are filled from
# the last parameter to the first, and the first bucket can travel while backward still computes.


# %% tags=["exercise"]
def average_in_buckets(model, bucket_bytes):
    """Like average_gradients, with one all-reduce for each bucket. Return the number of buckets.

    Go through the parameters from the last to the first. A gradient joins the open bucket unless
    the bucket would then hold more than bucket_bytes (gradient.nbytes); then a new bucket begins.
    So a larger gradient travels alone. A bucket travels as one flat tensor: torch.cat of the
    flattened gradients; cut it with split, and copy the means back. Every gradient is there.
    """
    ### BEGIN SOLUTION
    buckets, filled = [[]], 0
    for parameter in reversed(list(model.parameters())):
        gradient = parameter.grad
        if buckets[-1] and filled + gradient.nbytes > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(gradient)
        filled += gradient.nbytes
    for gradients in buckets:
        bucket = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(bucket)
        bucket /= dist.get_world_size()
        means = bucket.split([gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means):
            gradient.copy_(mean.view_as(gradient))
    return len(buckets)
    ### END SOLUTION


# %% tags=["hint"]
hint("03-buckets")

# %% [markdown]
# ## Check: buckets
# Bytes of every all-reduce, in order, for bucket sizes from one number to everything; then the means.

# %% tags=["check"]
check("03-buckets", average_in_buckets)

# %% [markdown]
# ## Look: buckets on the time line
# Your function starts when backward is over. `dtlab.parallel.HandDDP` does what torch's DDP does: a *hook* on every parameter says when
# its gradient is there, and the all-reduce of a bucket starts when its last gradient has come. Two ranks, six layers of 512 x
# 512 numbers (1.05 MB each), and buckets that hold two of them. `record_backward` notes the times.


# %% tags=["varies"]
def recorded(width=512, bucket_mb=2.102):
    with world() as w:
        layers = [nn.Linear(width, width) for _ in range(6)]
        model = HandDDP(nn.Sequential(*layers), bucket_mb=bucket_mb)
        inputs = torch.randn(256, width)
        model(inputs).square().mean().backward()  # allocates memory: look at the second
        loss = model(inputs).square().mean()
        w.barrier()
        with record_backward(model) as line:
            loss.backward()
        return line


lines = launch(recorded, 2, timeout=30, echo=False)
show(backward_figure(lines))

# %% tags=["nbval-check-output"]
for line in lines:
    print(f"rank {line.rank}: bytes of its all-reduces:", [trip.bytes for trip in line.trips])
print("layers in bucket 0:", sorted({name.split(".")[0] for name in lines[0].trips[0].names}))
assert all(len(line.trips) == 3 for line in lines)

# %% [markdown]
# Three things to see. A layer has the colour of the bucket it travels in. A bucket starts under the layer that completes it, not at
# the end. And the last bucket holds the *first* layers, whose gradients come last: nothing is left to compute behind which it could hide, so its time is always
# added to the step.
#
# On a machine where ranks share the cores, an all-reduce also takes time from backward. That is why `dtlab.data_parallel` takes
# one bucket on a CPU and 25 MiB buckets on a GPU. Lesson 10 measures where the best size lies.
#
# A hook has a weak spot: a parameter that the loss does not reach never reports, and its bucket never leaves. `data_parallel` names such a parameter
# before the optimizer steps (lesson 12).
#
# ## Build it: when to synchronise
# The question that S4 was asked most. With accumulation, one optimizer step uses the gradients of $k$ micro-batches. Gradients are sums:
# they can be added on each rank first and averaged over ranks once, and the result is the same. Synchronising after each micro-batch sends
# $k$ times as many bytes. A model wrapped in DDP has `model.no_sync()`: forward and backward inside it leave the gradients on their rank.


# %% tags=["exercise"]
def accumulate(model, micro_batches, loss_of):
    """Leave in .grad the gradient over all micro-batches of all ranks. Return this rank's mean loss.

    micro_batches is a list of (x, y), all of one size. model is wrapped: a backward outside
    `with model.no_sync():` averages everything that has accumulated on the ranks. Divide each loss
    by the number of micro-batches. The forward belongs inside no_sync() too. The loss returned is a
    float, not a tensor.
    """
    ### BEGIN SOLUTION
    count, total = len(micro_batches), 0.0
    for number, (x, y) in enumerate(micro_batches, start=1):
        is_last = number == count
        with nullcontext() if is_last else model.no_sync():
            loss = loss_of(model(x), y) / count
            loss.backward()
        total += loss.item()
    return total
    ### END SOLUTION


# %% tags=["hint"]
hint("03-accumulate")

# %% [markdown]
# ## Check: when to synchronise
# With dtlab's wrapper and with torch's DDP, one, three and four micro-batches: count the all-reduces, then compare with one process.

# %% tags=["check"]
check("03-accumulate", accumulate)

# %% [markdown]
# ## The real thing: four ways, one model
# One call wraps a model: `dtlab.data_parallel(model, engine="torch")` uses torch's DDP, `engine="by_hand"` the class of the time line.
# Both beside your functions, and beside one process that trains on the joined batch. Two ranks, five steps, SGD.


# %%
def five_steps(way, *functions):
    """Parameters after five steps, and the all-reduces and bytes of the last one."""
    with world() as w:
        model = new_model(seed=w.rank)
        if way == "yours":
            functions[0](model)
        else:
            model = data_parallel(model, w, engine=way)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        x, y = table()
        for batch in torch.arange(160).split(32):
            mine = batch[w.rank :: w.size]
            with traffic() as sent:
                loss_of(model(x[mine]), y[mine]).backward()
                if way == "yours":
                    functions[1](model, 1e6)
            optimizer.step()
            optimizer.zero_grad()
        return flat(unwrap(model)), sent.by_op["all_reduce"].calls, sent.bytes


# %% tags=["nbval-check-output"]
(alone, _, _), = launch(five_steps, 1, "torch", timeout=20, echo=False)
ways = {"torch": (), "by_hand": ()}
if solved("03-average") and solved("03-buckets"):
    ways["yours"] = (same_start, average_in_buckets)
for way, functions in ways.items():
    both = launch(five_steps, 2, way, *functions, timeout=20, echo=False)
    (first, calls, sent), (second, _, _) = both
    same, close = torch.equal(first, second), torch.allclose(first, alone, rtol=0, atol=1e-12)
    print(f"{way:8} replicas equal: {same}; equal to one process: {close};", end=" ")
    print(f"all-reduces a step: {calls}; bytes sent a step: {sent:,}")
    assert same and close and calls == 1
S = alone.numel() * 8
print(f"2(N-1)/N x S = 2 x 1 / 2 x {S:,} = {S:,} bytes")

# %% [markdown]
# S0 lets the loss curves of one card and of many differ by 5 %. With the same batch, order and learning rate they do not differ by more
# than rounding: here twelve digits agree. A difference of 5 % is a fault to find (or another global batch, which is another experiment).
#
# S4 also writes that "distributed training exists because one card's memory is too small". Look at what each rank held: all $S$ bytes of
# parameters, all of the gradients, all of the optimizer's state, plus the bucket. Data parallelism saves no memory of the model. For it to
# be the remedy, the memory would have to be taken by the *batch*, which it does divide. Splitting the model is lessons 07 to 09.
#
# ### Horovod's place for the same all-reduce
# DDP wraps the *module*: gradients are averaged during backward. Horovod wraps the *optimizer*: gradients are averaged by the time that
# `step()` changes a weight. (Horovod starts its all-reduces in hooks too, and waits for them in `step`.) The same idea in ten
# lines, with your functions:


# %%
class AveragingOptimizer:
    """An optimizer that averages the gradients over ranks before each step. The model stays plain."""

    def __init__(self, optimizer, model, average):
        self.optimizer, self.model, self.average = optimizer, model, average

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.average(self.model)
        self.optimizer.step()


# %% tags=["nbval-check-output"]
def largest_difference(clip, start, average):
    """Between the parameters of a wrapped optimizer and those of DDP, after five steps."""
    with world() as w:
        plain, ddp = new_model(seed=w.rank), data_parallel(new_model(seed=w.rank), w)
        start(plain)  # Horovod: broadcast_parameters; DDP did it when it wrapped
        inner, usual = (torch.optim.SGD(model.parameters(), lr=0.5) for model in (plain, ddp))
        wrapped = AveragingOptimizer(inner, plain, average)
        x, y = table()
        for batch in torch.arange(160).split(32):
            mine = batch[w.rank :: w.size]
            for model, optimizer in ((plain, wrapped), (ddp, usual)):
                loss_of(model(x[mine]), y[mine]).backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        return (flat(plain) - flat(unwrap(ddp))).abs().max().item()


if solved("03-average"):
    for clip in (0, 0.1):
        functions = (same_start, average_gradients)
        apart = max(launch(largest_difference, 2, clip, *functions, timeout=20, echo=False))
        print(f"{'clipped' if clip else 'not clipped'}: the same weights as DDP: {apart < 1e-12}")
        assert (apart < 1e-12) == (not clip)

# %% [markdown]
# The same weights, until a line stands between backward and step. Clipping there sees the *mean* under DDP and each rank's *own* gradient under an optimizer
# wrapper. Horovod's way out is to call `optimizer.synchronize()` before clipping, and to step inside `optimizer.skip_synchronize()`. What else differs:
#
# | | DDP wraps the module | Horovod wraps the optimizer |
# |---|---|---|
# | first weights | broadcast when it wraps | you call `broadcast_parameters` |
# | `.grad` after backward | the mean over ranks | may still be this rank's own |
# | accumulation | `with model.no_sync():` | `backward_passes_per_step=k` |
# | saving | unwrap, or keys start with `module.` | the model is plain |
#
# ### The trainer
# `dtlab.Trainer` is what the rest of the course trains with. One thing it adds: shares of unequal size. Ranks average their gradients,
# so it multiplies each rank's *sum* of losses by $N/B$, with $B$ the rows of the global batch: $\frac{1}{N}\sum_r \frac{N}{B}\sum_{i \in r} \nabla\ell_i = \frac{1}{B}\sum_i \nabla\ell_i$.
# A mean of means would weigh the rows of a small share more. A recommender's DeepFM on a piece of the generated click log, 49 rows a step so that the shares
# are 25 and 24:


# %%
from dtlab import GlobalBatchSampler, Loader, Trainer, load_dataset
from dtlab.data.config import DataConfig
from dtlab.models.deepfm import DeepFM


def train_clicks(rows, cardinalities, num_dense, engine):
    with world() as w:
        torch.manual_seed(0)
        model = DeepFM(cardinalities, num_dense, dim=4, hidden=(16,)).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        trainer = Trainer(model, optimizer, engine=engine, show_progress=False)
        loader = Loader(rows, GlobalBatchSampler(len(rows), 49), prefetch=0)
        result = trainer.train_epoch(loader, max_steps=10)
        return parameter_hash(unwrap(trainer.model)), flat(unwrap(trainer.model)), result


clicks = load_dataset(DataConfig(name="clicks", rows=4000))
piece = clicks.train.to("cpu", dtype=torch.float64), clicks.cardinalities, clicks.num_dense

# %% tags=["nbval-check-output"]
(_, alone, _), = launch(train_clicks, 1, *piece, "torch", timeout=30, echo=False)
print(f"49 rows a step: {25 / 49:.3f} of them on rank 0, {24 / 49:.3f} on rank 1")
for engine in ("torch", "by_hand"):
    results = launch(train_clicks, 2, *piece, engine, timeout=30, echo=False)
    hashes = {one[0] for one in results}
    close = torch.allclose(results[0][1], alone, rtol=0, atol=1e-10)
    print(f"{engine:8} {results[0][2].steps} steps: {len(hashes)} model;", end=" ")
    print("equal to one process:", close)
    assert close and len(hashes) == 1

# %% [markdown]
# The whole job, with data set, metrics, best epoch and report, is one command. On this machine, or on any number of hosts with torchrun, which
# starts the ranks itself; and with the by-hand engine:
#
# ```
# dtlab train examples/flights.toml --nproc 2
# torchrun --nproc-per-node 2 -m dtlab.train examples/flights.toml
# dtlab train examples/flights.toml --nproc 2 --run.engine by_hand
# ```
#
# ### Synchronous or asynchronous?
# All of the above is *synchronous*: in every step all wait for the slowest. In *asynchronous* SGD a worker sends its gradient to a parameter server
# when it has one, takes the newest weights, and goes on. Nobody waits. The price: while a worker computed, others changed the
# weights, so its gradient is *stale*. Here is a simulation of it: the gradients are real, the clock is not. Four workers, one of them four
# times slower, fit a linear model.


# %%
truth = torch.linspace(-1, 1, 8, dtype=torch.float64)
X = table()[0]
noise = torch.randn(len(X), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
Y = X @ truth + 0.1 * noise


def micro_batches(size=16):
    """Endless micro-batches of row numbers."""
    generator = torch.Generator().manual_seed(3)
    while True:
        yield from torch.randperm(len(X), generator=generator).split(size)


def gradient(weights, rows):
    return 2 * X[rows].T @ (X[rows] @ weights - Y[rows]) / len(rows)


def synchronous(seconds, until, lr):
    """Weights at time `until`. A step lasts as long as the slowest worker; nothing is stale."""
    weights, rows = torch.zeros(8, dtype=torch.float64), micro_batches()
    for _ in range(int(until // max(seconds))):
        mean = sum(gradient(weights, next(rows)) for _ in seconds) / len(seconds)
        weights = weights - lr * mean
    return weights, []


# %%
def asynchronous(seconds, until, lr):
    """Weights at time `until`; for each update, how many others came between its read and write."""
    weights, rows, staleness = torch.zeros(8, dtype=torch.float64), micro_batches(), []
    copies, read_at, ready = [weights] * len(seconds), [0] * len(seconds), list(seconds)
    while min(ready) <= until:
        worker = ready.index(min(ready))
        weights = weights - lr * gradient(copies[worker], next(rows))  # at the weights that it read
        staleness.append(len(staleness) - read_at[worker])
        copies[worker], read_at[worker] = weights, len(staleness)
        ready[worker] += seconds[worker]
    return weights, staleness


# %% tags=["nbval-check-output"]
seconds = [1, 1, 1, 4]
_, staleness = asynchronous(seconds, 40, 0.02)
steps = 40 // max(seconds)
mean = sum(staleness) / len(staleness)
print(f"in 40 simulated seconds: {steps} synchronous updates of 64 rows,", end=" ")
print(f"{len(staleness)} asynchronous ones of 16 rows")
print(f"staleness: mean {mean:.2f} (N - 1 = {len(seconds) - 1}), worst {max(staleness)}")
for lr in (0.02, 0.3):
    fitted = [way(seconds, 40, lr)[0] for way in (synchronous, asynchronous)]
    errors = [(X @ weights - Y).square().mean().item() for weights in fitted]
    print(f"lr {lr:4}: square error, synchronous {errors[0]:.2g}, asynchronous {errors[1]:.2g}")

# %% [markdown]
# Both halves are true. At a small rate the asynchronous run, in which nobody waits for the slow worker, is far ahead at the same time. At a rate
# that the synchronous run takes without trouble, the asynchronous one blows up. For a gradient that is always $\tau$ updates old, steps are stable while
# $\eta\lambda < 2 \sin\frac{\pi}{2(2\tau+1)}$, with $\lambda$ the largest curvature (Levin and May, 1976). With the numbers of this run:

# %% tags=["nbval-check-output"]
curvature = torch.linalg.eigvalsh(2 * X.T @ X / len(X))[-1].item()
for tau in (0, 3):
    bound = 2 * math.sin(math.pi / (2 * (2 * tau + 1)))
    print(f"tau = {tau}: lr < {bound:.3f} / {curvature:.2f} = {bound / curvature:.2f}")

# %% [markdown]
# The mean delay is $N-1$, so the largest stable rate falls about as $1/N$: each worker more costs step length. And the result depends on who came first, so
# no run can be repeated bit for bit. That, and networks on which waiting became cheap, is why this course and DDP are synchronous. What is not
# settled here: how much staleness a given deep network bears. This is a linear model.
#
# ## On a GPU
# The same code with NCCL. Each rank takes the card of its local rank, and buckets are 25 MiB, because there the all-reduce runs beside backward.

# %% tags=["gpu-optional"]
if torch.cuda.is_available():

    def on_card():
        with world(backend="nccl") as w:
            model = data_parallel(new_model(seed=w.rank), w)
            x, y = (column[w.rank :: w.size].to(w.device) for column in table())
            loss_of(model(x), y).backward()
            torch.optim.SGD(model.parameters(), lr=0.5).step()
            return parameter_hash(unwrap(model))

    hashes = launch(on_card, torch.cuda.device_count(), timeout=60)
    print(f"{len(hashes)} ranks, {len(set(hashes))} model")
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# S4 writes of nearly \$200 for one more afternoon, on two `ml.g4dn.12xlarge`. Take five hours for an afternoon, and compare with a job that
# compares hashes after its first step and stops:

# %%
bill(
    "eight models, five hours",
    "the same job, stopped by a hash after one minute",
    instance="ml.g4dn.12xlarge",
    count=2,
    fault_seconds=5 * 3600,
    fix_seconds=60,
)

# %% tags=["nbval-check-output"]
from dtlab.cost import billing

hour = billing.cost("ml.g4dn.12xlarge", 3600, count=2).usd
print(f"two hosts: ${hour:.2f} an hour; five hours: ${5 * hour:.2f}")
print(f"$200 buys {200 / hour:.1f} hours of two hosts, {100 / hour:.1f} of four")

# %% [markdown]
# So \$200 is not an afternoon on two hosts. For it to hold, the two hosts would have run about 20 hours (the overnight run before
# it, perhaps), or four hosts 10 hours, or there was more on the bill than the training job. His listing does not say how many hosts there were; eight
# processes on hosts of four cards are two.
#
# ## Recap

# %%
recap(
    "03",
    [
        "init_process_group shares nothing: broadcast once, average in every step, "
        "compare hashes after step 1.",
        "Mean, not sum; one all-reduce a bucket; "
        "with accumulation, synchronise on the last micro-batch only.",
        "Done right it equals one process on the joined batch; every rank holds the whole model.",
    ],
)
