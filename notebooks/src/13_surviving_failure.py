# %% [markdown]
# # Surviving failure
#
# A job of 48.5 hours was put on spot hosts that were taken away 0.15 times an hour, and it wrote no checkpoint. Each time it began anew.
# It could not end: the expected time was 9,618 hours, which is \$68,000 of `ml.g5.12xlarge` at the on-demand price, for work worth \$344.
#
# What must be saved so that a run that is killed anywhere ends as if nothing had happened, and how often?
#
# (The incident is from a public report and its author's simulation; the price is ours. S0, one of the three write-ups that this course takes its material
# from, did save: every 30 minutes, with "at most 3 retries". We shall see what that is worth.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, expect_failure, goal, hint, predict, recap, running
from dtlab.course import solved

goal(
    [
        "say what belongs to the state of a run, and prove bit for bit that it is all",
        "write a checkpoint that is whole or not there",
        "let all ranks stop at one step when one of them gets a signal",
        "compute how often to save, and what spot really saves",
    ],
    minutes=55,
    needs=["03", "04", "12"],
)

# %% tags=["hide-input"]
import copy
import inspect
import io
import math
import os
import shutil
import signal
import tempfile
import time
import warnings
from pathlib import Path

import torch

# %% tags=["hide-input"]
from dtlab import DtlabWarning, RankError, launch, world
from dtlab.cost import billing, spot
from dtlab.course.interrupted import ROWS, TOTAL, WORK, Host, Run, Strike, rows
from dtlab.course.interrupted import agreed_stop, without_each
from dtlab.diagnose.work import read_attempts, totals
from dtlab.figures.interruptions import work_figure
from dtlab.figures.style import show
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.notice import SpotNotice
from dtlab.train.signals import StopSignals
from dtlab.widgets.interruptions import interval_explorer

# %% [markdown]
# ## Predict
# Two ranks, 60 steps. Every 10 steps rank 0 saves the *weights*. After step 37 rank 1 is killed; both ranks start again, load the weights of step 30
# and go on to step 60. Commit to an answer before you go on.

# %%
ask = predict(
    "13-weights",
    "How does the result compare with that of a run that nobody killed?",
    [
        "the same weights: the missing steps were made again",
        "the same up to rounding",
        "another model, about as good, and no message",
        "the loss diverges: the optimizer has lost its state",
    ],
)

# %% [markdown]
# ## Break it: a rank is gone
# The run of this lesson is a small DeepFM on made-up clicks: 640 rows, 32 in a step, so 20 steps in an epoch and 60 in all. `Run` makes the steps, and keeps a log of them. A `Strike` sends a signal to one rank
# after a step, in the first attempt of a job.


# %% tags=["nbval-check-output"]
print(inspect.getsource(Run.step))

# %%
data = rows()
kill = Strike(step=37, rank=1)


def train(folder, strike=None):
    """60 steps, and nothing is saved."""
    with world() as w:
        run = Run(w, data, folder, strike=strike)
        while run.steps < TOTAL:
            run.step()
        return result(run)


def result(run):
    return {"weights": run.weights(), "loss": run.loss(), "seen": run.seen, "rates": run.rates}


def new_folder():
    return Path(tempfile.mkdtemp())


# %% [markdown]
# First without a strike, for comparison. Then with it.

# %%
whole = launch(train, 2, new_folder(), timeout=60, echo=False)

# %% tags=["lab-failure"]
gone = new_folder()
with expect_failure(
    RankError,
    match="rank 1 of 2 was killed by SIGKILL",
    within=60,
    explain={
        "rank 1 of 2 was killed by SIGKILL": "no exception, no traceback: it had no say",
        "when memory runs out": "the usual sender; a host that is taken is another",
        "rank 0": "what the death of rank 1 did to it",
        "restarts are off (max_restarts=0)": "the default, with torchrun too: it stays down",
    },
):
    launch(train, 2, gone, kill, timeout=50, echo=False)

# %% [markdown]
# The job is gone, and 37 steps with it. `max_restarts=1` (torchrun: `--max-restarts=1`) starts *all* ranks again when one is lost. It starts the function again, from its first line:

# %% tags=["lab-failure", "nbval-check-output"]
anew = new_folder()
launch(train, 2, anew, kill, max_restarts=1, timeout=60, echo=False)
for folder in (gone, anew):
    attempts = read_attempts(folder / WORK)
    print([attempt[:2] for attempt in attempts], totals(attempts, TOTAL))
assert totals(read_attempts(anew / WORK), TOTAL) == {"useful": 23, "redone": 37, "lost": 37}

# %% [markdown]
# An elastic restart without a checkpoint is a new run. Ninety-seven steps were paid for sixty; on a host that is taken every 37 steps it never ends.
#
# ## Break it: the weights, and nothing else
# What most scripts save. Rank 0 writes, both ranks read.


# %%
def train_with_weights(folder, strike=None):
    with world() as w:
        run = Run(w, data, folder, strike=strike)
        file = folder / "weights.pt"
        if file.exists():
            saved = torch.load(file, weights_only=True)
            run.model.load_state_dict(saved["model"])
            run.steps = saved["step"]
        while run.steps < TOTAL:
            run.step()
            if run.steps % 10 == 0:
                if w.rank == 0:
                    torch.save({"model": run.model.state_dict(), "step": run.steps}, file)
                run.note("saved")
                w.barrier()
        return result(run)


# %% tags=["lab-failure", "nbval-check-output"]
light = new_folder()
resumed = launch(train_with_weights, 2, light, kill, max_restarts=1, timeout=60, echo=False)
attempts = read_attempts(light / WORK)
print([attempt[:2] for attempt in attempts], totals(attempts, TOTAL))
print("restarts:", resumed.restarts)
apart = (resumed[0]["weights"] - whole[0]["weights"]).abs().max().item()
print("largest difference of a weight over 0.001:", apart > 1e-3)
print("losses within 0.1 of each other:", abs(resumed[0]["loss"] - whole[0]["loss"]) < 0.1)
assert apart > 1e-3
assert abs(resumed[0]["loss"] - whole[0]["loss"]) < 0.1

# %%
ask.reveal("c", because="Nothing fails. Moments, the rate's place and the epoch's are lost.")

# %% [markdown]
# The job ended, the report looks well, and it is another model. Which rows did the last 20 steps see? In the uninterrupted run they are the third epoch.


# %% tags=["lab-failure", "nbval-check-output"]
def rows_of_last_epoch(results):
    """How many different rows both ranks saw in the last 20 steps."""
    return len({row for one in results for step in one["seen"][-20:] for row in step})


for name, results in {"uninterrupted": whole, "weights only": resumed}.items():
    rows_seen = rows_of_last_epoch(results)
    print(f"{name}: {rows_seen} of {ROWS} rows, {ROWS - rows_seen} never")
assert rows_of_last_epoch(whole) == ROWS > rows_of_last_epoch(resumed)

# %% [markdown]
# The sampler began anew at step 30 with the order of the *first* epoch, so its "epochs" no longer end where epochs end: some rows twice, others never. No coverage of an epoch is promised by the number of its steps.
#
# ## Look: which part of the state is missed?
# `without_each` saves everything at step 45 with dtlab's `Checkpointer`, puts all but one part into a new run, and goes on to step 60; once for each part. Each is compared with the
# run that nothing happened to.


# %%
def by_part(folder):
    """part left out -> whether rates, samples and weights are those of the whole run."""
    with world() as w:
        right, rows = whole[w.rank], {}
        for missing, run in without_each(w, data, folder).items():
            same = run.rates == right["rates"][45:], run.seen == right["seen"][45:]
            rows[missing] = (*same, run.weights().equal(right["weights"]))
        return rows


# %% tags=["nbval-check-output"]
with running("six runs"):
    both = launch(by_part, 2, new_folder(), timeout=90, echo=False)
print("left out     rates     samples   weights, bit for bit")
for missing, same in both[0].items():
    said = ["the same" if one else "others" for one in same]
    print(f"{missing:12} {said[0]:9} {said[1]:9} {said[2]}")
    assert same[2] == (missing == "nothing")
assert both[0] == both[1]

# %% [markdown]
# Five parts, and each of them alone makes another model. Only with nothing left out are the weights the same, bit for bit. "Generators" are those that dropout draws from: one *per rank*.
#
# ## Break it: a notice that nobody hears
# A spot host is taken away with two minutes' notice. On EC2 the notice is a local address that answers 404 until it has been decided, and then with the time; SageMaker sends SIGTERM and, 120 seconds
# later, SIGKILL. `Host` is such an address, on this machine. The notice comes at step 30, the end at step 37.


# %%
def deaf(folder, strike):
    """As every script that does not ask."""
    with world() as w, Host() as host:
        run = Run(w, data, folder, strike=strike)
        while run.steps < TOTAL:
            run.step()
            if w.rank == 1 and run.steps == 30:
                host.give_notice()
                print("step 30: this host will be taken away")
            if w.rank == 1 and run.steps == 36:
                print(f"step 36: asked for the notice {host.asked} times", flush=True)


# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match="rank 1 of 2 was killed by SIGKILL",
    within=60,
    explain={
        "step 30: this host will be taken away": "the notice was there for seven steps",
        "asked for the notice 0 times": "nobody looked. A run is told only if it asks",
    },
):
    launch(deaf, 2, new_folder(), kill, timeout=50, echo=False)

# %% [markdown]
# ## Break it: one rank hears, and leaves
# SIGTERM can be caught. Here each rank looks at its own flag before each step. Only rank 1's host is taken, so only rank 1 is told. It saves and leaves, as it should?


# %%
def leaves_alone(folder, strike):
    with world() as w, StopSignals() as signals:
        run = Run(w, data, folder, strike=strike)
        while run.steps < TOTAL and signals.received is None:
            run.step()
        torch.save(run.model.state_dict(), folder / f"rank{w.rank}.pt")
        return run.steps


# %% tags=["lab-failure"]
told = Strike(step=37, rank=1, number=signal.SIGTERM)
with expect_failure(
    RankError,
    match=r"rank 1 of 2 has left after .*, but rank 0 waits in",
    within=60,
    explain={
        "rank 1 of 2 has left": "it got the signal, saved and returned",
        "but rank 0 waits in": "it was told nothing, and is in step 38, which takes two",
        "restarts are off": "with them both would have begun again, in the two minutes",
    },
    lines=14,
):
    launch(leaves_alone, 2, new_folder(), told, timeout=50, echo=False)

# %% [markdown]
# A stop is a decision of all ranks (lesson 12). Rank 1 has to *say* that it was told, and then all stop at the same step.
#
# ## Look: useful, redone and lost work
# Drawn from the logs of the runs above.

# %%
logs = {"no restart": gone, "restart, nothing saved": anew, "weights every 10": light}
show(work_figure({name: read_attempts(folder / WORK) for name, folder in logs.items()}, TOTAL))

# %% [markdown]
# ## Build it: the state
# A `run` has `model`, `optimizer`, `schedule` and `sampler`, each with `state_dict()` and `load_state_dict(...)`, and `run.steps`. The generator of this process is `torch.get_rng_state()`, and
# `w.gather(x, dst=None)` gives every rank the list of what each rank handed in; without `dst=None` rank 0 alone gets it, and the others None. (The sampler's state counts over all ranks, lesson 04, so it is the same on any number of them.)


# %% tags=["exercise"]
def take(w, run):
    """The whole state of the run, as dicts, lists, numbers and tensors.

    The same on every rank: it holds every rank's generator. It does not change
    when training goes on.
    """
    ### BEGIN SOLUTION
    parts = ("model", "optimizer", "schedule", "sampler")
    state = {name: getattr(run, name).state_dict() for name in parts}
    generators = w.gather(torch.get_rng_state(), dst=None)
    return copy.deepcopy({"parts": state, "steps": run.steps, "generators": generators})
    ### END SOLUTION


def restore(w, run, state):
    """Put what `take` returned into a new run, on every rank.

    Each rank takes back its own generator. If the run was taken on another number of ranks,
    there is no "own": then torch.manual_seed(1000 * run.steps + w.rank).
    """
    ### BEGIN SOLUTION
    for name, part in state["parts"].items():
        getattr(run, name).load_state_dict(part)
    run.steps, generators = state["steps"], state["generators"]
    if len(generators) == w.size:
        torch.set_rng_state(generators[w.rank])
    else:
        torch.manual_seed(1000 * run.steps + w.rank)
    ### END SOLUTION


# %% tags=["hint"]
hint("13-state")

# %% [markdown]
# ## Check: the state
# Two real ranks, interrupted in the warm-up and in the second epoch. Between `take` and the file three more steps are made, as when a state is written in the background. Then three ranks go on with it.

# %% tags=["check"]
check("13-state", take, restore)

# %% [markdown]
# ## Build it: a file that is whole or not there
# A job may die at any byte of a save, and then the half file is the newest one. The cure is as old as file systems: write under another name, push the bytes to the disk, then *rename*, which
# happens in one go.


# %% tags=["exercise"]
def save(folder, step, data):
    """Store the bytes `data` as the checkpoint of `step` in `folder`, a Path.

    Whole under its name, or not there, whenever this process dies; older ones stay. The name
    is "step-" and six digits or more: step-000040. All bytes are on the disk before it appears.
    """
    ### BEGIN SOLUTION
    beside = folder / f".step-{step:06d}.writing"
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, folder / f"step-{step:06d}")
    ### END SOLUTION


def newest(folder):
    """(step, data) of the checkpoint with the highest step in `folder`, or None."""
    ### BEGIN SOLUTION
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    if not steps:
        return None
    return max(steps), (folder / f"step-{max(steps):06d}").read_bytes()
    ### END SOLUTION


# %% tags=["hint"]
hint("13-save")

# %% [markdown]
# ## Check: the file
# The writer is a real process that the kernel kills in the middle of the file.

# %% tags=["check"]
check("13-save", save, newest)

# %% [markdown]
# ## Build it: an agreed stop
# `w.all_agree(flag, rule="any")` is true on every rank if `flag` is true on any. It is a message, a third of a millisecond here and a tenth of a short step, so the ranks ask every `ask` steps and not in each.


# %% tags=["exercise"]
def train_until_told(w, run, total, every, ask, told, save):
    """Make steps until `run.steps` is `total`: "finished"; or any rank was told to: "stopped".

    `told()` says whether *this* rank was told. All ranks ask each other after every step whose
    number `ask` divides, with w.all_agree. `save(run)` is for all ranks together: after every
    step whose number `every` divides, and before a stop; once for a step.
    """
    ### BEGIN SOLUTION
    while run.steps < total:
        run.step()
        stop = run.steps % ask == 0 and w.all_agree(told(), rule="any")
        if stop or run.steps % every == 0:
            save(run)
        if stop:
            return "stopped"
    return "finished"
    ### END SOLUTION


# %% tags=["hint"]
hint("13-stop")

# %% [markdown]
# ## Check: the agreed stop

# %% tags=["check"]
check("13-stop", train_until_told)


# %% [markdown]
# All three together: what you wrote, killed as above, and started again by the launcher.


# %%
def survive(folder, strike=None):
    with world() as w, StopSignals() as signals:
        run = Run(w, data, folder, strike=strike)
        found = newest(folder)
        if found is not None:
            restore(w, run, torch.load(io.BytesIO(found[1]), weights_only=True))

        def keep(run):
            buffer = io.BytesIO()
            torch.save(take(w, run), buffer)
            if w.rank == 0:
                save(folder, run.steps, buffer.getvalue())
            w.barrier()
            run.note("saved")

        def heard():
            return signals.received is not None

        train_until_told(w, run, TOTAL, 10, 4, heard, keep)
        return run.weights()


# %% tags=["nbval-check-output"]
if solved("13-state") and solved("13-save") and solved("13-stop"):
    yours = new_folder()
    results = launch(survive, 2, yours, kill, max_restarts=1, timeout=60, echo=False)
    work = totals(read_attempts(yours / WORK), TOTAL)
    print("restarts:", results.restarts, "- steps:", work)
    print("bit for bit the uninterrupted run:", torch.equal(results[0], whole[0]["weights"]))
    assert torch.equal(results[0], whole[0]["weights"])
    assert work["redone"] <= 10
    logs["yours, killed"] = yours

# %% [markdown]
# Seven steps redone, at most ten: an interruption costs no more than the interval. And told instead of killed, by a SIGTERM to rank 1 after step 37, then started again:

# %% tags=["nbval-check-output"]
if solved("13-state") and solved("13-save") and solved("13-stop"):
    noticed = new_folder()
    launch(survive, 2, noticed, told, timeout=60, echo=False)
    results = launch(survive, 2, noticed, timeout=60, echo=False)
    print(*read_attempts(noticed / WORK), sep="\n")
    print("steps:", totals(read_attempts(noticed / WORK), TOTAL))
    assert torch.equal(results[0], whole[0]["weights"])
    logs["yours, told"] = noticed
    shown = ("restart, nothing saved", "yours, killed", "yours, told")
    show(work_figure({name: read_attempts(logs[name] / WORK) for name in shown}, TOTAL))

# %% [markdown]
# ## Build it: how often?
# S0 saved every 30 minutes and wanted the interval to follow "from the run's length". Let $\tau$ be the work between two saves, $\delta$ the seconds of a save, $M$ the mean time between interruptions of the
# *job*, $R$ the seconds of a restart. A save is paid once in $\tau$. An interruption costs the restart and, on average, half an interval. So the share of time that is lost is
#
# $$w(\tau) = \frac{\delta}{\tau} + \frac{\tau/2 + R}{M} \qquad\text{with its lowest point at}\qquad \tau = \sqrt{2\,\delta M}$$
#
# (Young, CACM 1974.) A job of several hosts is lost with any of them: $M$ is that of one host, divided by the hosts. With 320M parameters at 12 bytes, 0.2 GB/s and 0.15 interruptions an hour:

# %% tags=["nbval-check-output"]
delta = spot.checkpoint_seconds(320e6 * 12, 0.2e9)
mtbf = spot.mtbf_seconds(0.15)
tau = spot.young_interval(delta, mtbf)
print(f"delta = 3.84 GB / 0.2 GB/s = {delta:.1f} s, M = 3600 s / 0.15 = {mtbf:,.0f} s")
print(f"sqrt(2 x {delta:.1f} x {mtbf:,.0f}) = {tau:.0f} s = {tau / 60:.0f} min")
for minutes in (tau / 60, 30):
    parts = 100 * delta / (60 * minutes), 100 * 30 * minutes / mtbf
    lost = 100 * spot.waste(60 * minutes, delta, mtbf)
    said = f"{parts[0]:.1f} saving + {parts[1]:.1f} redone = {lost:.1f} % lost"
    print(f"every {minutes:.0f} min: {said}")

# %% [markdown]
# The length of the run is not in the formula: a run of two days and a run of two months on this host save equally often. The curve is flat around its lowest point: half or twice the best interval loses a quarter more,
# 5 % instead of 4 %. S0's 30 minutes are within that, a fair default on this host.
# S0 balances "storage and recovery"; storage does not take part: old checkpoints are removed when a newer one is whole, so two of 3.84 GB are kept at any interval.
#
# $w$ is good while it is small. It lets an interval be interrupted once; in truth the second try may be, too. The work of one interval and its save, $\tau + \delta$, must be got through in one go, and that takes
# $M\,(e^{(\tau+\delta)/M} - 1)$ on average (Daly, FGCS 2006; as for the whole run below), so without restarts the share lost is
#
# $$w_{\text{exact}}(\tau) = \frac{M}{\tau}\left(e^{(\tau+\delta)/M} - 1\right) - 1$$

# %% tags=["nbval-check-output"]
print("                  M         every     w        exact")
for name, save_seconds, m in (
    ("as above", delta, mtbf),
    ("5 min to write", 300, mtbf),
    ("16 hosts", delta, mtbf / 16),
):
    for every in (spot.young_interval(save_seconds, m), 1800):
        small = spot.waste(every, save_seconds, m)
        exact = m / every * math.expm1((every + save_seconds) / m) - 1
        said = f"{every / 60:3.0f} min   {100 * small:4.1f} %   {100 * exact:4.1f} %"
        print(f"{name:16}{m / 60:4.0f} min   {said}")

# %% [markdown]
# With a state that takes 5 minutes to write, S0's 30 minutes are too often: 21.9 % lost instead of 17.7 %. On 16 hosts they are a poor choice. There they are longer than $M$, 25 minutes: $w$ says 61 %, in truth it is 97 %,
# a run of nearly twice its work, where a save every 4 minutes loses 18 %.
#
# The curve, for the job as above, with a restart of 5 minutes on top: $R/M$ = 300 / 24,000 = 1.25 %.

# %%
interval_explorer()


# %% tags=["exercise"]
def interval(
    state_bytes, bytes_per_second, interruptions_per_hour, hosts, step_seconds, restart_seconds
):
    """(steps between two saves, share of the time that is lost with them).

    Young's interval in whole steps, rounded, at least 1; then w(tau) with that interval.
    `interruptions_per_hour` are those of one host; any one of them stops the job.
    """
    ### BEGIN SOLUTION
    save_seconds = state_bytes / bytes_per_second
    mtbf = 3600 / (interruptions_per_hour * hosts)
    steps = max(1, round(math.sqrt(2 * save_seconds * mtbf) / step_seconds))
    tau = steps * step_seconds
    return steps, save_seconds / tau + (tau / 2 + restart_seconds) / mtbf
    ### END SOLUTION


# %% tags=["hint"]
hint("13-interval")

# %% [markdown]
# ## Check: how often?

# %% tags=["check"]
check("13-interval", interval)

# %% [markdown]
# ### S0's other two numbers
# "At most 3 retries" is a bet on at most three interruptions. "Managed Spot saves 40 %" is the price; redone work and restarts are paid too. Both for the 48.5 hours of the incident, with a save every
# 16 minutes and restarts of 5:

# %% tags=["nbval-check-output"]
hour, work = 3600, 48.5 * 3600
saving = {"interval_seconds": tau, "save_seconds": delta, "restart_seconds": 300}
wall = spot.expected_wall_seconds(work, mtbf, **saving)
never = spot.expected_wall_seconds(work, mtbf)
print(f"no checkpoint: (e^(48.5 x 0.15) - 1) / 0.15 = {never / hour:,.0f} hours expected")
print(f"with them: {wall / hour:.1f} hours, {wall / mtbf:.1f} interruptions expected")
for most in (3, 10, 20):
    chance = spot.chance_of_finishing(work, mtbf, most, **saving)
    print(f"done with at most {most} restarts: {100 * chance:.0f} % of such runs")
short = spot.chance_of_finishing(5 * hour, mtbf, 3, **saving)
print(f"5 hours of work, at most 3 restarts: {100 * short:.0f} %")
for discount in (0.40, 0.65):
    true = spot.true_saving(discount, wall / work - 1)
    print(f"a discount of {100 * discount:.0f} % saves {100 * true:.1f} %")
assert spot.chance_of_finishing(work, mtbf, 3, **saving) < 0.1

# %% [markdown]
# - Three retries end this job in more than nine of ten cases, although every restart would have worked. On SageMaker the two are different things: `RetryStrategy` is for internal errors of the service, and a reclaimed spot host
#   is replaced until `MaxWaitTimeInSeconds` is over. Three restarts are enough for a run of five hours here, which expects less than one interruption.
# - 40 % is low for a discount (54 to 78 % were logged in public), and 65 % saves less than 65 %. The console's "savings" are 1 - billable / training time *of the spot job*: restarts are in both, so it does not show
#   what they cost (AWS's own example: 62.8 % shown, 62.0 % against an on-demand run).
#
# ## The real thing
# `dtlab.train.checkpoint.Checkpointer` does what you wrote, and what you did not: checksums (a disk can damage a file that was whole), a lock (two jobs in one folder), a save in the background on a process group of its own,
# safetensors and JSON instead of a pickle, old checkpoints removed, sharded tensors (lesson 09), a line for each thing that it passes over. (These cells run when yours are solved.)


# %%
def keep_alive(folder, strike=None, notice_at=None):
    with world() as w, Host() as host, StopSignals() as signals, Checkpointer(folder) as saved:
        run = Run(w, data, folder, strike=strike)
        info = saved.load(run.parts())
        run.steps = info.step if info is not None else 0

        def keep(run):
            saved.save(run.parts(), run.steps, samples=run.steps * 32)
            saved.wait()  # so that the log says "saved" when it is true
            run.note("saved")

        def heard():
            if w.rank == 1 and notice_at is not None and run.steps >= notice_at:
                host.give_notice()
                while signals.received is None:  # the host is asked every 50 ms
                    time.sleep(0.01)
            return signals.received is not None

        with SpotNotice(signals, host.url, every_seconds=0.05):
            how = agreed_stop(w, run, heard, keep)  # your loop, every 10, asking every 4 steps
        said = {"how": how, "why": signals.received, "asked": host.asked}
        return {"weights": run.weights(), **said}


# %% tags=["nbval-check-output"]
if solved("13-state"):
    real = new_folder()
    results = launch(keep_alive, 2, real, kill, max_restarts=1, timeout=60, echo=False)
    same = results[0]["weights"].equal(whole[0]["weights"])
    print("killed and started again, bit for bit:", same)
    print("steps:", totals(read_attempts(real / WORK), TOTAL))
    assert same

# %% [markdown]
# The notice of before, heard this time: `SpotNotice` asks in a thread, every five seconds at work, and turns the answer into the flag that SIGTERM sets. Rank 1's host is told at step 32, both ranks save and leave; then the job starts again.

# %% tags=["nbval-check-output"]
if solved("13-stop"):
    real = new_folder()
    first = launch(keep_alive, 2, real, notice_at=30, timeout=60, echo=False)
    for rank, one in enumerate(first):
        print(f"rank {rank}: {one['how']}, told by: {one['why']}")
    print("rank 1 asked its host:", first[1]["asked"] > 0)
    half = Path(shutil.copytree(real, new_folder(), dirs_exist_ok=True))  # for below
    results = launch(keep_alive, 2, real, timeout=60, echo=False)
    print("attempts:", [attempt[:2] for attempt in read_attempts(real / WORK)])
    print("bit for bit:", results[0]["weights"].equal(whole[0]["weights"]))
    assert results[0]["weights"].equal(whole[0]["weights"])
    assert totals(read_attempts(real / WORK), TOTAL)["lost"] == 0

# %% [markdown]
# Nothing lost, nothing redone: a notice that is heard is worth a checkpoint at the last moment.
#
# ### On another number of ranks
# One host is gone and no other comes: go on with what is left. The same checkpoint of step 32, in this process alone, a world of one. What can be the same is: the samples of each step, the rate, the arithmetic up to
# rounding. What cannot: dropout's draws, which belong to a rank.

# %% tags=["nbval-check-output"]
if solved("13-stop"):
    with warnings.catch_warnings(record=True) as caught, world() as w:
        warnings.simplefilter("always", DtlabWarning)
        alone = Run(w, data)
        with Checkpointer(half) as saved:
            info = saved.load(alone.parts())
        alone.steps = info.step
        while alone.steps < TOTAL:
            alone.step()
    print(f"step {info.step}, {info.samples} samples, saved by {info.world_size} ranks")
    print(caught[0].message)
    pairs = zip(whole[0]["seen"][32:], whole[1]["seen"][32:], strict=True)
    same = [sorted(a + b) for a, b in pairs] == [sorted(one) for one in alone.seen]
    print("the same samples in each of the 28 steps:", same)
    assert same

# %% [markdown]
# Bit for bit is promised on the same number of ranks only. There it holds on three and more as well, with one more precaution: torch's DDP sorts its buckets anew after the first backward, and so adds in another order from the
# second step on. `dtlab.train.settle` makes two backwards of weight zero before the first step, in fresh and in resumed runs, so that every step has the later order.
#
# ### A whole run
# `dtlab train` does all of this by itself: `--checkpoint.every-seconds`, `--checkpoint.spot-notice ec2`, `--resume`, `--checkpoint.grace-seconds` (60) after SIGTERM or Ctrl-C. `python -m benchmarks.faults` breaks forty such runs on three ranks (kills of any
# rank at any step, every third while a checkpoint is being written, SIGTERM in training, evaluation and before the first step) and compares each with the run that nothing happened to; two more go on on 1 and 4 ranks.
#
# | | who starts again | what to set |
# |---|---|---|
# | `launch`, `dtlab train` | this process | `max_restarts=3` |
# | `torchrun` | its agent on each host | `--max-restarts=3 --rdzv-id=NAME`; default 0. With `--nnodes=1:2` it goes on with fewer hosts |
# | Slurm | the queue | `--requeue`, and `--signal=USR1@120` for a checkpoint before the time is up |
# | SageMaker | the service, on a new host | `EnableManagedSpotTraining`, `MaxWaitTimeInSeconds`, `CheckpointConfig` |
#
# ## On a GPU
# - The state of a card comes to the host's memory first, and training stands still for that copy only; the disk is written behind its back. Then $\delta$ is the copy: 16 GB at 20 GB/s is under a second, and the best interval shrinks with its root.
# - On SageMaker what lies under `/opt/ml/checkpoints` goes to S3 during the job and comes back before a restart. SIGTERM reaches process 1 of the container, and with the images' own launchers no rank: `dtlab.sagemaker` (lesson 15) hands it on.
# - The generator of each card belongs to the state too (`torch.cuda.get_rng_state`); dtlab's `Generators` takes it when the process uses CUDA.

# %% tags=["gpu-optional"]
if torch.cuda.is_available():
    state = torch.zeros(2**28, device="cuda")  # 1 GiB
    host = torch.empty(state.shape, pin_memory=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    host.copy_(state)
    seconds = time.perf_counter() - began
    print(f"{state.nbytes / seconds / 1e9:.0f} GB/s from the card to the host")
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# The incident, as SageMaker would have ended it: a job may wait and run for `MaxWaitTimeInSeconds`, say five days, and by then it would have been begun some 18 times. Beside it the same work with a save every 16 minutes.

# %% tags=["nbval-check-output"]
five_days = 120 * 3600
ends = 1 - math.exp(-work / mtbf)
print(f"an attempt ends before 48.5 hours in {100 * ends:.2f} % of cases")
print(f"work, uninterrupted:  {billing.cost('ml.g5.12xlarge', work).line()}")
print(f"no checkpoint, until it ends: {billing.cost('ml.g5.12xlarge', never).line()}")
print(f"with checkpoints, on spot: {billing.cost('ml.g5.12xlarge', wall, kind='spot').line()}")

# %%
bill(
    "no checkpoint: five days, and no model",
    "a save every 16 minutes",
    instance="ml.g5.12xlarge",
    fault_seconds=five_days,
    fix_seconds=wall,
)

# %% [markdown]
# Both lines are at the on-demand price; on spot both are a third or so. The first has nothing to show for it.
#
# ## Recap

# %%
recap(
    "13",
    [
        "Weights, optimizer, schedule, sampler, generators: all of it, or another model.",
        "Write beside, push to disk, rename. No rank stops alone: agree, save, leave.",
        "Save every sqrt(2 x save x M). An interruption then redoes one interval at most.",
    ],
)
