# %% [markdown]
# # Debugging clinic
#
# One rank met a batch whose loss was not a number, left it out, and the job stood still. The default timeout was
# 30 minutes, so two `ml.g5.12xlarge` were billed $7.09 for half an hour of waiting, and the message named neither the rank nor the batch.
#
# Five trainers come into the clinic. Which rank is it, what is wrong with it, and how do you find out in a minute?
#
# (The incident is composed from public trouble reports. The three debugging moves and the beliefs that we test are S0's, one of the three
# write-ups that this course takes its material from.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, clinic, expect_failure, goal, hint, predict, recap, solved

goal(
    [
        "read the message of a hang, and name the late rank and its operation",
        "tell apart five faults that all look like 'it hangs'",
        "patch each of them, and prove it on real ranks",
        "say what a barrier, a timeout and each debugging variable can and cannot show",
    ],
    minutes=55,
    needs=["02", "03"],
)

# %% tags=["hide-input"]
import inspect
import logging
import math
import os
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import dtlab
from dtlab import RankError, launch, world
from dtlab.figures.lanes import lanes_figure
from dtlab.figures.style import show

# %% [markdown]
# ## Predict
# Two ranks take four steps, with one all-reduce in each. In the third step rank 0 has a bad batch and skips it, all-reduce included.
# Rank 1 skips nothing. Commit to an answer before you go on.

# %%
ask = predict(
    "12-skip",
    "In which step does the first rank stop?",
    [
        "in the third: rank 1 waits there for rank 0",
        "in none: three all-reduces match, the fourth is not needed",
        "in the fourth or later: the third all-reduce finds another partner",
        "in the first of the next epoch",
    ],
)


# %% [markdown]
# ## Break it: a condition that one rank meets
# The trainers of this lesson are in `dtlab.course.clinic`. `own_lines` shows the part of one that matters. Read it before you run it.


# %% tags=["lab-failure", "nbval-check-output"]
def own_lines(function):
    """Print the source of a function, without its docstring."""
    text = inspect.getsource(function)
    print(text.replace(f'    """{function.__doc__}"""\n', "") if function.__doc__ else text)


own_lines(clinic.skip_step)

# %% [markdown]
# `log_dir` keeps a file for each rank. `RankError` carries a report of every rank; we keep the recorded states for later.

# %% tags=["lab-failure"]
recorded = {}
logs = Path(tempfile.mkdtemp())
with expect_failure(
    RankError,
    match="rank 0 of 2 has left after all_reduce #3, but rank 1 waits in all_reduce #4",
    within=20,
    explain={
        "rank 0 of 2 failed": "the rank to look at, not the one that noticed",
        "has left after all_reduce #3": "it made three all-reduces and its loop is over",
        "rank 1 waits in all_reduce #4": "this rank made one more, and waits for a partner",
        "in skip_step: dist.all_reduce(gradient)": "the line that waits; the fault is not there",
        "same collective calls": "so: what did rank 0 do in one step that rank 1 did not?",
        ("rank 1 lost its peer", "rank 1 was stopped"): "a consequence. Rank 1 did nothing wrong",
    },
) as failure:
    launch(clinic.skips_a_batch, 2, timeout=15, echo=False, log_dir=logs)
recorded["skips_a_batch"] = [report.state for report in failure.error.reports]

# %% tags=["lab-failure", "nbval-check-output"]
for rank in range(2):
    print(f"rank{rank}.log:", *(logs / f"rank{rank}.log").read_text().splitlines()[:5], sep="\n   ")

# %% [markdown]
# The log files say *why*: rank 0's step 2 has the loss `nan`. Rank 0 went on to step 3 and called its third all-reduce; rank 1 was
# in *its* third, of step 2. They match: gradients of different steps were added up, and both weights are wrong. The job stopped a step later than the fault.
# In a long run it stops an epoch later, or when the ranks leave.

# %%
ask.reveal("c", because="Collectives match by number, not by step: #3 met #3. The gap shows at #4.")

# %% [markdown]
# ## Break it: shapes that differ
# Each rank makes a vocabulary of its own rows, and a table with a number for each item: two items on rank 0, three on rank 1. Start
# alike, by a broadcast of rank 0's table, then two steps.

# %% tags=["lab-failure"]
logs = Path(tempfile.mkdtemp())
with expect_failure(
    RankError,
    match="timeout after 2 s: rank 1 of 2 is late: waits in all_reduce #2",
    within=20,
    explain={
        "rank 1 of 2 is late: waits in all_reduce #2": "behind, although it waits too",
        "rank 0 waits in all_reduce #3": "rank 0 believes that #2 is over",
        "dist.all_reduce(gradient)": "the same line on both: no condition, no other branch",
    },
    lines=1,
) as failure:
    launch(clinic.own_vocabulary, 2, timeout=2, echo=False, log_dir=logs)
recorded["own_vocabulary"] = [report.state for report in failure.error.reports]

# %% [markdown]
# Number 1 was the broadcast. It passed on both ranks, with two numbers on one and three on the other:

# %% tags=["lab-failure", "nbval-check-output"]
first = [(logs / f"rank{rank}.log").read_text().splitlines()[0] for rank in range(2)]
for rank, line in enumerate(first):
    print(f"rank {rank}: {line}")
assert "[1.0, 1.0, 2.0]" in first[1]

# %% [markdown]
# No error, and a wrong value: rank 1's last number is its own. Its second row is rank 0's number for another item, too. What a library does with unequal
# lengths is not defined: gloo may give a wrong value, wait, or end the process (`Received data size doesn't match expected size`), depending on which side is longer.
#
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes torch compare shapes *before* each collective. It costs a message for every one, so it is for debugging only.

# %% tags=["lab-failure"]
detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
with expect_failure(
    RankError,
    match="Detected mismatch between collectives on ranks",
    within=20,
    explain={
        "OpType=BROADCAST": "the first operation that differs, not the last one that hung",
        "TensorShape=[2]": "what one rank brought",
        "TensorShape=[3]": "what the other brought",
        "Tensor Tensor shapes": "what they differ in: operation, shape, type or device",
    },
    lines=1,
):
    launch(clinic.own_vocabulary, 2, timeout=15, echo=False, env=detail)

# %% [markdown]
# ## Break it: a parameter without a gradient
# A model with two heads under torch's own DDP. In step 1 nobody clicks on rank 1, so rank 1 leaves the second head out.

# %% tags=["lab-failure", "nbval-check-output"]
own_lines(clinic.loss_if_clicked)

# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match="rank 1 of 2 failed: RuntimeError: Expected to have finished reduction",
    within=90,
    explain={
        "Expected to have finished reduction in the prior iteration": "step 2 says that step 1 was wrong",
        "parameters that were not used in producing loss": "the cause, in torch's words",
        "find_unused_parameters=True": "one way out: a search through the graph in each step",
        "did not receive grad for rank 1: 1": "which rank, and the index of the parameter",
        ("rank 0 lost its peer in all_reduce", "rank 0 was stopped"): "rank 0 waited for rank 1's "
        "part of the gradients, or was on its way there",
    },
) as failure:
    launch(clinic.unused_head, 2, timeout=80, echo=False)

# %% [markdown]
# The index counts `model.named_parameters()`. `dtlab.parallel.checks` gives the name, without a second rank. (The message offers `INFO or DETAIL`. Take INFO: with torch 2.13 on the CPU, DDP under
# DETAIL ended in a segmentation fault, also in a plain `torchrun`.)

# %% tags=["nbval-check-output"]
from dtlab.parallel.checks import unused_parameters

model = clinic.TwoHeads()
rows, clicked = clinic.shopping(rank=1, step=1)
print("index 1:", list(dict(model.named_parameters()))[1])
print("unused: ", unused_parameters(model, clinic.loss_if_clicked(model, rows, clicked)))

# %% [markdown]
# ## Break it: the wrong group
# Four ranks, two replicas of a model that is cut in two: ranks 0 and 1 hold one, ranks 2 and 3 the other. The halves add up their outputs.

# %% tags=["lab-failure", "nbval-check-output"]
own_lines(clinic.pair_by_remainder)

# %% tags=["lab-failure"]
logs = Path(tempfile.mkdtemp())
with expect_failure(
    RankError,
    match=r"rank [12] of 4 has left after no collective yet, but rank [03] waits in all_reduce #1 of group",
    within=20,
    explain={
        "has left after no collective yet": "this rank called all_reduce, and it did nothing",
        "waits in all_reduce #1 of group": "numbers count in each group for itself",
        ("failed too", "was stopped"): "a second pair has the same fault: it failed as well, "
        "or was ended with the first",
    },
) as failure:
    launch(clinic.wrong_pairs, 4, timeout=15, echo=False, log_dir=logs)
warned = [r for r in range(4) if "does not belong" in (logs / f"rank{r}.log").read_text()]
print("ranks whose log has torch's warning 'does not belong to the given group':", warned)
assert failure.error.rank in warned and set(warned) <= {1, 2}

# %% [markdown]
# A rank that calls a collective of a group that it is *not* in gets a warning, and the call returns at once. `rank % 2` sends rank 1 to the second pair and rank 2 to the first.
# The other way to mix up groups is worse. If the group holds the rank, nothing hangs. Here the outputs are added over the ranks that hold the *same* half:

# %% tags=["lab-failure", "nbval-check-output"]
def same_half(rank, size, parts):
    return {"model": list(range(rank % parts, size, parts))}


outputs = list(launch(clinic.wrong_pairs, 4, same_half, timeout=15, echo=False))
print("rank r brings 10**r; right: [11, 11, 1100, 1100]; got:", [int(one) for one in outputs])
assert outputs == [101.0, 1010.0, 101.0, 1010.0]

# %% [markdown]
# ## Break it: an address from last week
# Two hosts. The launcher sets `MASTER_PORT`; then the script reads a settings file, and the file on host 1 still has last week's port. Plain torch, as at work.

# %% tags=["lab-failure", "nbval-check-output"]
own_lines(clinic.file_wins)

# %% [markdown]
# Host 1 gives up after half a second and host 0 after twenty, so that the message is the same in every run.

# %% tags=["lab-failure"]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    nobody_there = free.getsockname()[1]

with expect_failure(
    RankError,
    match="rank 1 of 2 failed: DistNetworkError: The client socket has timed out",
    within=30,
    explain={
        "The client socket has timed out": "a rank that is no host of the store tries to connect",
        "trying to connect to (127.0.0.1": "compare address and port with those that rank 0 uses",
        (
            "rank 0 was stopped while it waited in init_process_group",
            "rank 0 was stopped",
            "rank 0 had not started yet",
        ): "rank 0 is well: it waits for a second rank, or is about to",
    },
):
    given = (clinic.file_wins, nobody_there, (20, 0.5))
    launch(clinic.old_settings, 1, *given, nnodes=2, timeout=20, echo=False)

# %% [markdown]
# With equal timeouts rank 0 may speak first. Its message is `DistStoreError: wait timeout after ... ms, keys: /default_pg/0//cpu//0/1`. The last number of the key is the rank
# that did not write it: rank 1. A port on which *another* job listens gives the same text on both ranks, or `address already in use` on rank 0.
#
# ## Break it: the barrier that was added against a hang
# S0: against a deadlock "use barrier()". Here is the first patient with a barrier before each step.

# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match="rank 0 waits in barrier #6.* rank 1 waits in all_reduce #6",
    within=20,
    explain={
        "different operations as number 6": "5 matched: barrier and all-reduce of steps 0, 1, a barrier",
        "rank 0 waits in barrier #6": "rank 0 skipped the batch of step 2 and is in step 3",
        "rank 1 waits in all_reduce #6": "rank 1 is in step 2: now the line of the fault is named",
    },
    lines=1,
) as failure:
    launch(clinic.barrier_before_each_step, 2, timeout=2, echo=False)
recorded["barrier before each step"] = [report.state for report in failure.error.reports]

# %% [markdown]
# The barrier cured nothing. It *moved* the hang from the end of the run to the step of the fault. That is what it is good for: it makes ranks meet
# at a place you know. Take it out when you have found the cause; it costs a message and the wait for the slowest in each step.
#
# And here a barrier that waits "until the file is written", in a trainer that had no fault:

# %% tags=["lab-failure", "nbval-check-output"]
print("\n".join(inspect.getsource(clinic.barrier_on_rank_0).splitlines()[3:]))

# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match="rank 1 of 2 has left after all_reduce #3, but rank 0 waits in barrier #4",
    within=20,
    explain={
        "rank 1 of 2 has left": "rank 1 is right to leave: its work is done",
        "rank 0 waits in barrier #4": "inside `if w.rank == 0`, so nobody else will come",
    },
    lines=1,
) as failure:
    launch(clinic.barrier_on_rank_0, 2, timeout=15, echo=False)
recorded["barrier under rank 0"] = [report.state for report in failure.error.reports]

# %% [markdown]
# The fix is the indentation: `if w.rank == 0:` holds the saving alone, and the barrier stands below it, where every rank comes.
# Note whom the message blames: rank 1, which is innocent. The late rank is where you start to look; which side of the difference is wrong, you have to judge.
#
# ## Look: who is late
# Drawn from the states that the ranks recorded above.

# %%
show(lanes_figure({name: recorded[name] for name in ("skips_a_batch", "own_vocabulary")}))

# %%
show(lanes_figure({name: recorded[name] for name in list(recorded)[2:]}))

# %% [markdown]
# Three patterns:
#
# - **a gap**: a rank has started fewer collectives than the others. Look at what it did instead, and whether the others should have called one more;
# - **no gap, other operations**: two branches of the code. Look at the condition between them;
# - **no gap, same operation**: other sizes, or the network.
#
# ## Build it: who is late?
# Write the rule down. A `RankState` has `rank`, `operation`, `sequence` (its number in its group), `waits`, `group`, `members` (the group's ranks; empty: all),
# `groups` (for each group the number of the last collective that this rank has started) and `sizes`.


# %% tags=["exercise"]
def who_is_late(states):
    """{"late": sorted list of ranks, "why": text} from one RankState per rank.

    A rank that waits in number n of its group is waiting for each member that has started fewer
    than n collectives of that group (`states[r].groups.get(group, 0)`). All of those are late.
    why: "late" if any is. Else, if two ranks wait in the same group and number, "different
    operations" or "different sizes" if they differ in that. Else "all are here" if a rank waits,
    and "nobody waits" if none does.
    """
    ### BEGIN SOLUTION
    waiting = [state for state in states if state.waits]
    late = set()
    for state in waiting:
        for rank in state.members or range(len(states)):
            if states[rank].groups.get(state.group, 0) < state.sequence:
                late.add(rank)
    if late:
        return {"late": sorted(late), "why": "late"}
    for what in ("operation", "sizes"):
        for a in waiting:
            for b in waiting:
                same = (a.group, a.sequence) == (b.group, b.sequence)
                if same and getattr(a, what) != getattr(b, what):
                    return {"late": [], "why": f"different {what.rstrip('s')}s"}
    return {"late": [], "why": "all are here" if waiting else "nobody waits"}
    ### END SOLUTION


# %% tags=["hint"]
hint("12-late")

# %% [markdown]
# ## Check: who is late?

# %% tags=["check"]
check("12-late", who_is_late)

# %% [markdown]
# On what the ranks recorded:

# %% tags=["nbval-check-output"]
if solved("12-late"):
    for name, states in recorded.items():
        print(f"{name}: {who_is_late(states)}")

# %% [markdown]
# ## Build it: the diagnosis
# For each patient the cause, one of `"condition"`, `"shapes"`, `"unused parameter"`, `"wrong group"`, `"stale address"`, and the ranks whose
# code, data or settings you look at first, as a list. The messages above name them. For shapes, list every rank that brought a shape of its own.

# %% tags=["exercise"]
# diagnosis = {"skips_a_batch": ("shapes", [3]), "own_vocabulary": (..., [...]),
#              "unused_head": ..., "wrong_pairs": ..., "old_settings": ...}
### BEGIN SOLUTION
diagnosis = {
    "skips_a_batch": ("condition", [0]),
    "own_vocabulary": ("shapes", [0, 1]),
    "unused_head": ("unused parameter", [1]),
    "wrong_pairs": ("wrong group", [1, 2]),
    "old_settings": ("stale address", [1]),
}
### END SOLUTION

# %% tags=["hint"]
hint("12-diagnosis")

# %% [markdown]
# ## Check: the diagnosis

# %% tags=["check"]
check("12-diagnosis", diagnosis)

# %% [markdown]
# ## Build it: the condition
# All ranks must decide alike. `w.all_agree(flag)` is true on every rank if `flag` is true on every rank, and false on every rank otherwise. It is a
# collective itself, so it must stand where all ranks come.


# %% tags=["exercise"]
def agreed_step(w, weight, loss, gradient):
    """One step: average `gradient` over the ranks, weight -= 0.5 * average, in place.

    If the loss is not finite on any rank, all ranks skip the step.
    """
    ### BEGIN SOLUTION
    if not w.all_agree(math.isfinite(loss)):
        return
    dist.all_reduce(gradient)
    weight -= 0.5 * gradient / w.size
    ### END SOLUTION


# %% tags=["hint"]
hint("12-skip")

# %% [markdown]
# ## Check: the condition

# %% tags=["check"]
check("12-skip", agreed_step)

# %% [markdown]
# ## Build it: the shapes


# %% tags=["exercise"]
def all_items(rows):
    """The vocabulary: every item of any rank's rows, each once, sorted; the same on every rank.

    `dtlab.gather(x, dst=None)` gives every rank the list of what each rank handed in.
    """
    ### BEGIN SOLUTION
    everybody = dtlab.gather(set(rows), dst=None)
    return sorted(set().union(*everybody))
    ### END SOLUTION


# %% tags=["hint"]
hint("12-vocabulary")

# %% [markdown]
# ## Check: the shapes

# %% tags=["check"]
check("12-vocabulary", all_items)

# %% [markdown]
# ## Build it: the unused parameter
# Both heads must take part in every step. What is the sum over no rows?


# %% tags=["exercise"]
def loss_of_both(model, rows, clicked):
    """The sum of the click scores of all rows and of the buy scores of the rows with `clicked`.

    The loss depends on every parameter in every step, also when no row was clicked.
    """
    ### BEGIN SOLUTION
    click, buy = model(rows)
    return click.sum() + buy[clicked].sum()
    ### END SOLUTION


# %% tags=["hint"]
hint("12-heads")

# %% [markdown]
# ## Check: the unused parameter

# %% tags=["check"]
check("12-heads", loss_of_both)

# %% [markdown]
# ## Build it: the group


# %% tags=["exercise"]
def groups_of(rank, size, parts):
    """{"model": ranks that hold my replica, "data": ranks that hold my part}, as sorted lists.

    A replica is `parts` neighbouring ranks: 0 .. parts-1, then the next `parts`, and so on.
    """
    ### BEGIN SOLUTION
    replica = rank // parts
    model = [parts * replica + part for part in range(parts)]
    data = list(range(rank % parts, size, parts))
    return {"model": model, "data": data}
    ### END SOLUTION


# %% tags=["hint"]
hint("12-groups")

# %% [markdown]
# ## Check: the group

# %% tags=["check"]
check("12-groups", groups_of)

# %% [markdown]
# ## Build it: the address
# The launcher started you a second ago and knows where rank 0 is. A file does not. Its names are in `clinic.LAUNCHER`.


# %% tags=["exercise"]
def settings(environ, file):
    """(variables, ignored) for a job that reads a settings file.

    variables: a new dict with `environ` and `file`. Where both have a name, the file wins, except
    for the names in clinic.LAUNCHER: there the environment wins.
    ignored: sorted list of the launcher's names for which the file had another value.
    """
    ### BEGIN SOLUTION
    launcher = {name: environ[name] for name in clinic.LAUNCHER if name in environ}
    ignored = sorted(name for name in launcher if name in file and file[name] != launcher[name])
    return {**environ, **file, **launcher}, ignored
    ### END SOLUTION


# %% tags=["hint"]
hint("12-settings")

# %% [markdown]
# ## Check: the address

# %% tags=["check"]
check("12-settings", settings)

# %% [markdown]
# All five again, patched, inside their time budget:

# %% tags=["nbval-check-output"]
patches = {"skip": agreed_step, "vocabulary": all_items, "heads": loss_of_both}
patches |= {"groups": groups_of, "settings": settings}
if all(solved(f"12-{name}") for name in patches):
    healthy = {name: {"timeout": 90, "echo": False} for name in clinic.patients()}
    healthy["old_settings"]["nnodes"] = 2
    for (name, patient), patch in zip(clinic.patients().items(), patches.values(), strict=True):
        ranks = {"wrong_pairs": 4, "old_settings": 1}.get(name, 2)
        print(f"{name}: {len(launch(patient, ranks, patch, **healthy[name]))} ranks returned")

# %% [markdown]
# ## The real thing
# You have met `RankError` (from `launch`) and its states. Under `torchrun` there is no launcher of ours to ask: there `dtlab.world()` asks through the ranks' own store, and raises
# `LateRankError` with the same sentence. What plain torch gives you:
#
# ### Short timeouts

# %% tags=["nbval-check-output"]
from torch.distributed.constants import default_pg_timeout

print("torch's default for gloo, in minutes:", int(default_pg_timeout.total_seconds() // 60))

# %% [markdown]
# NCCL's default is 10 minutes. `init_process_group(timeout=timedelta(seconds=60))`, or `world(timeout=60)`, is what a debugging run should have. In production
# the timeout must be longer than the longest honest wait: an evaluation on rank 0, a checkpoint, the first batch from a cold disk.
#
# ### monitored_barrier, and a rank that is only slow
# gloo has a barrier that names who is missing. Here all collectives are right; rank 1's *reader* does not come back. And S0's remedy against deadlocks,
# `num_workers=0`, is in place.

# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match="Ranks 1 failed to pass monitoredBarrier",
    within=30,
    explain={
        "Ranks 1 failed to pass monitoredBarrier": "torch's own words, on rank 0: who did not come",
        "rank 1 of 2 is late: last operation no collective yet": "the recorder's: it is in none",
        ("in __getitem__", "in stuck_reader"): "where it is instead, which torch does not say: "
        "in the data set, or on its way there",
    },
    lines=1,
) as failure:
    launch(clinic.stuck_reader, 2, 0.5, timeout=25, echo=False)
recorded["stuck_reader"] = [report.state for report in failure.error.reports]

# %% [markdown]
# NCCL has no `monitored_barrier`; make a gloo group beside it (`dist.new_group(backend="gloo")`) and call it there.
#
# ### Lines that say who wrote them
# `w.log` prefixes each line with `[Rank r]`, and `log_dir=` or `world(log_file="rank{rank}.log")` keeps a file per rank. Without dtlab, the same with `logging`:


# %% tags=["nbval-check-output"]
def prefixed():
    with world() as w:
        log = logging.getLogger("trainer")
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"[Rank {w.rank}] %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.warning("before all_reduce of step %d", 3)
        return dist.is_initialized()


answers = launch(prefixed, 2, timeout=15, echo=False)
print("".join(answers.logs).strip())
print("is_initialized on each rank:", list(answers))

# %% [markdown]
# Write the line *before* the collective, and flush: a line after it is never written by a rank that waits.
#
# ### S0's beliefs, judged
# Two more measurements. With gloo, how many lines does `NCCL_DEBUG=INFO` write? And what does a rank say that is out of open files?

# %% tags=["nbval-check-output"]
quiet = launch(prefixed, 2, timeout=15, echo=False, env={"NCCL_DEBUG": "INFO"})
print("lines with NCCL in them, on the CPU:", sum("NCCL" in text for text in quiet.logs))


def out_of_files():
    import resource

    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    try:
        while True:
            held.append(open(os.devnull))
    except OSError as error:
        return error.strerror


print("out of open files:", launch(out_of_files, 1, timeout=15, echo=False)[0])

# %% [markdown]
# | S0's move or belief | measured here | verdict |
# |---|---|---|
# | look whether `is_initialized()` is true | true on every rank; four of the five faults came after joining | necessary, and finds one fault: a script that never joined. Not a hang |
# | "use barrier()" against a deadlock | moved one hang, made another | it locates. It cures nothing |
# | prints that depend on the rank show who is missing | the log files named rank 0's `nan` | right, with a prefix, a file per rank, and the line before the call |
# | `num_workers=0` | the reader stood still with it | a test, not a cure: the stack of the late rank says whether a loader is in it |
# | `ulimit -n 65535` | `Too many open files`, at once, and by name | right for that message only. It is an error, not a hang; raising it puts off a leak |
# | "`NCCL_DEBUG=INFO` is 10x more useful than `nvidia-smi`" | no line on the CPU | not measured here; on a GPU they answer different questions, see below |
#
# ## On a GPU
# The five faults are the same. What differs is how they look.
#
# - A rank that waits inside NCCL *computes*: `nvidia-smi` shows about 100 % for it. A GPU that is busy and a loss that does not move is a hang. The rank with 0 % is
#   often the one to look at, so `nvidia-smi` is of use as well. `NCCL_DEBUG=INFO` says which interface, transport and version were chosen when the group started; it does not say who is late.
# - A collective returns before it is over, so the Python stack may stand lines further on. The number in the flight recorder is what you go by.

# %% [markdown]
# ### The variables that matter
# | variable | CPU, gloo | GPU, NCCL | for what |
# |---|---|---|---|
# | `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE` | yes | yes | the launcher's; print them first, on every rank |
# | `GLOO_SOCKET_IFNAME` | yes | for gloo groups beside | network interface; a wrong one hangs while connecting |
# | `NCCL_SOCKET_IFNAME` | no | yes | the same for NCCL |
# | `NCCL_DEBUG=WARN` or `INFO` | no | yes | INFO while starting, WARN always |
# | `NCCL_DEBUG_SUBSYS=INIT,NET` | no | yes | fewer lines of INFO |
# | `NCCL_P2P_DISABLE=1`, `NCCL_IB_DISABLE=1` | no | yes | leave out one way of transport: a test, slow |
# | `TORCH_DISTRIBUTED_DEBUG=INFO` or `DETAIL` | yes | yes | names of unused parameters; DETAIL compares every collective |
# | `TORCH_CPP_LOG_LEVEL=INFO` | yes | yes | what the store and the connections do |
# | `TORCH_FR_BUFFER_SIZE=2000` | yes | yes | flight recorder: last collectives of each rank. Set before torch is imported |
# | `TORCH_NCCL_DUMP_ON_TIMEOUT=1` | no | yes | write the flight recorder to a file when a collective times out |
# | `TORCH_NCCL_ASYNC_ERROR_HANDLING` | no | yes | on by default: the process ends when a collective fails |

# %% tags=["gpu-optional"]
if torch.cuda.is_available():
    told = launch(prefixed, 1, timeout=60, echo=False, env={"NCCL_DEBUG": "INFO"})
    print("lines with NCCL in them:", told.logs[0].count("NCCL"))
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# The hang of the first patient, with gloo's default timeout and with a minute. (With NCCL's default of 10 minutes the first line is a third.) Both times the job has to be started again.

# %%
bill(
    "30 minutes until the default timeout",
    "60 seconds until a short one",
    instance="ml.g5.12xlarge",
    count=2,
    fault_seconds=30 * 60,
    fix_seconds=60,
)

# %% [markdown]
# That is one hang. People meet five or more before they have the cause, because the message names nobody; and a job that hangs at night without any
# timeout (a rank stuck in its reader, say, with the others in a collective of a library that sets none) is billed until somebody looks.
#
# ## Recap

# %%
recap(
    "12",
    [
        "Collectives match by number: the late rank is the one with the lowest, and the fault is earlier.",
        "No collective under a condition of one rank: let all ranks agree first.",
        "Short timeout, file per rank, recorder: cause and rank first. A barrier locates, it cures nothing.",
    ],
)
