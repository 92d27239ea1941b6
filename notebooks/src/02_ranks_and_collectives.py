# %% [markdown]
# # Ranks, collectives, parameter server or ring
#
# A script was started on two hosts of four cards each and moved its model to card number `rank`, so four of eight
# processes asked for cards that no host had, and died. The other four waited for them, and two `ml.g4dn.12xlarge`
# cost \$9.78 an hour until somebody looked.
#
# How does a process know which rank it is, how do ranks add up a tensor, and what do you see when one of them
# does not come?
#
# (The script is that of an engineer who got eight cards for a new recommender: S4. Two more write-ups appear below: S0, a recommender
# team that moved from one card to SageMaker, and S3, a team that tuned a model of images and text three times in vain. 00 says more.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, expect_failure, goal, hint, predict, recap, solved
from dtlab.course import time_budget

goal(
    [
        "start real ranks from a cell, and say which rank, host and card each process is",
        "read the message of a group that hangs",
        "build a ring all-reduce",
        "say what bytes and seconds it takes, beside a tree and a parameter server",
    ],
    minutes=50,
    needs=["01"],
)

# %% tags=["hide-input"]
import math
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dtlab import RankError, launch, traffic, world
from dtlab.collectives import chunk_bounds, in_steps, parameter_server_all_reduce
from dtlab.collectives import ring_all_reduce, tree_all_reduce
from dtlab.course.terminal import terminal_output
from dtlab.figures.all_reduce import bytes_figure, chunk_figure
from dtlab.figures.style import show
from dtlab.widgets.all_reduce import all_reduce_explorer

# %% [markdown]
# ## Predict
# Four ranks hold a tensor of S bytes each and want the sum. In a *parameter server* rank 0 receives every tensor,
# adds them up, and sends the sum back to everybody. Commit to an answer before you go on.

# %%
ask = predict(
    "02-server",
    "How many bytes pass through rank 0's link, in both directions together?",
    [
        "2 S: one tensor in, one sum out",
        "3 S: one from each of the others",
        "6 S: three in, three out",
        "8 S: four in, four out",
    ],
)

# %% [markdown]
# ## Break it: a function from a cell, with plain `spawn`
# The documentation of `torch.multiprocessing` starts processes with `spawn`. Here is the smallest function, in a cell,
# and one process. `terminal_output` catches what the process writes to the terminal.


# %% tags=["lab-failure"]
def hello(rank=None):
    """Say who I am; the launcher has set both variables."""
    text = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
    print(text)
    return text


with (
    expect_failure(
        mp.ProcessExitedException,
        match="terminated with exit code 1",
        explain={
            "process 0": "the number that spawn hands to the function as its rank",
            "exit code 1": "it ended by an exception. Which one is not in the message",
        },
    ),
    terminal_output() as terminal,
):
    mp.spawn(hello, nprocs=1)

# %% [markdown]
# The exception has no reason in it. The reason went to the standard error of a process that is gone: some front ends
# show it in the cell, others in the log of the server, where nobody looks. Its last line:

# %% tags=["lab-failure"]
assert "Can't get attribute 'hello'" in terminal.text
print(terminal.last_line)

# %% [markdown]
# Read it like this. `spawn` starts a fresh Python and sends it not the function but its *name*: "take `hello` from the
# module `__main__`". In the fresh process `__main__` is an empty module: your cells were never run there. A script that
# has a file is run again in each process (which is why scripts need `if __name__ == "__main__":`). A notebook has no file.
#
# `dtlab.launch` sends the function itself, by value, to processes that have loaded torch already. The same function,
# two ranks:

# %%
print(list(launch(hello, 2)))

# %% [markdown]
# ## Break it: which card is mine?
# S4's script says `model.to(rank)`. S0 believes that "`.cuda()` -> `.to(device)` gives multi-GPU by itself".
# `nnodes=2` simulates two hosts, here with two cards each: four ranks, and every host counts its own cards from 0.
# `card` answers as a host of two cards would.


# %% tags=["lab-failure"]
def card(index=0):
    """The card of that index on this simulated host, or torch's error."""
    cards = int(os.environ["LOCAL_WORLD_SIZE"])  # one process for each card of a host
    if index >= cards:
        raise RuntimeError(f"CUDA error: invalid device ordinal (cuda:{index} of {cards} cards)")
    return f"host {os.environ['GROUP_RANK']} cuda:{index}"


with expect_failure(
    RankError,
    match=r"rank [23] of 4 failed: RuntimeError: CUDA error: invalid device ordinal",
    within=20,
    explain={
        "invalid device ordinal": "a card of this number does not exist on this host",
        "-->": "the line that raised, in the rank that failed first; its caller stands above",
        "restarts are off": "launch can start all ranks again; it was not asked to",
    },
):
    # S4: model.to(rank)
    launch(lambda: card(int(os.environ["RANK"])), 2, nnodes=2, timeout=20)

# %% [markdown]
# S0's `.to("cuda")` names no card, and no card means card 0. Nothing fails. Count the cards in use:

# %% tags=["lab-failure", "nbval-check-output"]
used = list(launch(card, 2, nnodes=2, timeout=20, echo=False))  # S0: model.to("cuda")
print(*used, sep="\n")
print(f"{len(used)} processes, {len(set(used))} cards in use of 4")
assert len(set(used)) == 2

# %% [markdown]
# Ranks 0 and 1 found cards 0 and 1 in S4's run, so a test on one host passes. For S4's line to be right, all ranks
# must be on one host: there the rank *is* the local rank. For S0's line to be
# right, the launcher must show each process a single card (`CUDA_VISIBLE_DEVICES`). Neither was so.
#
# ## Break it: the rank that was written into the script
# S4 also tells of `MASTER_ADDR`, `RANK` and `WORLD_SIZE` that were hard-coded and broke on another cluster. Both
# processes run this:


# %% tags=["lab-failure"]
def hard_coded():
    os.environ["RANK"] = "0"  # worked on the first machine
    with world() as w:
        return w.rank


with expect_failure(
    RankError,
    match="rank 0 was started twice",
    within=20,
    explain={
        "rank 0 was started twice": "both processes say that they are rank 0",
        "world size 2": "two ranks are expected, so a rank 1 would have been waited for",
    },
):
    launch(hard_coded, 2, timeout=15)

# %% [markdown]
# Plain torch does not compare: of two processes that both call themselves rank 0, one says "address already in use"
# and the other waits until its time is over. Variables belong to the launcher (`torchrun`, `dtlab.launch`); a script reads them.
#
# ## Break it: everyone sends first
# Four ranks in a ring. Each sends a tensor to the right with the blocking `send`, then receives from the left. S0's first
# two debugging moves are in it: ask `is_initialized()`, and put a `barrier()` before the place that hangs.


# %% tags=["lab-failure"]
def send_first(numel):
    with world() as w:
        assert dist.is_initialized()
        w.barrier()  # every rank comes this far
        mine, theirs = torch.ones(numel), torch.empty(numel)
        dist.send(mine, (w.rank + 1) % w.size)
        dist.recv(theirs, (w.rank - 1) % w.size)


with expect_failure(
    RankError,
    match="every rank waits for another.* waits in send",
    within=20,
    explain={
        "timeout after 2 s": "our limit. Without one gloo waits for 30 minutes, NCCL for 10",
        "every rank waits for another": "nobody is late: all are inside an operation",
        "rank 0 waits in send": "all four are in send, so nobody is in recv to take anything",
        "in send_first": "your function that called it; its line stands behind",
    },
):
    launch(send_first, 4, 262_144, timeout=2)

# %% [markdown]
# 262,144 numbers are 1 MiB, more than the buffers of a socket take, so a blocking send has to wait for its receiver.
# Try `1` instead of `262_144`: with gloo it hangs too, because gloo's `send` waits for the receiver at any size.
# Libraries that buffer small messages (MPI, for one) hide this fault until the tensors grow.
#
# S0 names `barrier()` as a cure. Every rank passed the barrier here, and `is_initialized()` was true. A barrier finds a rank
# that does not come. It cures nothing, and it is no help when all of them came.
#
# When a rank *is* late, the same line names it. `explain` is the function that wrote the message; here it gets the states
# of two ranks that we made up:

# %% tags=["nbval-check-output"]
from dtlab.ranks.recorder import RankState, explain

behind = RankState(1, "all_reduce", 3, completed=True, groups={"0": 3})
ahead = RankState(0, "all_reduce", 4, completed=False, groups={"0": 4})
print(explain([ahead, behind]))

# %% [markdown]
# Rank 0 is in its fourth all-reduce and cannot finish it, because rank 1 has finished its third and has not
# started the fourth. The rank to look at is the one that is *not* waiting.
#
# ## Break it: everything through rank 0
# The same sum, three ways, on four real ranks. `traffic()` counts the messages and the bytes that each rank really sends.


# %% tags=["lab-failure", "nbval-check-output"]
def count(numel):
    """Traffic of this rank in each algorithm."""
    counted = {}
    with world() as w:
        for name, algorithm in ALGORITHMS.items():
            with traffic() as counted[name]:
                algorithm(torch.full((numel,), float(w.rank)))
    return counted


ALGORITHMS = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "parameter server": parameter_server_all_reduce,
}
N, NUMEL = 4, 1000
S = 4 * NUMEL  # float32
counts = launch(count, N, NUMEL, timeout=20)
through_rank_0 = counts[0]["parameter server"].moved_bytes
print(f"through the server's link: {through_rank_0:,} bytes = {through_rank_0 // S} x {S:,}")
assert through_rank_0 == 2 * (N - 1) * S

# %%
words = "N - 1 tensors come in and N - 1 sums go out: 2(N-1) S = 2 x 3 x S = 6 S."
ask.reveal("c", because=words)

# %% [markdown]
# ## Look: bytes through each link

# %%
moved = {
    name: [(one[name].bytes, one[name].received_bytes) for one in counts] for name in ALGORITHMS
}
show(bytes_figure(moved))

# %% [markdown]
# A server's link carries $2(N-1)\,S$ bytes: with twice the ranks, twice as many. A rank of a ring sends
# $\frac{2(N-1)}{N}\,S$ bytes and receives as many: less than $2S$ each way, for any number of ranks. With the numbers of this run:

# %% tags=["nbval-check-output"]
ring_sent = counts[0]["ring"].bytes
server, ring_formula = 2 * (N - 1) * S, 2 * (N - 1) * S // N
print(f"server: 2 x ({N} - 1) x {S:,} = {server:,} bytes; counted {through_rank_0:,}")
print(f"ring:   2 x ({N} - 1) / {N} x {S:,} = {ring_formula:,} bytes sent; counted {ring_sent:,}")
assert ring_sent == ring_formula

# %% [markdown]
# ## Look: the ring, step by step
# Drawn from the messages that the four ranks recorded a moment ago. Each rank cuts its tensor into four chunks. A cell says
# whose numbers are inside: `0+1` is the sum of rank 0's and rank 1's. Move the step, and change the algorithm.

# %%
steps = {name: in_steps([one[name] for one in counts]) for name in ALGORITHMS}
all_reduce_explorer(steps, ranks=N, start=2)

# %% [markdown]
# At half time, after N-1 steps:

# %%
show(chunk_figure(steps["ring"], ranks=N, step=N - 1))

# %% [markdown]
# Two halves. In steps 1 to N-1 a rank *adds* what arrives (this half is called reduce-scatter), and ends with one finished
# chunk. In the other N-1 steps it *overwrites* (all-gather): the finished chunks go round. In every step every link carries one
# chunk, and nobody waits for a rank in the middle.
#
# ## Build it: who am I?
# First the two faults that were written into scripts.


# %% tags=["exercise"]
def who_am_i(environ):
    """Who this process is, from the variables that a launcher sets.

    Return {"rank": int, "size": int, "device": str}: RANK, WORLD_SIZE, and the card of this
    process on its own host, such as "cuda:1". If any of RANK, WORLD_SIZE and LOCAL_RANK is
    missing, raise one ValueError that names all that are.
    """
    ### BEGIN SOLUTION
    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in environ]
    if missing:
        raise ValueError("missing: " + ", ".join(missing) + "; start with torchrun")
    return {
        "rank": int(environ['RANK']),
        "size": int(environ['WORLD_SIZE']),
        "device": f"cuda:{environ['LOCAL_RANK']}",
    }
    ### END SOLUTION


# %% tags=["hint"]
hint("02-who")

# %% [markdown]
# ## Check: who am I?
# On two simulated hosts of two cards, and with variables missing.

# %% tags=["check"]
check("02-who", who_am_i)

# %% [markdown]
# ## Build it: the ring
# `chunk_bounds(10, 4)` gives `[(0, 3), (3, 6), (6, 8), (8, 10)]`, so a tensor of any length can be cut. `isend` and `irecv`
# start an operation and return at once; `.wait()` waits until it is over. Start both, then wait for both: that is what `send_first` lacked.


# %% tags=["exercise"]
def ring(tensor, rank, size):
    """Sum the flat `tensor` over all ranks, in place, and return it.

    2 * (size - 1) steps. In each, send one chunk with dist.isend(chunk, right), receive one with
    dist.irecv(buffer, left), and wait for both. In the first size - 1 steps add what arrives to
    your chunk of that number; in the others overwrite it. Which chunk goes out in which step is
    in the figures above. `chunks` are views: changing one changes the tensor.
    """
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = [tensor[start:end] for start, end in chunk_bounds(len(tensor), size)]

    ### BEGIN SOLUTION
    def exchange(chunk, buffer):
        sending = dist.isend(chunk, right)
        receiving = dist.irecv(buffer, left)
        sending.wait()
        receiving.wait()

    for step in range(size - 1):
        mine = chunks[(rank - step - 1) % size]
        buffer = torch.empty_like(mine)
        exchange(chunks[(rank - step) % size], buffer)
        mine += buffer
    for step in range(size - 1):
        exchange(chunks[(rank + 1 - step) % size], chunks[(rank - step) % size])
    return tensor
    ### END SOLUTION


# %% tags=["hint"]
hint("02-ring")

# %% [markdown]
# ## Check: the ring
# Four real ranks; 1,000 numbers first, then 10 and 3 (chunks of different length, and an empty one), then a million.

# %% tags=["check"]
check("02-ring", ring)

# %% [markdown]
# ## Build it: seconds
# Bytes are half of the story. The textbook model: a message of $M$ bytes takes $\alpha + M/B$ seconds, latency plus bytes over
# bandwidth; a rank sends one message and receives one at a time. Count the steps, multiply by the time of one.


# %% tags=["exercise"]
def seconds(n, size, latency, bandwidth):
    """Seconds of an all-reduce of `size` bytes over n ranks, for three algorithms.

    Return {"ring": ..., "tree": ..., "parameter server": ...}. A ring makes 2(n-1) steps of
    size/n bytes, a tree 2 ceil(log2 n) steps of the whole tensor, a parameter server 2(n-1) steps
    of the whole tensor. `latency` is in seconds, `bandwidth` in bytes per second.
    """
    ### BEGIN SOLUTION
    whole = size / bandwidth
    levels = math.ceil(math.log2(n))
    return {
        "ring": 2 * (n - 1) * (latency + whole / n),
        "tree": 2 * levels * (latency + whole),
        "parameter server": 2 * (n - 1) * (latency + whole),
    }
    ### END SOLUTION


# %% tags=["hint"]
hint("02-seconds")

# %% [markdown]
# ## Check: seconds

# %% tags=["check"]
check("02-seconds", seconds)

# %% [markdown]
# ## The real thing
# Your ring beside `dtlab.collectives.ring_all_reduce` and torch's own `all_reduce`, on the same numbers. They are whole
# numbers, so that sums are exact in any order.


# %% tags=["nbval-check-output"]
def compare(mine):
    with world() as w:
        start = torch.arange(1000.0) * (w.rank + 1)
        by_torch = start.clone()
        dist.all_reduce(by_torch)
        same = {
            "yours": torch.equal(mine(start.clone(), w.rank, w.size), by_torch),
            "dtlab's": torch.equal(ring_all_reduce(start.clone()), by_torch),
        }
        return same


if solved("02-ring"):
    for rank, same in enumerate(launch(compare, 4, ring, timeout=20)):
        print(f"rank {rank}: equal to torch's all_reduce:", same)
        assert all(same.values())

# %% [markdown]
# Now the model with the numbers of this machine. Two runs of the ring give its two constants: a tensor of four numbers, in
# chunks of 4 bytes, has only latency, $T = 2(N-1)\,\alpha$; a large one gives $B$ from $T = 2(N-1)\left(\alpha + \frac{S}{N B}\right)$. Then predict the
# others and compare.


# %%
def timed(numels):
    """Median seconds of each algorithm and size on this rank."""
    found = {}
    with world() as w:
        for name, algorithm in ALGORITHMS.items():
            for numel in numels:
                tensor, taken = torch.ones(numel), []
                for _ in range(5):
                    w.barrier()
                    began = time.perf_counter()
                    algorithm(tensor)
                    taken.append(time.perf_counter() - began)
                found[name, numel] = sorted(taken)[2]
    return found


# %% tags=["varies"]
TINY, MIDDLE, LARGE = 4, 250_000, 1_000_000
with time_budget(5):
    by_rank = launch(timed, N, (TINY, MIDDLE, LARGE), timeout=30)
took = {key: max(one[key] for one in by_rank) for key in by_rank[0]}
alpha = took["ring", TINY] / (2 * (N - 1))
B = 4 * LARGE / N / max(1e-9, took["ring", LARGE] / (2 * (N - 1)) - alpha)
print(f"latency {alpha * 1e6:.0f} us, bandwidth {B / 1e9:.2f} GB/s")
size = 4 * MIDDLE
print(f"ring of {size / 1e6:g} MB: 2 x {N - 1} x ({alpha:.2e} + {size} / ({N} x {B:.2e})) s")
if solved("02-seconds"):
    for name, predicted in seconds(N, size, alpha, B).items():
        measured = took[name, MIDDLE]
        print(f"{name:17} predicted {predicted * 1e3:6.2f}, measured {measured * 1e3:6.2f} ms")

# %% [markdown]
# Do not be surprised when the times are off, or the order of the three with them. The model gives every rank a processor and a link of its own.
# Here four ranks share the cores and the memory of one machine: a message is a copy in memory, so the bytes of a server's "link" cost little;
# and when there are fewer cores than ranks, each of the ring's 6 steps may have to wait until the system lets the neighbour run, while
# a tree or a server makes fewer ranks wait for one another. Then a tree or even the server may beat the ring here.
#
# So compare what does not depend on the machine: the bytes and the messages that were *counted* above, and the number of steps. Those are
# the same on a cluster, where the links are real. Seconds need the links they were fitted on; lesson 10 fits a better model.
#
# Two things that the choice "parameter server or ring" hides:
#
# - A server that is spread over all ranks, each serving $1/N$ of the tensor, moves $2(N-1)/N\,S$ bytes a rank and direction: as few as a
#   ring. What is slow is *one* server.
# - For a small tensor a tree wins, because it makes $2\log_2 N$ steps instead of $2(N-1)$. NCCL holds both and chooses by size.

# %% tags=["nbval-check-output"]
if solved("02-seconds"):
    for size in (1e3, 1e6, 1e9):
        times = seconds(64, size, 20e-6, 1.25e9)  # 20 us and 10 Gbit/s
        fastest = min(times, key=times.get)
        words = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in times.items())
        print(f"64 ranks, {size:>13,.0f} bytes: {words}; fastest: {fastest}")

# %% [markdown]
# ## On a GPU
# The code is the same with `backend="nccl"`, with two differences. Call `torch.cuda.set_device(local_rank)` before anything
# else. And where ranks exchange point to point, hand both operations over together with `dist.batch_isend_irecv`: NCCL runs operations
# of a pair of ranks in the order in which they were started, and that function starts them as one group.

# %% tags=["gpu-optional"]
if torch.cuda.is_available():

    def on_card():
        with world(backend="nccl") as w:
            tensor = torch.ones(4, device=w.device)
            dist.all_reduce(tensor)
            return str(w.device), tensor.tolist()

    print(list(launch(on_card, torch.cuda.device_count(), timeout=60)))
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# S4's two hosts, when all ranks send first: until gloo's default of 30 minutes is over, or with a limit of 60 seconds.

# %%
bill(
    "everyone sends first, default timeout of 30 minutes",
    "the same with a timeout of 60 s",
    instance="ml.g4dn.12xlarge",
    count=2,
    fault_seconds=30 * 60,
    fix_seconds=60,
)

# %% [markdown]
# S4's table calls data parallel's communication "low: one gradient sync". What one sync is, for S3's model of 320 million
# parameters in FP32 on 8 hosts of one card with 10 Gbit/s (1.25 GB/s), and what 1,000 steps of sync alone cost:

# %%
if solved("02-seconds"):
    gradient = 320e6 * 4
    sync = seconds(8, gradient, 20e-6, 1.25e9)
    words = ", ".join(f"{name} {value:.2f}" for name, value in sync.items())
    print(f"seconds of one sync of {gradient / 1e9:.2f} GB: {words}")
    bill(
        "1,000 syncs through one parameter server",
        "1,000 syncs round a ring",
        instance="ml.g5.2xlarge",
        count=8,
        fault_seconds=1000 * sync["parameter server"],
        fix_seconds=1000 * sync["ring"],
    )

# %% [markdown]
# A rank of the ring sends 2 x 7 / 8 x 1.28 = 2.24 GB in each step. "Low" would be right if a step computed for much longer than
# the ring takes, on faster links, or with sparse gradients: lesson 10 measures the first, lesson 07 builds the last.
#
# ## Recap

# %%
recap(
    "02",
    [
        "The launcher owns RANK, WORLD_SIZE and LOCAL_RANK; the card is the local rank.",
        "With a timeout a hang says who waits where: look at the rank that does not wait.",
        "A ring sends 2(N-1)/N x S bytes a rank; one server moves 2(N-1) x S.",
    ],
)
