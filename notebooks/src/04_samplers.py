# %% [markdown]
# # Samplers
#
# Eight cards read the same rows for an afternoon, because each process had a full loader of its own. The afternoon cost
# nearly \$200 by its author's account, was billed for eight cards, and learned as much as one.
#
# Which rank reads which sample, in which order, how often, and how do you prove it?
#
# (The incident is that of an engineer who got eight cards for a new recommender: S4. S0, below, is a recommender team that moved from one
# card to SageMaker. 00 says more about both write-ups.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, expect_failure, goal, hint, predict, recap, running
from dtlab.course import solved

goal(
    [
        "count which rank saw which sample: once, twice, never",
        "build a sampler whose order is the same on any number of ranks",
        "get the metric and the gradient of one process when the ranks hold uneven parts",
        "resume in mid-epoch, also on another number of ranks",
    ],
    minutes=45,
    needs=["02", "03"],
)

# %% tags=["hide-input"]
import subprocess
import sys
import warnings
from itertools import chain

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dtlab
from dtlab import DtlabWarning, GlobalBatchSampler, Loader, RankError, UserError
from dtlab import data_parallel, launch, world
from dtlab.cost import billing
from dtlab.data.batch import Batch
from dtlab.data.coverage import seen
from dtlab.data.evaluate import gather_by_id
from dtlab.data.torch_adapter import TorchBatchSampler, data_loader
from dtlab.figures.samplers import coverage_figure, order_figure
from dtlab.figures.style import show
from dtlab.models.deepfm import DeepFM
from dtlab.widgets.samplers import coverage_explorer

# %% [markdown]
# ## Predict
# S4's epoch took 22 minutes, with 8 processes that each read every row. Then he gave each process an eighth of the rows and
# changed nothing in the model. Commit to an answer before you go on.

# %%
ask = predict(
    "04-minutes",
    "Each card computes as many rows per minute as before. How long does the epoch take?",
    ["22 minutes", "11 minutes", "6 minutes", "2.75 minutes"],
)

# %% [markdown]
# ## Break it: a full loader in every process
# Fifty made-up clicks: a user, an item, two numbers, a label. Every row has an id, so that we can count what was read.

# %% tags=["hide-input"]
rows = 50
random = torch.Generator().manual_seed(4)
user = torch.randint(2, 8, (rows,), generator=random)
item = torch.randint(2, 6, (rows,), generator=random)
numbers = torch.randn(rows, 2, generator=random)
clicked = torch.rand(rows, generator=random) < torch.sigmoid(2 * numbers[:, 0] + (user % 3))
clicks = Batch(torch.arange(rows), torch.stack([user, item], 1), numbers, clicked.float())

# %% [markdown]
# S4's loop, with one repair: the data-parallel wrapper that his script lacked (lesson 03), so that gradients *are* averaged.
# The loader is as printed, `shuffle=True` and no sampler.


# %%
def full_loader(seed=None, epochs=2):
    """S4's loop on this rank: ids of each step, and loss of each step."""
    with world() as w:
        if seed is not None:
            torch.manual_seed(seed)
        model = data_parallel(DeepFM((8, 6), 2, dim=4, hidden=(8,)), w)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        table = TensorDataset(clicks.ids, clicks.categorical, clicks.dense, clicks.labels)
        ids, losses = [], []
        loader = DataLoader(table, batch_size=8, shuffle=True)
        for _ in range(epochs):
            for row, categorical, dense, label in loader:
                logits = model(categorical, dense)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ids.append(row.tolist())
                losses.append(loss.item())
        return ids, losses


# %% [markdown]
# Three runs: one process; four ranks with one seed ("same seed", as S0 advises); four ranks with the generators
# that `launch` gives them, a different one for each.

# %% tags=["lab-failure", "nbval-check-output"]
with running("one rank, then four, twice"):
    alone = launch(full_loader, 1, 0, timeout=30)
    alike = launch(full_loader, 4, 0, timeout=30)
    unlike = launch(full_loader, 4, None, timeout=30)
steps = len(alone[0][0]) // 2  # of one epoch


def epoch_rows(results):
    return [list(chain(*ids[:steps])) for ids, _ in results]


for name, run in {"1 process": alone, "4 seeded alike": alike, "4 orders": unlike}.items():
    read = epoch_rows(run)
    first = set(chain(*(ids[0] for ids, _ in run)))
    print(f"{name:14} {steps} steps, {sum(map(len, read)):3} rows read", end=" ")
    print(f"in an epoch of {rows}; different rows in step 1: {len(first)}")
    assert (seen(read, range(rows)).times == len(run)).all()

# %% [markdown]
# No error. Both runs on four ranks did four times the work: every row went through four ranks in "one" epoch. They are not
# the same fault. Compare the loss of rank 0, step by step, with the loss of the single process:

# %% tags=["lab-failure", "nbval-check-output"]
for name, run in {"4 seeded alike": alike, "4 orders": unlike}.items():
    apart = sum(a != b for a, b in zip(run[0][1], alone[0][1], strict=True))
    print(f"{name:14} {apart} of {2 * steps} losses differ from those of one process")
assert alike[0][1] == alone[0][1]
assert unlike[0][1] != alone[0][1]

# %% [markdown]
# - **Seeded alike**: four ranks compute one batch of 8 rows four times. The mean of four equal gradients is that gradient, so the
#   loss curve is that of one process to the last bit. You pay for N cards and get one.
# - **Each its own order**: a step has up to 32 rows, and an "epoch" is four passes. It does learn more per step, but the log says epoch
#   1 after four, and the learning rate was chosen for a batch of 8.
#
# S4 writes that his eight cards did exactly the same work. That was so only if their generators were equal; and then
# his loss was no noisier than on one card, so the "ECG" of his curve needs another reason (lesson 05).
#
# ## Break it: which of the two do I have?
# The launcher decides. This script loads torch, draws nothing, and makes two children by `fork`. This notebook's kernel is a
# process that was started apart, as each rank of `torchrun` is.

# %% tags=["lab-failure", "nbval-check-output"]
script = """
import os, torch
for child in range(2):
    if os.fork() == 0:
        print(torch.randperm(50).tolist(), flush=True)
        os._exit(0)
    os.wait()
"""
forked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
first, second = forked.stdout.splitlines()
apart = str(torch.randperm(50).tolist())
print("two children forked from one process, same order:", first == second)
print("two processes started apart, same order:", first == apart)
assert first == second
assert first != apart

# %% [markdown]
# A process that loads torch gets a random seed from the operating system. A forked child gets a *copy* of the parent's generator,
# so all ranks draw alike. A `forkserver` that has torch preloaded forks too. `torchrun` and `spawn` start fresh
# processes, so the ranks differ, and differ again in the next run. `dtlab.launch` uses a preloaded forkserver and seeds each rank
# from (seed, rank), which is why `unlike` above was unlike:

# %% tags=["nbval-check-output"]
seeds = list(launch(torch.initial_seed, 4))
print("different seeds on 4 ranks:", len(set(seeds)))
print("the same in a second launch:", seeds == list(launch(torch.initial_seed, 4)))

# %% [markdown]
# An order that hangs on a generator which someone else seeds is an accident in either case. The order of the data must be a
# function of numbers that *you* hold: a seed and an epoch.
#
# ## Break it: the sampler that torch has
# S4's remedy was `DistributedSampler`. Its call of `set_epoch` is missing in his script. The next function does what three
# real scripts did: no `set_epoch`; an epoch number that differs from rank to rank; and an evaluation.


# %%
def by_the_book(samples=24):
    """Orders of this rank, and the ids that it evaluates, with torch's DistributedSampler."""
    with world() as w:
        sampler = DistributedSampler(range(samples), seed=0)
        forgot = [list(sampler) for _ in range(2)]  # two epochs, no set_epoch
        told = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            told.append(list(sampler))
        sampler.set_epoch(w.rank)  # a rank that counts its epochs differently
        astray = list(sampler)
        evaluated = list(DistributedSampler(range(10), shuffle=False))
        return {"forgot": forgot, "told": told, "astray": astray, "evaluated": evaluated}


# %% tags=["lab-failure", "nbval-check-output"]
book = launch(by_the_book, 3, timeout=20)


def whole_order(key, epoch):
    """The order over all ranks: position p belongs to rank p % 3."""
    return list(chain(*zip(*(one[key][epoch] for one in book), strict=True)))


forgot, told = ([whole_order(key, epoch) for epoch in range(2)] for key in ("forgot", "told"))
print("without set_epoch, epochs 0 and 1 alike:", forgot[0] == forgot[1])
print("with set_epoch, epochs 0 and 1 alike:   ", told[0] == told[1])
print("ranks in different epochs:", seen([one["astray"] for one in book], range(24)))
assert forgot[0] == forgot[1]
assert told[0] != told[1]

# %% [markdown]
# None of this gives an error or a warning. Now the evaluation. Ten samples; the model is wrong for samples 0 and 1, so its
# accuracy is 8 / 10. Three ranks gather their results:

# %% tags=["lab-failure", "nbval-check-output"]
right = [sample not in (0, 1) for sample in range(10)]
for rank, one in enumerate(book):
    print(f"rank {rank} evaluated samples {one['evaluated']}")
gathered = list(chain(*(one["evaluated"] for one in book)))
correct = sum(right[sample] for sample in gathered)
accuracy = correct / len(gathered)
print(f"accuracy = {correct} / {len(gathered)} = {accuracy:.3f}, not {sum(right) / 10}")
assert (correct, len(gathered)) == (8, 12)

# %% [markdown]
# Ten does not divide by three, so the sampler *pads*: it starts again at sample 0 until every rank has four. Samples 0 and 1
# are counted twice, and they are the wrong ones. The same model, by number of ranks (a sampler needs no group to say what it
# would do):

# %% tags=["lab-failure", "nbval-check-output"]
for n in (1, 2, 3, 4):
    parts = (DistributedSampler(range(10), n, rank, shuffle=False) for rank in range(n))
    flags = [right[i] for i in chain(*parts)]
    print(f"world size {n}: {sum(flags)} / {len(flags)} = {np.mean(flags):.3f}")

# %% [markdown]
# The score of a model depends on how many processes measured it.
#
# ## Break it: no padding, and a loop over my own part
# The plain alternative is a stride: rank r takes samples r, r + N, r + 2N, ... Each sample once, none padded. On four ranks that
# is 3, 3, 2 and 2 samples. Each step ends in an all-reduce, as a training step does.


# %% tags=["lab-failure"]
def own_part():
    with world() as w:
        for sample in range(w.rank, 10, w.size):
            gradient = torch.tensor([float(sample)])
            dist.all_reduce(gradient)


with expect_failure(
    RankError,
    match=r"rank [23] of 4 has left after all_reduce #2, but rank \d waits in all_reduce #3",
    within=20,
    explain={
        "has left after all_reduce #2": "this rank had two samples, so its loop is over",
        "in own_part": "where it waits; before it stands the cell, by the number at its left",
        "waits in all_reduce #3": "this rank has a third sample, and needs all four for its sum",
        "every rank must make the same collective calls": "so: equal step counts on every rank",
    },
):
    launch(own_part, 4, timeout=15)

# %% [markdown]
# `dtlab` sees that a rank has left while others wait, and says so. Plain gloo waits for 30 minutes, unless the rank that is done also exits.
# This is why torch pads: equal lengths mean equal step counts. There is a way to have both, equal steps *and* each sample once.
#
# ## Look: who saw what
# Drawn from the ids that the ranks returned above. Choose a run, and move through its steps.

# %%
runs = {
    "4 ranks, own orders": [ids[:steps] for ids, _ in unlike],
    "4 ranks, seeded alike": [ids[:steps] for ids, _ in alike],
    "1 process": [ids[:steps] for ids, _ in alone],
}
coverage_explorer(runs, range(rows), start=2)

# %% [markdown]
# After two of the seven steps of an "epoch" most rows were seen already, some of them by three ranks. At its end each was seen four times. The ranks in different epochs
# are worse: some rows twice, and others never, in every epoch.

# %%
show(coverage_figure(seen([one["astray"] for one in book], range(24)), "Ranks in epochs 0, 1, 2"))

# %% [markdown]
# The padded evaluation:

# %%
padded = seen([one["evaluated"] for one in book], range(10))
show(coverage_figure(padded, "10 samples, 3 ranks, DistributedSampler"))

# %% [markdown]
# ## Look: the order of two epochs

# %%
show(order_figure({"without set_epoch": forgot, "with set_epoch": told}))

# %% [markdown]
# ## Build it: a distributed sampler
# One *global* order for all ranks, made from (seed, epoch); cut into *global* batches; each rank takes its slice of each. Nothing is
# sent: every rank computes the same order. The last global batch is smaller, and a rank's part of it may be empty, but it is a step.


# %% tags=["exercise"]
def my_batches(samples, global_batch, rank, size, seed, epoch, position=0):
    """This rank's part of every global batch of an epoch: a list with a list of ints per step.

    The order is a permutation of range(samples) that depends on seed and epoch alone, and
    (seed 0, epoch 1) is another one than (seed 1, epoch 0): np.random.default_rng([seed, epoch])
    has a method for it. Leave out the first `position` samples of the order (they were trained
    before the run stopped), cut the rest into global batches of `global_batch`, the last may be
    smaller, and take every size-th sample of each, from number `rank` on. All ranks return as
    many steps; a part may be the empty list.
    """
    ### BEGIN SOLUTION
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    mine = []
    for start in range(position, samples, global_batch):
        whole = order[start : start + global_batch]
        mine.append(whole[rank::size].tolist())
    return mine
    ### END SOLUTION


# %% tags=["hint"]
hint("04-sampler")

# %% [markdown]
# ## Check: the sampler
# Four real ranks, whose generators differ. 50 samples in global batches of 12: the last batch has 2 samples for 4 ranks.

# %% tags=["check"]
check("04-sampler", my_batches)

# %% [markdown]
# ## Build it: an evaluation of the true length
# At work you will meet samplers that pad. Bring the results together by id: each sample once, in the order of the ids.


# %% tags=["exercise"]
def evaluate(ids, right):
    """(ids, accuracy) over the samples of all ranks on rank 0; None on the other ranks.

    `ids` [B] int64 are the samples of this rank and `right` [B] float32 their results, 1 or 0. B
    differs between ranks and may be 0; a padded sampler may have given one id to two ranks.
    Return the ids as a list, growing, each once, and the accuracy as one process would get it.
    dtlab.gather(tensor) gives rank 0 the tensors of all ranks in a list, in rank order, of any
    length, and None to the others; every rank must call it.
    """
    ### BEGIN SOLUTION
    all_ids, all_right = dtlab.gather(ids), dtlab.gather(right)
    if all_ids is None:
        return None
    by_id = dict(zip(torch.cat(all_ids).tolist(), torch.cat(all_right).tolist(), strict=True))
    ordered = sorted(by_id)
    return ordered, sum(by_id[sample] for sample in ordered) / len(ordered)
    ### END SOLUTION


# %% tags=["hint"]
hint("04-evaluate")

# %% [markdown]
# ## Check: the evaluation
# Ten samples padded on four ranks, 21 samples in any order, and 3 samples on four ranks.

# %% tags=["check"]
check("04-evaluate", evaluate)

# %% [markdown]
# ## Build it: a step with uneven parts
# A part may be smaller, or empty. `DistributedDataParallel` takes the *mean over ranks* of each rank's gradient, which is the gradient of the
# mean over samples only when all parts are equal:
#
# $$\frac{1}{N}\sum_r \frac{1}{b_r}\sum_{i \in r} g_i \;\ne\; \frac{1}{\sum_r b_r}\sum_r \sum_{i \in r} g_i$$
#
# With the ten samples of before in parts of 3, 3, 2, 2, and "is it right" in the place of a gradient:

# %% tags=["nbval-check-output"]
parts = [right[rank::4] for rank in range(4)]
means = " + ".join(f"{sum(part)}/{len(part)}" for part in parts)
print(f"1/4 x ({means}) = {np.mean([np.mean(part) for part in parts]):.3f}")
print(f"{sum(right)}/{len(right)} = {np.mean(right):.3f}")

# %% [markdown]
# So sums travel, and one division by the true count comes at the end.


# %% tags=["exercise"]
def uneven_step(model, features, labels):
    """Mean loss over the samples of all ranks, as a float; its gradient in every parameter's .grad.

    `features` [B, D] and `labels` [B] are this rank's part; B differs between ranks and may be 0,
    but every rank calls this function. The loss of a sample is
    (model(features).squeeze(1) - labels) ** 2. A sum over no samples is 0 and has a gradient of
    zeros; a mean over none is not a number. `dist.all_reduce(tensor)` adds up over ranks in place;
    all ranks must make the same calls. No `.grad` is set when it begins.
    """
    ### BEGIN SOLUTION
    total = ((model(features).squeeze(1) - labels) ** 2).sum()
    total.backward()
    both = torch.tensor([total.item(), len(labels)], dtype=torch.float64)
    dist.all_reduce(both)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= both[1]
    return (both[0] / both[1]).item()
    ### END SOLUTION


# %% tags=["hint"]
hint("04-uneven")

# %% [markdown]
# ## Check: the step
# Parts of 3, 3, 2, 2 samples, of 1, 1, 0, 0, and all four samples on one rank, against one process with all samples.

# %% tags=["check"]
check("04-uneven", uneven_step)

# %% [markdown]
# ## The real thing
# `dtlab.GlobalBatchSampler` is your sampler as an object that counts its own epochs; `Loader` brings the rows of a table. Two epochs on
# four ranks, without `set_epoch`, then two steps of a third, where the run "dies".


# %%
def train_until_killed():
    with world():
        loader = Loader(clicks, GlobalBatchSampler(rows, 12, seed=7))
        epochs = [[batch.ids.tolist() for batch in loader] for _ in range(2)]
        begun = []
        for batch in loader:
            begun.append(batch.ids.tolist())
            if len(begun) == 2:
                return epochs, begun, loader.state_dict()


def go_on(state):
    with world():
        loader = Loader(clicks, GlobalBatchSampler(rows, 12))
        loader.load_state_dict(state)
        return [batch.ids.tolist() for batch in loader]


def joined(by_rank):
    """The global batches, as sorted ids, of what each rank had in each step."""
    return [sorted(chain(*parts)) for parts in zip(*by_rank, strict=True)]


# %% tags=["nbval-check-output"]
four = launch(train_until_killed, 4, timeout=20)
state = four[0][2]
two = launch(go_on, 2, state, timeout=20)

one_process = GlobalBatchSampler(rows, 12, seed=7)
uninterrupted = [[sorted(batch.tolist()) for batch in one_process] for _ in range(3)]
for epoch in range(2):
    print(f"epoch {epoch}:", seen([chain(*one[0][epoch]) for one in four], range(rows)))
    same = joined(one[0][epoch] for one in four) == uninterrupted[epoch]
    print("  same global batches as one process:", same)
print("samples per rank in the last step:", [len(one[0][0][-1]) for one in four])
print("state of the run that died:", state)
resumed = joined(one[1] for one in four) + joined(two)
print("epoch 2, 2 steps on 4 ranks and the rest on 2:", resumed == uninterrupted[2])
assert resumed == uninterrupted[2]
assert uninterrupted[0] != uninterrupted[1]

# %% [markdown]
# The state is three numbers, the same on every rank. `position` is a count of samples of the global order, 2 steps x 12 samples = 24. It is no count
# of batches of a rank, so it means the same on two ranks as on four. What was gathered ahead and never trained does not count.

# %%
show(coverage_figure(seen([chain(*one[0][0]) for one in four], range(rows)), "GlobalBatchSampler"))

# %% [markdown]
# Your sampler gives the same proof. Its permutations are others than dtlab's if you draw them otherwise; what must agree is that world sizes do:

# %% tags=["nbval-check-output"]
if solved("04-sampler"):
    whole = my_batches(rows, 12, 0, 1, seed=7, epoch=2)
    before = [my_batches(rows, 12, rank, 4, seed=7, epoch=2)[:2] for rank in range(4)]
    after = [my_batches(rows, 12, rank, 2, seed=7, epoch=2, position=24) for rank in range(2)]
    same = joined(before) + joined(after) == list(map(sorted, whole))
    print("yours, 2 steps on 4 ranks and the rest on 2:", same)

# %% [markdown]
# ### An uneven step under DDP
# DDP divides by the number of ranks; you cannot tell it the counts. So hand it the *sum* of this rank's losses times
# $N / \sum_r b_r$. The sampler knows the count, `last_size`, without a message. The last step of an epoch, with parts of 1, 1, 0, 0:


# %% tags=["nbval-check-output"]
def last_step():
    with world() as w:
        loader = Loader(clicks, GlobalBatchSampler(rows, 12, seed=7))
        *_, batch = loader
        model = data_parallel(DeepFM((8, 6), 2, dim=4, hidden=(8,)), w)
        logits = model(batch.categorical, batch.dense)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels, reduction="sum"
        )
        (loss * w.size / loader.sampler.last_size).backward()
        return [parameter.grad for parameter in model.parameters()]


by_four, by_one = launch(last_step, 4, timeout=20), launch(last_step, 1, timeout=20)[0]
for rank, gradients in enumerate(by_four):
    same = all(torch.allclose(a, b, atol=1e-7) for a, b in zip(gradients, by_one, strict=True))
    print(f"rank {rank}: gradient of one process: {same}")
    assert same

# %% [markdown]
# `dtlab.Trainer` takes every step in this way.
#
# ### Evaluation
# `gather_by_id` orders by id, and `GlobalBatchSampler` does not pad.


# %% tags=["nbval-check-output"]
def evaluated():
    with world():
        ids = torch.from_numpy(np.concatenate(list(GlobalBatchSampler(10, 4, shuffle=False))))
        flags = torch.tensor(right, dtype=torch.float32)
        return gather_by_id(ids, num_samples=10, right=flags[ids])


for n in (3, 4):
    found = launch(evaluated, n, timeout=20)[0]
    print(f"{n} ranks: {len(found)} samples, accuracy {found['right'].mean():.3f}")
    assert round(found["right"].mean().item(), 6) == sum(right) / 10

# %% [markdown]
# Your `evaluate` drops one of two results for a sample. That is right when both are equal; dropout, random crops or batch statistics make them
# unequal. So `gather_by_id` refuses what the padded run of above gathered, and names a sampler that does not pad:

# %% tags=["lab-failure"]
with expect_failure(
    UserError,
    match="2 of 10 samples were evaluated more than once",
    within=5,
    explain={"first id 0": "padding starts again at the first sample"},
):
    gather_by_id(torch.tensor(gathered))

# %% [markdown]
# ### Ranks in different epochs
# At the start of each epoch the ranks compare seed, epoch and position, in one small message.


# %% tags=["lab-failure"]
def astray():
    with world() as w:
        sampler = GlobalBatchSampler(24, 6)
        sampler.set_epoch(w.rank + 1)
        return list(sampler)


with expect_failure(
    RankError,
    match="ranks disagree on the sampler's epoch",
    within=20,
    explain={"{0: 1, 1: 2}": "the value on each rank: rank 0 is in epoch 1, rank 1 in epoch 2"},
    lines=1,
):
    launch(astray, 2, timeout=10)

# %% [markdown]
# ### In a loader of torch
# `TorchBatchSampler` goes where `DistributedSampler` went. If `set_epoch` is forgotten it says so, and goes on with the next order all the same:

# %% tags=["nbval-check-output"]
batches = TorchBatchSampler(GlobalBatchSampler(24, 6, rank=0, world_size=3))
plain = DataLoader(torch.arange(24), batch_sampler=batches)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    two_epochs = [torch.cat(list(plain)).tolist() for _ in range(2)]
for warning in caught:
    assert warning.category is DtlabWarning
    print(warning.message)
print("the order repeats:", two_epochs[0] == two_epochs[1])

# %% [markdown]
# `data_loader` builds the whole `DataLoader`: empty parts in the tail, and a state that counts what was *consumed*, also when
# worker processes (`num_workers=4`) have asked for batches ahead. A rank that stops after two steps:

# %% tags=["nbval-check-output"]
sampler = GlobalBatchSampler(24, 6, rank=0, world_size=3)
loader = data_loader(torch.arange(24), sampler)
for step, _ in enumerate(loader, start=1):
    if step == 2:
        break
print("consumed:", loader.state_dict())
print("steps to go:", len(list(loader)), "of", len(loader))

# %% [markdown]
# ### 22 minutes, 2.75, and 6
# Minutes follow the rows of the busiest rank: $T_N = T_1 \cdot \max_r \mathrm{rows}_r / \mathrm{rows}$.

# %% tags=["nbval-check-output"]
busiest = max(len(list(chain(*one[0][0]))) for one in four)
print(f"our 4 ranks: 22 min x {busiest} / {rows} = {22 * busiest / rows:.2f} min")
print(f"S4's 8 ranks: 22 min x 1 / 8 = {22 / 8} min; he reports 6")
print(f"rows per minute and card, after / before: (1/8 / 6) / (1 / 22) = {22 / 8 / 6:.2f}")
fixed = (6 - 22 / 8) * 8 / 7
print(f"or f minutes that no card shares: f + (22 - f) / 8 = 6 gives f = {fixed:.1f} min")

# %%
ask.reveal("d", because="22 / 8 = 2.75. The author measured 6, so something else changed as well.")

# %% [markdown]
# S4 reports 22 -> 6 minutes and utilisation of 40 % -> 75 % for "this one change". Both cannot be the sampler's: in 6 minutes each card computes 0.46 as
# many rows per minute as before, while busy for nearly twice as long. He changed four things at once (sampler, `num_workers=4`,
# `pin_memory`, batch 256). For 6 minutes to be right, one of these would have to be true, and his text does not say which:
#
# - 3.7 minutes of the epoch are not shared: an evaluation that each process does in full, a checkpoint, the start of workers;
# - the reader became the limit. If eight processes read the *same* rows in the same order, one reads from the disk and seven from
#   memory; with split rows each must be read. The job would then need 22 / 6 = 3.7 times as many different rows per minute;
# - the new batch, or the workers on the host's cores, made each card slower.
#
# One consequence he does not mention: with the same batch on each card, an epoch has an eighth of the optimizer steps. The learning rate was
# chosen for the old number (lesson 05).
#
# ## On a GPU
# The order is made on the host and is the same. `device=` copies each batch to the card; for a CUDA device the loader goes through
# page-locked memory, so that the copy runs beside the computation.

# %% tags=["gpu-optional"]
if torch.cuda.is_available():
    loader = Loader(clicks, GlobalBatchSampler(rows, 12), device="cuda")
    print({str(batch.ids.device) for batch in loader})
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# S4's two hosts of four cards for an afternoon of five hours, and the same epochs with the rows split:

# %%
bill(
    "an afternoon, every process reads every row",
    "the same epochs, rows split over 8 processes",
    instance="ml.g4dn.12xlarge",
    count=2,
    fault_seconds=5 * 3600,
    fix_seconds=5 * 3600 / 8,
)

# %% [markdown]
# His figure, "nearly \$200" for the afternoon, does not follow from it:

# %%
hour = billing.cost("ml.g4dn.12xlarge", 3600, 2).usd
print(f"two hosts: ${hour:.2f} an hour, so $200 / ${hour:.2f} = {200 / hour:.1f} hours")
print(f"for $200 in 5 hours: {200 / 5 / (hour / 2):.1f} hosts")

# %% [markdown]
# It holds if the job ran through the night as well, or on eight hosts. Per epoch, at his own times, the fix is worth:

# %%
for minutes in (22, 6, 22 / 8):
    paid = billing.cost("ml.g4dn.12xlarge", minutes * 60, 2)
    print(f"an epoch of {minutes:g} min: {paid.line()}")

# %% [markdown]
# ## Recap

# %%
recap(
    "04",
    [
        "One global order from (seed, epoch), one global batch, each rank its slice: "
        "count ids, assume nothing.",
        "Equal step counts need no padding: a part may be empty, and counts weigh the mean.",
        "Gather by id, each sample once; "
        "the state of a run is (seed, epoch, position) on any world size.",
    ],
)
