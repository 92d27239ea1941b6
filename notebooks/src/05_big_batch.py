# %% [markdown]
# # Big batch: lr scaling, warm-up, cosine
#
# A team moved its training from one card to eight, cut the batch of each card to an eighth and the learning rate to a tenth "in proportion",
# and in 12 hours its accuracy got stuck at 61 %. A grid over rate and batch then took a day, a night and over $800, and found nothing above 63 %.
#
# Which learning rate belongs to a global batch, which to the first hundred steps, and is a loss curve "like an ECG" a sign that it is wrong?
#
# (The incident is S3's. S0, S3 and S4 are the three write-ups that this course takes its incidents from.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, expect_failure, goal, hint, predict, recap, solved

goal(
    [
        "say which batch an optimizer step really had, and scale the rate by it",
        "write one schedule in optimizer steps that is the same on any number of ranks",
        "tell a run that is unstable from a log that shows one rank's own loss",
        "name the step at which two mechanisms fight over the rate",
    ],
    minutes=50,
    needs=["03", "04"],
)

# %% tags=["hide-input"]
import math
import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from dtlab import DtlabWarning, GlobalBatchSampler, Loader, UserError
from dtlab import data_parallel, launch, load_dataset, world
from dtlab.cost import billing
from dtlab.data.config import DataConfig
from dtlab.figures.schedules import jumps, losses_figure, raw_loss_figure
from dtlab.figures.style import show
from dtlab.models.deepfm import DeepFM
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.scaling import effective_batch, scaled_lr
from dtlab.train.schedule import Schedule
from dtlab.widgets.schedules import rates_explorer

# %% [markdown]
# ## Predict
# Four ranks train together, 16 samples on each. Rank 0 prints the loss of *its own* samples in every step, as most scripts do. You could also
# print the mean over all four ranks. Commit to an answer before you go on.

# %%
ask = predict(
    "05-jumps",
    "How much farther does rank 0's own loss jump from step to step than the mean of the four?",
    ["as far: gradients are averaged", "2 times", "4 times", "16 times"],
)

# %% [markdown]
# ## Break it: rates by rule of thumb
# A recommender (DeepFM) on made-up clicks. Every run below sees the same 10,240 rows, each once, in the same order; only the batch and the rate
# differ. `train` is a plain loop; a `Schedule` without a shape is a constant rate.

# %% tags=["hide-input"]
SEED, ROWS = 1, 40 * 256
dataset = load_dataset(DataConfig(name="clicks", rows=13_000))
rows = dataset.train
share = rows.labels.mean().item()
guess = -(share * math.log(share) + (1 - share) * math.log(1 - share))
OPTIMIZERS = {"AdamW": torch.optim.AdamW, "SGD": partial(torch.optim.SGD, momentum=0.9)}


class Plan(NamedTuple):
    optimizer: str
    lr: float
    batch: int  # over all ranks
    config: ScheduleConfig = ScheduleConfig()
    most_steps: int = 10_000


# %%
def train(plans):
    """For each plan, the loss of this rank's own rows in every step."""
    torch.set_num_threads(1)
    losses = {name: [] for name in plans}
    with world() as w:
        for name, plan in plans.items():
            torch.manual_seed(SEED)
            model = DeepFM(dataset.cardinalities, dataset.num_dense, dim=8, hidden=(64,) * 4)
            model = data_parallel(model, w)
            optimizer = OPTIMIZERS[plan.optimizer](model.parameters(), lr=plan.lr)
            steps = min(ROWS // plan.batch, plan.most_steps)
            schedule = Schedule(plan.config, plan.lr, steps)
            loader = Loader(rows, GlobalBatchSampler(len(rows), plan.batch, seed=SEED, tail="drop"))
            for _, batch in zip(range(steps), loader, strict=False):
                logits = model(batch.categorical, batch.dense)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
                optimizer.zero_grad()
                loss.backward()
                schedule.apply(optimizer)
                optimizer.step()
                schedule.advance()
                losses[name].append(loss.item())
    return losses


# %% [markdown]
# The reference is one process, this notebook's own (outside `launch`, `world()` is a world of one), with a batch of 64 at 1e-3. Then, on four ranks, what S3 and S4 did, in our size:
#
# - **S3, naive**: 64 on each rank *as before*, so 256 in a step; the rate stays at 1e-3.
# - **S3, failure 1**: 16 on each rank "because there are more cards", and a tenth of the rate. Four times 16 is 64, so the step has the batch that it had on one card.
# - **S4**: AdamW with `lr = base_lr * world_size` and no warm-up. His printed base rate is 0.001, ours 0.02 for 64 samples, so 0.08 for 256.
# - **the linear rule where it comes from**: SGD with momentum, 0.9 for 64 samples, so 3.6 for 256, no warm-up.

# %% tags=["lab-failure"]
alone = train({"reference": Plan("AdamW", 1e-3, 64)})
plans = {
    "S3 naive": Plan("AdamW", 1e-3, 4 * 64),
    "S3 failure 1": Plan("AdamW", 1e-4, 4 * 16),
    "same batch, same rate": Plan("AdamW", 1e-3, 4 * 16, most_steps=10),
    "AdamW x 4, no warm-up": Plan("AdamW", 4 * 0.02, 4 * 64),
    "SGD x 4, no warm-up": Plan("SGD", 4 * 0.9, 4 * 64, most_steps=10),
}
four = launch(train, 4, plans, timeout=90)


# %% [markdown]
# The ranks' parts are equal, so the loss of a step is the mean over the ranks. How good is a run? We compare the mean of its last eighth of steps with the *constant
# guess*: the loss of a model that gives every row one probability, the share of clicks in the data.


# %% tags=["nbval-check-output"]
def over_ranks(results, name):
    return np.mean([one[name] for one in results], axis=0).tolist()


def last_eighth(losses):
    return float(np.mean(losses[-len(losses) // 8 :]))


reference = alone["reference"]
naive, tenth, same = (over_ranks(four, name) for name in list(plans)[:3])
print(f"steps: reference {len(reference)}, naive {len(naive)}, failure 1 {len(tenth)}")
print("the reference is better than the guess:", last_eighth(reference) < guess)
print("naive is behind the reference:", last_eighth(naive) > last_eighth(reference) + 0.01)
gained, gained_tenth = guess - last_eighth(reference), guess - last_eighth(tenth)
print("failure 1 gained less than half of the reference:", gained_tenth < gained / 2)
print("64 as 4 x 16 at 1e-3 is one process:", np.allclose(same, reference[: len(same)], atol=1e-3))
assert last_eighth(naive) > last_eighth(reference) + 0.01
assert gained_tenth < gained / 2
assert np.allclose(same, reference[: len(same)], atol=1e-3)

# %% [markdown]
# Three things to see.
#
# - **A bigger batch took a quarter of the steps** over the same rows, and at the same rate it is behind. "A bigger batch always converges faster" (S3) is true when you count steps and the
#   rate follows, and only up to a batch size that depends on the problem (McCandlish et al., arXiv 1812.06162).
# - **Failure 1 divided by the wrong number.** The optimizer does not know how many ranks there are. It sees the mean gradient of 64 samples, as before: the last line shows it, loss by loss. Every
#   scaling rule leaves the rate where it was.
# - S3 then tried 1e-5 and 5e-6 and wrote that an epoch took three days. The rate does not change the time of an epoch. A batch of an eighth does: eight times as many steps.
#
# Now the rates that *were* scaled:

# %% tags=["lab-failure", "nbval-check-output"]
adam, sgd = (over_ranks(four, name) for name in list(plans)[3:])
print("AdamW x 4: highest loss over 3 x the guess:", max(adam) > 3 * guess)
print("AdamW x 4: every loss a number:", all(map(math.isfinite, adam)))
print("SGD x 4:   ends as NaN:", math.isnan(sgd[-1]))
assert max(adam) > 3 * guess
assert all(map(math.isfinite, adam))
assert math.isnan(sgd[-1])

# %%
show(losses_figure({"AdamW x 4": adam, "SGD x 4": sgd, "S3 naive": naive}, guess))

# %% [markdown]
# A model that gives one answer to everybody would have been better than AdamW's first steps by far, and SGD's weights are gone. No message, in either case.
#
# ## Break it: two hands on one rate
# S3's remedy was right, linear warm-up and then a cosine. As printed, two mechanisms write the rate: `CosineAnnealingLR` in `scheduler.step()`, and a line that sets
# `param_group["lr"]` while `step < 1000`. Here it is with his numbers, at a total of 2,000 steps, beside the same with `LambdaLR`, and with what he meant.


# %%
def s3_warmup(scheduler_of, warmup, peak=1e-3):
    """S3's loop: set the rate by hand during the warm-up, and step a scheduler all the time."""

    def begin(optimizer, ranks):
        scheduler = scheduler_of(optimizer)

        def before(step):
            if step < warmup:
                for group in optimizer.param_groups:
                    group["lr"] = peak * min(1, (step + 1) / warmup)

        return before, scheduler.step

    return begin


# %%
def rates_used(begin, total, ranks=1):
    """The rate that each of `total` optimizer steps uses."""
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    before, after = begin(optimizer, ranks)
    used = []
    for step in range(total):
        before(step)
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        after()
    return used


# %% tags=["lab-failure", "nbval-check-output"]
def recursive(total):
    return partial(CosineAnnealingLR, T_max=total, eta_min=1e-6)


def closed(total, low=1e-6, peak=1e-3):
    def factor(step):
        return (low + (peak - low) * (1 + math.cos(math.pi * step / total)) / 2) / peak

    return partial(LambdaLR, lr_lambda=factor)


TOTAL, WARMUP = 2000, 1000
meant = Schedule(ScheduleConfig(kind="cosine", warmup=WARMUP, min_lr=1e-6), 1e-3, TOTAL)
by_torch = rates_used(s3_warmup(recursive(TOTAL), WARMUP), TOTAL)
by_lambda = rates_used(s3_warmup(closed(TOTAL), WARMUP), TOTAL)
print("step   meant      CosineAnnealingLR  LambdaLR")
for step in (998, 999, 1000, 1001, 1250, 1500, 1750, 1999):
    want = meant.lr_at(step)
    columns = (f"{used[step]:.2e} ({used[step] / want:.2f}x)" for used in (by_torch, by_lambda))
    print(f"{step:4}   {want:.2e}   {'   '.join(columns)}")
assert round(by_torch[1500] / meant.lr_at(1500), 2) == 0.59
assert round(by_lambda[1000] / by_lambda[999], 2) == 0.5

# %% [markdown]
# Read the two columns.
#
# - **`CosineAnnealingLR` is recursive**: it makes the next rate from the rate that it *finds* in the optimizer. It goes on from the hand-set 1e-3, but by the steep half of a cosine that began at step
#   0. No jump, too fast a fall: 0.59 of the right rate at step 1,500.
# - **`LambdaLR` computes from the base rate** and the step, and knows nothing of the hand. When the hand lets go, at step 1,000, its cosine is half over. The rate halves from one step to the next.
#
# How much it matters depends on the share of the warm-up. With $k$ the step, $W$ the warm-up, $T$ the total, the recursive form gives (for a floor of 0)
#
# $$\mathrm{lr}(k) = \mathrm{peak}\;\frac{1 + \cos(\pi k/T)}{1 + \cos(\pi (W-1)/T)}$$

# %% tags=["nbval-check-output"]
for total in (2_000, 5_000, 50_000):
    step = (WARMUP + total) // 2 if total == 2_000 else total // 2
    ratio = (1 + math.cos(math.pi * step / total)) / (1 + math.cos(math.pi * (WARMUP - 1) / total))
    right = Schedule(ScheduleConfig(kind="cosine", warmup=WARMUP), 1e-3, total).lr_at(step)
    used = 1e-3 * ratio
    print(f"T = {total:6,}, step {step:6,}: 1e-3 x {ratio:.3f}; right {right:.2e}: {used / right:.2f}x")

# %% [markdown]
# In a run of 50,000 steps the fault is mild, and S3's 68 % after one epoch may well have been reached with it. It bites in short runs: the trials from which one
# chooses the rate for the long run.
#
# ## Break it: once per process
# A wrapper that "prepares" a scheduler for several processes may step it once per process at every optimizer step; at least one well-known library does, and says so in its
# documentation. The schedule was counted in the batches of one process. If yours was counted in optimizer steps, it is over N times too early:


# %% tags=["lab-failure", "nbval-check-output"]
def once_per_process(optimizer, ranks):
    scheduler = CosineAnnealingLR(optimizer, T_max=200)

    def after():
        for _ in range(ranks):
            scheduler.step()

    return (lambda step: None), after


for ranks in (1, 2, 4):
    used = rates_used(once_per_process, 200, ranks)
    up = sum(b > a for a, b in zip(used, used[1:], strict=False))
    lowest = f"lowest at step {int(np.argmin(used))} of 200, rises in {up} steps"
    print(f"{ranks} rank{'s' if ranks > 1 else ''}: {lowest}")
assert up > 0

# %% [markdown]
# A cosine does not stay at 0 when it is over. On four ranks it comes up again, twice.
#
# ## Break it: a loss like an ECG
# S3 saw "wild swings for 2,000 steps", S4 a loss "like an ECG". Both read it as an unstable run. S3's explanation: gradient sync amplifies the variance of the updates.
# Take our run of failure 1, whose rate is the lowest of all. What rank 0 would print, and the mean over the ranks:

# %% tags=["nbval-check-output"]
by_rank = [one["S3 failure 1"] for one in four]
factors = [jumps(mine) / jumps(tenth) for mine in by_rank]
print("sqrt(4) =", math.sqrt(4))
print("every rank jumps 1.6 to 2.4 times as far as the mean:", all(1.6 < f < 2.4 for f in factors))
assert all(1.6 < factor < 2.4 for factor in factors)

# %%
ask.reveal("b", because="The mean of N independent samples of the noise has 1 / sqrt(N) of it: sqrt(4) = 2.")

# %% [markdown]
# ## Look: rank 0's own loss over the mean of all ranks

# %%
show(raw_loss_figure(by_rank))

# %% [markdown]
# One run, one set of weights, two logs. The variance of a mean of $N$ equal, independent parts is $\sigma^2 / N$, so its jumps are $\sigma / \sqrt N$. The same holds for gradients:
# **the sync divides their noise, it does not amplify it.** For S3's sentence to be true the ranks would have to *add* gradients instead of averaging them (lesson 03), and then it is the step that is N times too long.

# %% tags=["varies"]
step_noise = jumps(tenth)
print(f"mean of 4 ranks: {step_noise:.3f}; from step to step, times sqrt(4): {2 * step_noise:.3f}")
print("rank 0 to 3, measured:", *(f"{jumps(mine):.3f}" for mine in by_rank))

# %% [markdown]
# So before you touch the rate, log the mean. If the curve calms down by $\sqrt N$, it was the log. If the *mean* jumps, as AdamW x 4 did above, it is the run.
# A rank of S4's job as printed had no sync at all (lesson 03): its curve was that of one card, with the noise of one card's batch. We cannot know which of the two he saw, because
# he logged only one of them.
#
# ## Look: the rate that each step used
# Measured in this process and on 2 and 4 real ranks, step by step, over the rate that was meant (grey). A tenth of S3's numbers: 200 steps, 100 of them warm-up. Choose a schedule.


# %%
def by_schedule(config):
    """What `rates_used` needs, from dtlab's schedule."""

    def begin(optimizer, ranks):
        schedule = Schedule(config, 1e-3, 200)
        return (lambda step: schedule.apply(optimizer)), schedule.advance

    return begin


warm_cosine = ScheduleConfig(kind="cosine", warmup=100, min_lr=1e-6)
CONFIGS = {
    "Schedule, warm-up and cosine": warm_cosine,
    "Schedule, warm-up and linear": ScheduleConfig(kind="linear", warmup=20),
    "Schedule, steps": ScheduleConfig(kind="step", warmup=20, step_every=60),
}
FAULTY = {
    "hand and CosineAnnealingLR": (s3_warmup(recursive(200), 100), warm_cosine),
    "hand and LambdaLR": (s3_warmup(closed(200), 100), warm_cosine),
    "cosine, stepped once per process": (once_per_process, ScheduleConfig(kind="cosine")),
}


# %%
def measure_rates():
    with world() as w:
        begins = {name: begin for name, (begin, _) in FAULTY.items()}
        begins |= {name: by_schedule(config) for name, config in CONFIGS.items()}
        return {name: rates_used(begin, 200, w.size) for name, begin in begins.items()}


measured = {1: [measure_rates()]} | {n: launch(measure_rates, n, timeout=60) for n in (2, 4)}
runs = {name: {ranks: measured[ranks][0][name] for ranks in measured} for name in measured[1][0]}
intended = CONFIGS | {name: config for name, (_, config) in FAULTY.items()}
right = {name: [Schedule(intended[name], 1e-3, 200).lr_at(s) for s in range(200)] for name in runs}
rates_explorer(runs, right, start="cosine, stepped once per process")

# %% [markdown]
# And S3's two, as pictures that stay:

# %% tags=["hide-input"]
from dtlab.figures.schedules import rates_figure

for name in ("hand and CosineAnnealingLR", "hand and LambdaLR"):
    show(rates_figure(name, runs[name], right[name]))

# %% [markdown]
# ## Build it: which rate belongs to this batch?
# Two rules, and what each was argued for. *Linear*: N times the batch, N times the rate. N small steps along nearly the same gradient are one long one (Goyal et al., arXiv 1706.02677,
# section 2.1; for SGD). *Square root*: Adam divides by the size of the gradient, so what is left to scale is its noise, which falls by $\sqrt N$ (Malladi et al., arXiv 2205.10287; its betas and
# epsilon should move too). With $B$ the global batch and $B_0$ the one for which the rate was chosen:
#
# $$\mathrm{lr} = \mathrm{base} \cdot \frac{B}{B_0} \qquad\text{or}\qquad \mathrm{lr} = \mathrm{base} \cdot \sqrt{\frac{B}{B_0}}$$

# %% tags=["nbval-check-output"]
print(f"AdamW above, linear: 0.02 x 256 / 64 = {0.02 * 256 / 64:.2f}")
print(f"AdamW above, sqrt:   0.02 x sqrt(256 / 64) = {0.02 * math.sqrt(256 / 64):.2f}")
print(f"S3, failure 1: 1e-3 x (8 x 16) / 128 = {1e-3 * 8 * 16 / 128:.0e}, and he took 1e-04")

# %% [markdown]
# S3's rule "n or sqrt(n)" leaves two questions open: which of the two, and what is n? It is $B / B_0$, and no number of cards.


# %% tags=["exercise"]
def scale(base_lr, base_batch, micro_batch, ranks, stages=1, accumulation=1, rule="linear"):
    """(global_batch, lr): the samples of one optimizer step over all ranks, and its rate.

    `base_lr` was right for `base_batch` samples in a step. `micro_batch` are the samples of one
    forward; `ranks` all processes, of which each `stages` form one pipeline and work on the same
    samples; `accumulation` the micro-batches between two optimizer steps. `rule` is "none",
    "linear" or "sqrt"; for anything else raise a ValueError that lists these three.
    """
    ### BEGIN SOLUTION
    rules = {"none": lambda factor: 1.0, "linear": lambda factor: factor, "sqrt": math.sqrt}
    if rule not in rules:
        raise ValueError(f"rule {rule!r}: choose none, linear or sqrt")
    global_batch = micro_batch * (ranks // stages) * accumulation
    return global_batch, base_lr * rules[rule](global_batch / base_batch)
    ### END SOLUTION


# %% tags=["hint"]
hint("05-scale")

# %% [markdown]
# ## Check: the rule
# S3's two cases, a pipeline, accumulation, and a batch that got smaller.

# %% tags=["check"]
check("05-scale", scale)

# %% [markdown]
# ## Build it: one schedule, in optimizer steps
# A scheduler that is *stepped* can be stepped too often, in the wrong place, or from the wrong state. A **function of the step's index** cannot. With $W$ warm-up steps of $T$, the peak at step
# $p = \max(W - 1, 0)$, and the share of the decay $t = (s - p)/(T - W)$:
#
# $$\mathrm{lr}(s) = \begin{cases}\mathrm{base}\,(s+1)/W & s < p\\ \mathrm{low} + (\mathrm{base}-\mathrm{low})\,(1+\cos \pi t)/2 & s \ge p\end{cases}$$
#
# With base 0.1, $W = 4$, $T = 10$: 0.025, 0.05, 0.075, 0.1, and then $0.1\,(1 + \cos(\pi/6))/2 = 0.0933$. (A hand-written warm-up beside a cosine over all ten gives 0.0824 there.)


# %% tags=["exercise"]
def lr_at(step, base, total, warmup=0, low=0.0, kind="cosine"):
    """The rate that optimizer step `step` uses; 0 is the first step of `total`.

    Warm-up: step s uses base * (s + 1) / warmup, so that step warmup - 1 is the first to use exactly
    `base`. From there a "cosine" or a straight line ("linear") goes down to `low`, which it reaches
    total - warmup steps later; after that the rate stays at `low`. If warmup > total or total < 1,
    raise a ValueError that names both numbers. A warm-up as long as the run is allowed.
    """
    ### BEGIN SOLUTION
    if total < 1 or warmup > total:
        raise ValueError(f"warmup = {warmup}, total = {total}: the full rate is never reached")
    peak = max(warmup - 1, 0)
    if step < peak:
        return base * (step + 1) / warmup
    share = min(1.0, (step - peak) / max(1, total - warmup))
    if kind == "linear":
        return base + (low - base) * share
    return low + (base - low) * (1 + math.cos(math.pi * share)) / 2
    ### END SOLUTION


# %% tags=["hint"]
hint("05-schedule")

# %% [markdown]
# ## Check: the schedule
# Where the peak is, the tables of three plans, and plans that cannot be kept.

# %% tags=["check"]
check("05-schedule", lr_at)

# %% [markdown]
# ## Build it: a loop that counts what counts
# The index of the step is the number of steps that the optimizer *applied*. Not micro-batches, not ranks, not a step that was left out because its gradient was NaN. All ranks hold the same reduced gradient, so
# all decide alike, without a message.


# %% tags=["exercise"]
def run_steps(optimizer, micro_batches, backward, rate, accumulation):
    """Make the optimizer steps of this rank's `micro_batches`; return the rates of the applied ones.

    `backward(micro_batch)` adds to every parameter's .grad, summed over the ranks: the same on all.
    A step is due after each `accumulation` micro-batches and after the last one. It uses
    rate(number of steps applied so far), times group["ratio"], as group["lr"] of every group in
    optimizer.param_groups (group["params"] are its parameters). If any gradient is not finite,
    leave the step out and do not count it. In either case the next one starts without gradients.
    """
    ### BEGIN SOLUTION
    used = []
    for number, micro_batch in enumerate(micro_batches, start=1):
        backward(micro_batch)
        if number % accumulation and number < len(micro_batches):
            continue
        groups = optimizer.param_groups
        if all(p.grad.isfinite().all() for group in groups for p in group["params"]):
            lr = rate(len(used))
            for group in groups:
                group["lr"] = lr * group["ratio"]
            optimizer.step()
            used.append(lr)
        optimizer.zero_grad()
    return used
    ### END SOLUTION


# %% tags=["hint"]
hint("05-steps")

# %% [markdown]
# ## Check: the loop
# The same global batches on 1, 2 and 4 real ranks, with 4, 2 and 1 accumulated micro-batches, a smaller last batch, and one row whose label is infinite.

# %% tags=["check"]
check("05-steps", run_steps)

# %% [markdown]
# ## The real thing
# `dtlab.train.schedule.Schedule` is your function with a counter. It is the same table on any number of ranks, because neither ranks nor processes enter:

# %% tags=["nbval-check-output"]
for name in CONFIGS:
    same = all(one[name] == right[name] for ranks in (1, 2, 4) for one in measured[ranks])
    print(f"{name}: every rank of 1, 2 and 4 used the planned rates: {same}")
    assert same
if solved("05-schedule"):
    plans_of_yours = ((0.1, 10, 4, 0.0), (5.0, 20, 5, 0.1), (1e-3, 2000, 1000, 1e-6))
    for base, total, warmup, low in plans_of_yours:
        schedule = Schedule(ScheduleConfig(kind="cosine", warmup=warmup, min_lr=low), base, total)
        yours = [lr_at(step, base, total, warmup, low) for step in range(total)]
        same = np.allclose(yours, [schedule.lr_at(step) for step in range(total)], atol=1e-12)
        print(f"yours, warm-up {warmup} of {total}: the same table: {same}")

# %% [markdown]
# ### Faults that people reported, and the right values
# Each line is a kind of fault from the trackers of training libraries: the schedule that ended too early, the repeated rate at the hand-over, the peak that was never reached.


# %% tags=["nbval-check-output"]
def rates(count, base, total, **config):
    schedule = Schedule(ScheduleConfig(**config), base, total)
    return [f"{schedule.lr_at(step):.4g}" for step in range(count)]


print("linear 0.1 to 0 in 10 steps, from step 4:", *rates(11, 0.1, 10, kind="linear")[4:])
print("warm-up 4, cosine of 6:", *rates(5, 0.1, 10, kind="cosine", warmup=4))
print("warm-up 5, then a tenth each step:", *rates(7, 0.1, 9, kind="step", step_every=1, warmup=5))
print("warm-up 5 to 5.0:", *rates(6, 5.0, 9, warmup=5))
print("warm-up as long as the run:", *rates(4, 0.1, 4, kind="cosine", warmup=4))
epochs = ScheduleConfig(kind="cosine", warmup=10, unit="epoch")
peak = Schedule(epochs, 0.1, 20 * 40, steps_per_epoch=40).peak_step
print(f"warm-up of 10 epochs of 40 steps: step number {peak + 1} is the first at the full rate")
print("8 x 4 ranks x 2 accumulated:", effective_batch(8, num_ranks=4, accumulation=2), "samples")
by_rule = scaled_lr(1e-3, "linear", 32, 128), scaled_lr(1e-3, "sqrt", 32, 128, "adamw")
print("1e-3 at 32, now 128, linear and sqrt:", *by_rule)
plateau = Schedule(ScheduleConfig(kind="plateau", plateau_patience=2), 0.1, 100)
print("plateau, validations 1.0, then three no better:", [plateau.observe(1.0) for _ in range(4)])

# %% [markdown]
# A plateau that each rank (or each process of a wrapper) steps uses up its patience in one validation. Here a validation is one observation, all ranks make it together, and the cut comes after three bad ones.
# Resuming keeps the place: the state is the number of applied steps, so it does not matter whether optimizer or schedule is loaded first.

# %% tags=["nbval-check-output"]
first = Schedule(warm_cosine, 1e-3, 200)
for _ in range(130):
    first.advance()
again = Schedule(warm_cosine, 1e-3, 200)
again.load_state_dict(first.state_dict())
print("after resume, step", again.step, "uses the planned rate:", again.lr_at(130) == first.lr_at(130))

# %% [markdown]
# ### Faults that now have a message
# S3's hand beside the schedule:


# %% tags=["lab-failure"]
def two_hands():
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1e-3)
    schedule = Schedule(ScheduleConfig(kind="cosine"), 1e-3, 2000)
    for step in range(2000):
        schedule.apply(optimizer)
        optimizer.step()
        schedule.advance()
        optimizer.param_groups[0]["lr"] = 1e-3 * (step + 1) / 1000  # the hand


with expect_failure(
    UserError,
    match="lr was changed outside the schedule before step 1",
    within=5,
    explain={
        "before step 1": "after the first optimizer step; the check is made in the next apply",
        "param group 0 has 1e-06": "what it found: the hand's rate",
        "the schedule had set 0.001": "what it had written itself",
    },
):
    two_hands()

# %% [markdown]
# A warm-up that is longer than the run, a schedule that was advanced once per epoch, and S4's rule:

# %% tags=["lab-failure", "nbval-check-output"]
try:
    Schedule(ScheduleConfig(kind="cosine", warmup=2000), 3e-4, 1500)
except UserError as error:
    print(error)
per_epoch = Schedule(ScheduleConfig(kind="cosine", warmup=400), 0.1, 20 * 40)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(20):
        per_epoch.advance()
    per_epoch.check_finished()
    scaled_lr(0.001, "linear", 256, 8 * 256, torch.optim.AdamW)
for warning in caught:
    assert warning.category is DtlabWarning
    print(warning.message)

# %% [markdown]
# ### The runs again, with a warm-up
# The two rates that broke, unchanged, on *two* ranks: a global batch of 256 is 128 on each, and the optimizer cannot tell. 20 of the 40 steps are warm-up, then a cosine. AdamW by the square-root rule. And what S4 really had, 0.001 x 8, without a warm-up:

# %% tags=["nbval-check-output"]
warm = ScheduleConfig(kind="cosine", warmup=20)
sqrt_rate = scaled_lr(0.02, "sqrt", 64, 256, "adamw")
fixed_plans = {
    "AdamW x 4": Plan("AdamW", 4 * 0.02, 256, warm),
    "SGD x 4": Plan("SGD", 4 * 0.9, 256, warm),
    "AdamW x sqrt(4)": Plan("AdamW", sqrt_rate, 256, warm),
    "S4's 0.008": Plan("AdamW", 8 * 0.001, 256),
}
fixed = launch(train, 2, fixed_plans, timeout=90)
cured = {name: over_ranks(fixed, name) for name in fixed_plans}
for name, losses in cured.items():
    stable, end = max(losses) < 1.6 * guess, last_eighth(losses)
    print(f"{name}: no NaN, never above 1.6 x the guess: {stable}; ends below it: {end < guess}")
    assert stable
    assert end < guess - 0.01
end, end_sqrt = last_eighth(cured["AdamW x 4"]), last_eighth(cured["AdamW x sqrt(4)"])
print("AdamW x 4 ends lower than without warm-up:", end < last_eighth(adam))
print("both end lower than the rate that was not scaled:", max(end, end_sqrt) < last_eighth(naive))
assert max(end, end_sqrt) < last_eighth(naive)

# %%
both = {"AdamW x 4 without": adam, "SGD x 4 without": sgd}
both |= {f"{name} with": cured[name] for name in ("AdamW x 4", "SGD x 4")}
show(losses_figure(both, guess))

# %% [markdown]
# Why does it help? Not because a sync makes noise. A long first step is taken where the loss is most curved and where nothing is known yet: SGD overshoots and its momentum carries on (Goyal et al.), and Adam divides by a
# second moment that it knows from a handful of gradients (Liu et al., arXiv 1908.03265). Both reasons are there on one card too, at the same batch and rate.
#
# What this does *not* show: that S4's job needed a warm-up. His rate was 0.001 x 8 = 0.008, and at this rate our model does not mind the lack of one: the fourth line above.
#
# A warm-up of 500 to 2,000 steps (S3) is a habit for runs of tens of thousands of steps, not a law. What you need is that the rate is low while the run is young, and that the warm-up *ends*.
#
# ## On a GPU
# Nothing changes in the schedule. Two remarks: with fp16 and a loss scaler the first steps are often skipped, and a skipped step must not advance the schedule (lesson 06). And with `torch.compile` or a captured graph the
# rate must be a tensor, which `Schedule.apply` fills in place:

# %% tags=["gpu-optional"]
if torch.cuda.is_available():
    weight = torch.zeros(1, requires_grad=True, device="cuda")
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(1e-3, device="cuda"), capturable=True)
    Schedule(warm_cosine, 1e-3, 200).apply(optimizer)
    print(f"{float(optimizer.param_groups[0]['lr']):.1e}")
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# S3's failure 1 on one host of eight A100: 12 hours at a tenth of the rate. In our runs the mean loss beside the reference's showed it. Say that half an hour was enough for him to see it:

# %%
bill(
    "12 hours at a tenth of the rate",
    "the same, stopped after half an hour",
    instance="ml.p4d.24xlarge",
    fault_seconds=12 * 3600,
    fix_seconds=1800,
)

# %% [markdown]
# Then the grid. S3 writes "dozens of trials", "a day and a night" and "over $800". What one trial can have been:

# %%
hour = billing.cost("ml.p4d.24xlarge", 3600).usd
print(f"$800 / ${hour:.2f} = {800 / hour:.1f} hours of one such host")
for trials in (24, 60):
    each = 800 / trials
    print(f"{trials} trials: ${each:.0f} each, {60 * each / hour:.0f} minutes")

# %% [markdown]
# Trials of half an hour to an hour and a quarter, to choose a rate for runs of 12 hours and more: at most the first tenth of the curve. The warm-up came later in S3's story, so a trial began at its full rate. Such a grid
# rejects what breaks in the first steps and keeps the rates that are too low: it would have rejected AdamW x 4 above, which ends lower than the rate that was not scaled once it gets a warm-up. And a trial with the printed mechanism would
# not have used the rate in its label.
#
# A warm-up that never ends is easy to come by. S3's job asks for 2,000 warm-up steps and 15 epochs of batches of 128 on 16 GPUs, in pipelines of 2:

# %% tags=["nbval-check-output"]
batch = effective_batch(128, num_ranks=16 // 2)
least = 2000 * batch / 15
print(f"global batch {batch}; warm-up ends within 15 epochs from {least:,.0f} samples an epoch on")
print(f"on one card: from {2000 * 128 / 15:,.0f} on")

# %% [markdown]
# With fewer samples the whole job, two hosts for 18 hours by his account, runs below its rate; `Schedule` refuses such a plan before the first step. (We do not know how many samples he had.)

# %%
bill(
    "18 hours on two hosts, warm-up never over",
    "refused in the first minute",
    instance="ml.p3.16xlarge",
    count=2,
    fault_seconds=18 * 3600,
    fix_seconds=60,
)

# %% [markdown]
# ## Recap

# %%
recap(
    "05",
    [
        "The rate follows the global batch, not the cards: "
        "micro-batch x data-parallel ranks x accumulation against the base.",
        "One function of the applied optimizer step sets the rate; nothing else writes it, "
        "and no world size enters.",
        "Log the mean over ranks: one rank's own loss is sqrt(N) noisier, "
        "and that is not instability.",
    ],
)
