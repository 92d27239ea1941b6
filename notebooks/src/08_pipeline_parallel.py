# %% [markdown]
# # Pipeline parallel
#
# A team cut its model of 320M parameters in two over pairs of cards. Its request named no number of micro-batches, so that, as printed, one card of each pair
# waited while the other computed: 18 hours on two `ml.p3.16xlarge`, $1,013 at the last list price, half of it for waiting.
#
# When does a pipeline idle, what does it cost in memory to keep it busy, and who waits for whom?
#
# (The incident is S3's, a team that tuned a model of images and text. S0 is a recommender team that went from one card to SageMaker, S4 an engineer
# who got eight cards for a new recommender. The course takes its incidents from their three write-ups.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, expect_failure, goal, hint, predict, recap, running, solved

goal(
    [
        "draw who computes when, and say how much of the time a pipeline idles",
        "write the orders GPipe, 1F1B and interleaved, and say what each keeps in memory",
        "run an order on real ranks: no hang, and the gradients of one process",
        "say when a model has to be cut, and when a smaller micro-batch would have done",
    ],
    minutes=55,
    needs=["02"],
)

# %% tags=["hide-input"]
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from dtlab import RankError, UserError, launch, traffic, world
from dtlab.cost.cards import cards
from dtlab.cost.pipeline import bubble_share, live_activations
from dtlab.cost.pipeline_memory import pipeline_bytes
from dtlab.data.text import load_text
from dtlab.diagnose.memory_trace import trace_memory
from dtlab.figures.pipeline import pipeline_figure
from dtlab.figures.style import show
from dtlab.models.deepfm import DeepFM
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel.actions import Action, Schedule
from dtlab.parallel.legality import check_schedule
from dtlab.parallel.pipeline import pipeline
from dtlab.parallel.schedules import build_schedule
from dtlab.parallel.simulate import mean_durations, simulate
from dtlab.parallel.split import split
from dtlab.parallel.stage_messages import StageMessages
from dtlab.widgets.pipeline import schedule_explorer

# %% [markdown]
# ## Predict
# A *stage* is a run of layers on one card. A *micro-batch* is a piece of the batch that goes through the stages by itself. The order called GPipe runs all forwards, and then
# all backwards. 1F1B ("one forward, one backward") runs a backward as soon as it can. Take four stages and eight micro-batches, all equal. Commit to an answer before you go on.

# %%
ask = predict(
    "08-saves",
    "What does 1F1B save against GPipe?",
    ["time", "memory", "time and memory", "messages between the stages"],
)

# %% [markdown]
# ## Break it: one batch, four cards
# A GPT of eight blocks on text, cut into four stages for four real ranks: the embedding and two blocks, two blocks, two blocks, two blocks and the head. A rank sends its
# output, the *activation*, to the next rank, and gets back the gradient of it.

# %% tags=["hide-input"]
torch.set_num_threads(1)  # as a rank has
SEQUENCE, WIDTH = 32, 64
sample = load_text(SEQUENCE).train.take(torch.arange(1000, 1064))  # 64 windows of 32 bytes


def new_model(tied=False):
    torch.manual_seed(0)
    return GPT(sequence=SEQUENCE, dim=WIDTH, num_layers=8, num_heads=4, tied=tied)


def summed(logits, targets):
    """The loss, summed over tokens: unequal micro-batches must weigh right."""
    return token_loss(logits, targets).total


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


# %%
class Plan(NamedTuple):
    order: str
    micro_batches: int
    windows: int  # in one micro-batch


def run_plans(plans, budget=None):
    """For each plan: when each rank computed what, this rank's messages, and its bytes at the peak."""
    found = {}
    with world() as w:
        for name, plan in plans.items():
            schedule = build_schedule(plan.order, w.size, plan.micro_batches)
            pipe = pipeline(split(new_model(), schedule.num_stages), schedule, summed)
            size = plan.micro_batches * plan.windows
            tokens, targets = sample.tokens[:size], sample.targets[:size]
            for _ in range(2):  # the first step pays for warming up
                pipe.step(tokens, targets)
            timeline = pipe.timeline()
            for parameter in pipe.parameters():
                parameter.grad = None
            with traffic() as sent, trace_memory(budget) as trace:
                trace.label("parameters", list(pipe.parameters()))
                pipe.step(tokens, targets)
            found[name] = timeline, sent, trace
    return found


# %% [markdown]
# First as S3's request ran it: the batch of 16 windows in one piece. Then in four micro-batches of four windows. (`Plan("gpipe", 1, 16)`: with one micro-batch all orders are the same.)
# Each rank has a budget of 8 MB, and the operation that exceeds it would fail, as on a full card.


# %% tags=["lab-failure", "nbval-check-output"]
def at_once(timeline):
    """The most ranks that computed at one moment."""
    spans = [span for rank in timeline.ranks for span in rank]
    changes = sorted([(s.end, -1) for s in spans] + [(s.start, 1) for s in spans])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


BUDGET = 8_000_000
plans = {"whole": Plan("gpipe", 1, 16), "in four": Plan("gpipe", 4, 4)}
for _ in range(5):
    cut = launch(run_plans, 4, plans, BUDGET, timeout=90, echo=False)
    whole, in_four = cut[0]["whole"][0], cut[0]["in four"][0]
    if at_once(in_four) > 1:  # with no core to spare the ranks take turns: then look again
        break
print("whole batch: most ranks that computed at one moment:", at_once(whole))
print("whole batch: at least 3/4 of the ranks' time idle:", whole.bubble_share >= 0.75)
print("in four: more than one at a moment:", at_once(in_four) > 1)
assert at_once(whole) == 1
assert whole.bubble_share >= 0.75
assert at_once(in_four) > 1

# %%
show(pipeline_figure({"whole batch, 4 ranks": whole}, unit="s"))

# %% [markdown]
# Nothing failed and nobody says so: four cards are paid, and one works. Every rank is busy for $1/p$ of the time, on $p$ stages. (The two ranks in the middle of the picture
# wait twice, for the forward before them and for the backward behind them.) S4 tells of a model that was split "layer by layer" over cards and trained twice as slowly, and blames the
# traffic. A split like this one waits as well, however little it sends.
#
# With $m$ micro-batches a step lasts $m + p - 1$ turns (one micro-batch through one stage, forward and backward), and a rank works in $m$ of them. The idle share, the *bubble*:
#
# $$\frac{p-1}{m+p-1}\qquad\text{here } p = 4:\ \ m = 1: \frac{3}{4},\quad m = 4: \frac{3}{7},\quad m = 16: \frac{3}{19}$$
#
# `simulate` runs an order on paper. A forward takes 1, a backward 2, a message nothing:

# %% tags=["nbval-check-output"]
for m in (1, 4, 8, 16, 32):
    paper = simulate(build_schedule("gpipe", 4, m))
    part = f"3/{m + 3}"
    print(f"m = {m:2}: {paper.makespan:5.1f} units, bubble {paper.bubble_share:.3f} = {part}")
    assert abs(paper.bubble_share - bubble_share(4, m)) < 1e-12

# %% [markdown]
# Some papers write $(p-1)/m$. That is the idle time over the *working* time: 37.5 % for $m = 8$, where the share of all time is 27.3 %. Ask which one you are given. The bubble of
# a real run is larger, since messages take time and stages are not equal: the formula is a lower bound.
#
# ## Break it: more micro-batches, and the memory
# So take more micro-batches: 16 of four windows, as one does when accumulating a larger batch. Same model, same micro-batch, same 8 MB.

# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match=r"rank \d of 4 failed: OverBudget: .* the budget is 8.00 MB",
    within=90,
    explain={
        "of 4 failed: OverBudget": "all four would get there; which of them is first is chance",
        "the budget is 8.00 MB": "four micro-batches had fitted",
        "activations": "what forwards keep for their backwards: nearly all of it",
    },
    lines=1,
):
    launch(run_plans, 4, {"16": Plan("gpipe", 16, 4)}, BUDGET, timeout=80, echo=False)

# %% [markdown]
# GPipe keeps the activations of *every* micro-batch until the first backward, so memory grows with $m$. What shortens the bubble fills the memory. Now 1F1B with the same 16, and two stages on each rank
# (*interleaved*) with eight:

# %% tags=["nbval-check-output"]
orders = {"1f1b": Plan("1f1b", 16, 4), "interleaved": Plan("interleaved", 8, 4)}
with running("two orders on four ranks"):
    ordered = launch(run_plans, 4, orders, timeout=90, echo=False)
for rank, result in enumerate(ordered):
    (one, sent, trace), (two, sent_2, _) = result["1f1b"], result["interleaved"]
    print(
        f"rank {rank}: 1f1b holds {one.peak_live[rank]} of 16, fits {trace.peak <= BUDGET};",
        f"interleaved holds {two.peak_live[rank]} of 16 half stages;",
        f"sent a micro-batch: {sent.messages // 16} and {sent_2.messages // 8}",
    )
    assert trace.peak <= BUDGET
    assert one.peak_live[rank] == 4 - rank == live_activations("1f1b", 4, 16, rank)
    assert two.peak_live[rank] == live_activations("interleaved", 4, 8, rank)

# %%
print("peak of each rank, MB:")
for name, results in (("whole", cut), ("in four", cut), ("1f1b", ordered), ("interleaved", ordered)):
    print(f"{name:12}", *(f"{result[name][2].peak / 1e6:6.2f}" for result in results))

# %% [markdown]
# 1F1B holds $\min(m, p - r)$ micro-batches on rank $r$: 4, 3, 2, 1, with 16 as with 1,000. Rank $r$ runs $p - 1 - r$ forwards ahead, and from then on each forward is followed by a backward that frees as much as it took.
#
# It is no diet for rank 0, though. It holds $p$ micro-batches of $1/p$ of the layers: the activations of *one whole* micro-batch, on any number of stages. In closed form, for a GPT of S3's 320M parameters
# (the shape is our assumption) and micro-batches of 4:

# %% tags=["nbval-check-output"]
for p in (2, 4, 8):
    first = pipeline_bytes("GPT 320M", p, num_micro_batches=16, micro_batch=4)[0].items
    by_gpipe = pipeline_bytes("GPT 320M", p, 16, 4, schedule="gpipe")[0].items["activations"]
    of_states = sum(size for item, size in first.items() if item != "activations")
    print(
        f"{p} stages, rank 0, GB: states {of_states / 1e9:.1f},",
        f"activations {first['activations'] / 1e9:.1f}, under GPipe {by_gpipe / 1e9:.1f}",
    )

# %% [markdown]
# With four times the stages the states fall to a quarter, and that is what cutting is for. 1F1B's activations fall by a third, and only because the embedding fills more and more of the first stage.
#
# ## Break it: both send first
# GPipe is polite: first all activations go one way, then all gradients go the other. In 1F1B they cross. Here is the traffic of an order and nothing else: one number for each message, on two ranks.


# %%
def exchange(schedule, wait_for_each):
    """The messages of `schedule`, in the order of this rank's actions; returns how many it sent."""
    with world() as w:
        under_way, sent = [], 0
        for action in schedule.ranks[w.rank]:
            step = 1 if action.kind == "F" else -1  # activations go on, gradients go back
            before, after = w.rank - step, w.rank + step
            if 0 <= before < w.size:
                dist.recv(torch.empty(1), before)
            if 0 <= after < w.size:
                number, sent = torch.ones(1), sent + 1
                if wait_for_each:
                    dist.send(number, after)
                else:
                    under_way.append((dist.isend(number, after), number))
        for work, _ in under_way:
            work.wait()
        return sent


# %% tags=["lab-failure"]
print("gpipe:", *launch(exchange, 2, build_schedule("gpipe", 2, 4), True, timeout=60))
with expect_failure(
    RankError,
    match="every rank waits for another",
    within=40,
    explain={
        "timeout after 2 s": "our limit. Without one gloo waits for 30 minutes",
        "every rank waits for another": "nobody is late: both are inside an operation",
        "rank 0 waits in send": "its second activation: rank 1 takes it after its first backward",
        "rank 1 waits in send": "its first gradient: rank 0 takes it after its second forward",
    },
):
    launch(exchange, 2, build_schedule("1f1b", 2, 4), True, timeout=2, echo=False)

# %% [markdown]
# Both orders are legal: no action needs one that comes later. What hangs is the *sending*: gloo's `send` waits for the receiver (lesson 02), and each receiver is sending itself. So a send must not wait. Hand the tensor over, go on, and keep a
# reference to it until it has gone:

# %% tags=["nbval-check-output"]
print("1f1b:", *launch(exchange, 2, build_schedule("1f1b", 2, 4), False, timeout=60))

# %% [markdown]
# `dtlab.parallel.stage_messages` does it so, and gives every message a tag. NCCL has no tags and runs the messages of two ranks in one order; torch's schedules hand it the crossing pair as one, with
# `dist.batch_isend_irecv`.
#
# ## Look: bubble and live activations
# Four stages, eight micro-batches. Above, what each rank computes; a box is a micro-batch, the bubble is hatched. Below, how many are alive on each rank.

# %%
by_order = {name: simulate(build_schedule(name, 4, 8)) for name in ("gpipe", "1f1b", "interleaved")}
show(pipeline_figure({name: by_order[name] for name in ("gpipe", "1f1b")}))

# %%
ask.reveal("b", because="Both idle 3/11 of the time. GPipe keeps 8 micro-batches alive, 1F1B at most 4.")
assert by_order["gpipe"].makespan == by_order["1f1b"].makespan

# %% [markdown]
# What shortens the bubble at the same $m$ is to cut finer. With $v$ stages on each rank, every $p$-th one, a turn is $v$ times shorter and the waiting at both ends with it:
#
# $$\frac{p-1}{v\,m+p-1}\qquad\text{here } \frac{3}{2\cdot 8+3} = \frac{3}{19} = 15.8\,\%$$
#
# It costs messages, $2(v\,p - 1) = 14$ for each micro-batch instead of $2(p-1) = 6$ (add up what the four ranks sent above), and a little memory: $1 + \frac{p-1}{p\,v} = 1 + \frac{3}{8}$ times the activations of 1F1B on rank 0, which is
# 11 half stages for 4 whole ones. Move the sliders. Two questions: from how many micro-batches on is the bubble of 8 stages below a fifth? And what does GPipe hold then?

# %%
schedule_explorer()

# %% [markdown]
# `zero_bubble` and `zbv` cut the backward in two: the gradient of the input, for which the stage before waits, and the gradients of the weights, for which nobody waits and which fill the bubble (Qi et al.,
# arXiv 2401.10241). They are there to look at; you build the other three.
#
# ## Build it: GPipe and 1F1B
# An order is data: a list of texts for each rank. `"1F3"` is the forward of micro-batch 3 on stage 1, `"1B3"` its backward. With one stage on each rank, the stage has the rank's number.
#
# | | rank 0 of 2, three micro-batches | rank 1 |
# |---|---|---|
# | gpipe | `0F0 0F1 0F2 0B0 0B1 0B2` | `1F0 1F1 1F2 1B0 1B1 1B2` |
# | 1f1b | `0F0 0F1 0B0 0F2 0B1 0B2` | `1F0 1B0 1F1 1B1 1F2 1B2` |


# %% tags=["exercise"]
def order(name, rank, ranks, m):
    """What `rank` of `ranks` runs, in order, for `m` micro-batches: a list such as ["0F0", "0B0"].

    "gpipe": all forwards, then all backwards, each from micro-batch 0 up. "1f1b": as few forwards as
    it needs so that the last stage never waits for it (at most m), then by turns a forward and a
    backward, then the backwards that are left.
    """
    ### BEGIN SOLUTION
    forwards = [f"{rank}F{i}" for i in range(m)]
    backwards = [f"{rank}B{i}" for i in range(m)]
    if name == "gpipe":
        return forwards + backwards
    warm_up = min(m, ranks - 1 - rank)
    actions = forwards[:warm_up]
    for i in range(m - warm_up):
        actions += [forwards[warm_up + i], backwards[i]]
    return actions + backwards[m - warm_up :]
    ### END SOLUTION


# %% tags=["hint"]
hint("08-orders")

# %% [markdown]
# ## Check: GPipe and 1F1B
# Both orders in five sizes, one with fewer micro-batches than ranks: legal, activations alive, time units, then every action against torch's order.

# %% tags=["check"]
check("08-orders", order)

# %% [markdown]
# ## Build it: interleaved
# Rank $r$ holds the stages $r,\ r + p,\ r + 2p \ldots$, $v$ of them. The micro-batches go in rounds of $p$: a round passes the rank's first stage, then its second, up to the $v$-th; then comes the next
# round. Backwards take the stages from the last to the first. The rest is 1F1B, with a longer warm-up: $(v-1)\,p$ forwards for the earlier stages, and $2(p - 1 - r)$ for the way to the last rank and back.
#
# Rank 0 of 2, four micro-batches, $v = 2$: `0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3`.


# %% tags=["exercise"]
def interleaved_order(rank, ranks, m, v):
    """What `rank` runs, in order, with `v` stages on each rank; `ranks` divides `m`.

    Stage c * ranks + rank is its c-th stage. The first (v - 1) * ranks + 2 * (ranks - 1 - rank)
    actions, or all m * v if that is fewer, are forwards; then a forward and a backward by turns.
    """
    ### BEGIN SOLUTION
    def place(k):
        turn, within = divmod(k, ranks)
        number, chunk = divmod(turn, v)
        return chunk, number * ranks + within

    total = m * v
    forwards = [f"{c * ranks + rank}F{i}" for c, i in map(place, range(total))]
    backwards = [f"{(v - 1 - c) * ranks + rank}B{i}" for c, i in map(place, range(total))]
    warm_up = min(total, (v - 1) * ranks + 2 * (ranks - 1 - rank))
    actions = forwards[:warm_up]
    for k in range(total - warm_up):
        actions += [forwards[warm_up + k], backwards[k]]
    return actions + backwards[total - warm_up :]
    ### END SOLUTION


# %% tags=["hint"]
hint("08-interleaved")

# %% [markdown]
# ## Check: interleaved
# Five sizes, with two and three stages on a rank.

# %% tags=["check"]
check("08-interleaved", interleaved_order)

# %% [markdown]
# ## Build it: run an order
# Now real tensors. What does a backward need that its forward had? The input $x$, because its gradient goes back to the stage before, and the output $y$, from which autograd starts. Nothing else crosses a border: one activation on, one
# gradient back.
#
# `messages` sends without waiting and receives with waiting: `receive_activation(stage, i, inputs[i].shape)`, `send_activation(stage + 1, i, tensor, inputs[i].shape)`, `receive_gradient(stage, i, y)`,
# `send_gradient(stage, i, tensor)`. Between two stages of one rank it hands the tensor over. `Action.parse("1F3")` gives `(1, "F", 3)`.


# %% tags=["exercise"]
def run_order(actions, stages, last, inputs, targets, loss, messages):
    """Run this rank's `actions`, such as "1F3"; leave gradients in the stages; return a float.

    stages[n] is stage n, `last` the last of all. Stage 0 takes inputs[i], others what they receive.
    On the last stage loss(output, targets[i]) is micro-batch i's part of the loss; return the sum of
    these parts, 0.0 elsewhere. A backward drops what its forward kept.
    """
    ### BEGIN SOLUTION
    kept, total = {}, 0.0
    for stage, kind, i in map(Action.parse, actions):
        shape = inputs[i].shape
        if kind == "F":
            x = inputs[i] if stage == 0 else messages.receive_activation(stage, i, shape)
            y = stages[stage](x.requires_grad_(stage > 0))
            if stage == last:
                y = loss(y, targets[i])
                total += y.item()
            else:
                messages.send_activation(stage + 1, i, y.detach(), shape)
            kept[stage, i] = x, y
        else:
            x, y = kept.pop((stage, i))
            y.backward(None if stage == last else messages.receive_gradient(stage, i, y))
            if stage > 0:
                messages.send_gradient(stage, i, x.grad)
    return total
    ### END SOLUTION


# %% tags=["hint"]
hint("08-run")

# %% [markdown]
# ## Check: run an order
# Two ranks, 1F1B with micro-batches of unequal rows and interleaved with two stages on each rank: forwards, messages, what is alive, then loss and gradients of one process.

# %% tags=["check"]
check("08-run", run_order)

# %% [markdown]
# ## The real thing
# `dtlab.parallel.pipeline` is your loop with checks in front. With `engine="torch"` the same order goes to `torch.distributed.pipelining`, and every computation of torch is recorded. Two ranks, a batch of 16 windows,
# four micro-batches; where you have solved an exercise, the order is yours. One process with the whole batch is the reference.

# %%
yours = {}
if solved("08-orders"):
    yours |= {name: [order(name, r, 2, 4) for r in range(2)] for name in ("gpipe", "1f1b")}
if solved("08-interleaved"):
    yours["interleaved"] = [interleaved_order(r, 2, 4, 2) for r in range(2)]
SCHEDULES = {
    name: Schedule.of(name, 4, yours[name], stages_per_rank=2 if name == "interleaved" else 1)
    if name in yours
    else build_schedule(name, 2, 4)
    for name in ("gpipe", "1f1b", "interleaved")
}
tokens, targets = sample.tokens[:16], sample.targets[:16]
reference = new_model()
(summed(reference(tokens), targets) / targets.numel()).backward()
wanted = gradients(reference)


def as_one_process(stages):
    return all(
        torch.allclose(gradient, wanted[name], atol=1e-6)
        for stage in stages.values()
        for name, gradient in gradients(stage).items()
    )


# %%
def by_engines():
    """Each schedule by hand and by torch: were the gradients right, and in which order did it run?"""
    found = {}
    for name, schedule in SCHEDULES.items():
        for engine in ("by_hand", "torch"):
            pipe = pipeline(split(new_model(), schedule.num_stages), schedule, summed, engine=engine)
            pipe.step(tokens, targets, targets.numel())
            ran = tuple(span.action for span in pipe.spans)
            found[name, engine] = ran, as_one_process(pipe.stages)
    return found


# %%
def by_you(schedule):
    """The same with your loop; None as long as it is to do."""
    if not solved_run:
        return None
    parts, rank = split(new_model(), schedule.num_stages), dist.get_rank()
    stages = {number: parts.stages[number] for number in schedule.stages_of(rank)}
    messages = StageMessages(schedule, rank)
    run_order(
        [str(action) for action in schedule.ranks[rank]], stages, schedule.num_stages - 1,
        tokens.chunk(4), targets.chunk(4), lambda *a: summed(*a) / targets.numel(), messages,
    )  # fmt: skip
    messages.finish({tokens.chunk(4)[0].shape})
    return as_one_process(stages)


# %% [markdown]
# Three more things run in the same launch, from reports of users: fewer micro-batches than ranks; a matrix that the first and the last stage share; and a longer step for the picture.


# %%
def too_few():
    """One micro-batch on two ranks: what torch's 1F1B says, and whether the one by hand is right."""
    schedule, said = build_schedule("1f1b", 2, 1), "nothing"
    try:
        pipeline(split(new_model(), 2), schedule, summed, engine="torch")
    except UserError as error:
        said = str(error)
    pipe = pipeline(split(new_model(), 2), schedule, summed)
    pipe.step(tokens, targets, targets.numel())
    return said, as_one_process(pipe.stages)


def tied(sum_gradients):
    """This rank's copy of the matrix of embedding and head, after a step of SGD."""
    parts = split(new_model(tied=True), 2)
    pipe = pipeline(parts if sum_gradients else parts.stages, SCHEDULES["1f1b"], summed)
    pipe.step(tokens, targets, targets.numel())
    torch.optim.SGD(pipe.parameters(), lr=0.5).step()
    shared = ("embedding.token.weight", "head.output.weight")
    named = [pair for stage in pipe.stages.values() for pair in stage.named_parameters()]
    return next(parameter.detach() for name, parameter in named if name in shared)


# %%
def measured():
    """The last of three steps of 1F1B with eight micro-batches of eight windows."""
    pipe = pipeline(split(new_model(), 2), build_schedule("1f1b", 2, 8), summed)
    for _ in range(3):
        pipe.step(sample.tokens, sample.targets)
    return pipe.timeline()


# %% tags=["nbval-check-output"]
def everything():
    with world():
        return {
            "engines": by_engines(),
            "yours": [by_you(schedule) for schedule in SCHEDULES.values()],
            "too few": too_few(),
            "tied": (tied(True), tied(False)),
            "measured": measured(),
        }


solved_run = solved("08-run")
with running("three orders, by hand and by torch"):
    real = launch(everything, 2, timeout=120, echo=False)
for name, schedule in SCHEDULES.items():
    ran = [[result["engines"][name, "torch"][0] for result in real]]
    ran += [[result["engines"][name, "by_hand"][0] for result in real]]
    same = all(tuple(orders) == schedule.ranks for orders in ran)
    right = all(result["engines"][name, e][1] for e in ("torch", "by_hand") for result in real)
    print(f"{name}: torch and dtlab executed this order: {same}; gradients of one process: {right}")
    assert same and right

# %% tags=["nbval-check-output"]
if solved_run:
    right = [result["yours"] for result in real]
    print("your loop, three orders on two ranks, gradients of one process:", right)
    assert all(all(one) for one in right)
else:
    print("to do: solve 08-run, then run the two cells above again")

# %% [markdown]
# ### Measured beside simulated
# Two ranks of this machine, and the same order on paper with the *measured* mean duration of each stage. On paper a message takes no time and every micro-batch takes the mean. What the upper picture has more of is messages, waking up, and cores
# that are shared with other work.

# %% tags=["varies"]
timeline = real[0]["measured"]
paper = simulate(build_schedule("1f1b", 2, 8), **mean_durations(timeline))
show(pipeline_figure({"measured": timeline, "simulated": paper}, unit="s"))
print(f"formula for equal stages: {bubble_share(2, 8):.1%}")

# %% [markdown]
# Stages are never quite equal (the first has the embedding, the last the head), and the slowest sets the pace for all. `split` cuts by parameters; `split(model, p, weights=unit_seconds(model, batch))` cuts by measured time.
#
# ### Faults that people reported
# "The pipeline hangs with fewer micro-batches than stages", "the tied embedding drifts apart", and formulas used outside their range:

# %% tags=["lab-failure", "nbval-check-output"]
said, right = real[0]["too few"]
print("engine='torch':", said)
print("by hand, gradients of one process:", right and real[1]["too few"][1])
(first, first_alone), (last, last_alone) = (result["tied"] for result in real)
print("tied copies equal with summed gradients:", torch.equal(first, last))
print("and without, by more than 0.01 apart:", float((first_alone - last_alone).abs().max()) > 0.01)
for p, m in ((4, 2), (4, 8), (1, 5), (4, 0)):
    try:
        print(f"bubble, p = {p}, m = {m}: {bubble_share(p, m):.4f}")
    except UserError as error:
        print(f"bubble, p = {p}, m = {m}: {error}")
assert right and torch.equal(first, last) and not torch.equal(first_alone, last_alone)

# %% [markdown]
# The matrix is stored on the first and on the last stage. Each sees a part of its gradient; `split` names the copies in `.tied`, and `pipeline` adds the parts up. Without the sum no message comes, and the model that you
# train is another one.
#
# An order of your own is checked before anything runs. Here each rank waits for an action that stands behind the other's:

# %% tags=["lab-failure"]
with expect_failure(
    UserError,
    match="the ranks wait for ever",
    within=5,
    explain={
        "rank 0 at 0B0 for 1B0": "its first backward needs that of stage 1",
        "or 1I0": "the same where an order cuts the backward in two: I is the input's part",
        "rank 1 at 1F1 for 0F1": "which runs two forwards first, and 0F1 stands behind 0B0",
    },
):
    check_schedule(
        Schedule.of("mine", 2, [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]])
    )

# %% [markdown]
# ### From 38 GB to 18 GB
# S3's model: 320M parameters in FP32 with Adam, 38 GB on one card at 128 samples. 16 bytes for each parameter are 5.1 GB of states (weights, gradients, two moments); so 32.9 GB are activations, and they follow the samples that are alive. Two
# stages, each half of the layers, the 128 samples in $m$ micro-batches:

# %% tags=["nbval-check-output"]
states = 16 * 320e6
activations = 38e9 - states
card = 0.8 * cards()["V100 16 GiB"]
print("m   bubble   GPipe, GB    1F1B, GB, rank 0 and 1   1F1B fits a V100 with 16 GiB")
for m in (1, 2, 4, 8):
    held = {
        name: [(states + activations * live_activations(name, 2, m, r) / m) / 2 for r in (0, 1)]
        for name in ("gpipe", "1f1b")
    }
    gpipe, (first, last) = held["gpipe"][0], held["1f1b"]
    print(
        f"{m}   {bubble_share(2, m):6.1%}   {gpipe / 1e9:9.1f}    {first / 1e9:8.1f} and {last / 1e9:4.1f}",
        f"{'yes' if max(first, last) < card else 'no':>16}",
    )
alone = states + activations / 8
print(f"one card, 8 micro-batches of 16: {alone / 1e9:.1f} GB, no bubble")
assert alone < card

# %% [markdown]
# His 18 GB are the first row, or GPipe in any row (19 GB by this sum; half of 38 GB). Three things to see.
#
# - **It is no 18 GB on his cards**: those of `ml.p3.16xlarge` have 16. For the claim to hold, cards of 32 GiB would be needed (`ml.p3dn.24xlarge` has them), or 1F1B with four micro-batches, 10.8 GB.
# - **His library's words are other words.** In that library (SageMaker's model parallel, version 1) `"pipeline": "interleaved"` is what everybody else calls 1F1B, and `"simple"` is GPipe. And `microbatches` is 1 unless one says
#   otherwise: the first row, whatever the pipeline is called. (`mpi` and `ddp` were missing in the request too.)
# - **The largest item was activations**, so eight micro-batches on one card, 9.2 GB, do more than the cut, without a bubble (lesson 06). "Model parallel may suit your model" holds when the *states* fill a card, or one sample
#   does.
#
# He also writes that the pipeline took the job from 4 days to 18 hours. 5.3 times on twice the cards cannot come from a pipeline, which only adds a bubble. The epochs went from 100 to 15 as well.
#
# ### S4's table
# "Pipeline parallel: deep, splittable; communication medium; medium for recommenders: deep CTR models." Counted on our ranks, for one step of 16 windows:

# %% tags=["nbval-check-output"]
for name in ("whole", "in four"):
    sent = [result[name][1] for result in cut]
    activation_bytes = sum(message.bytes for one in sent for message in one.log)
    print(f"{name}: {activation_bytes:,} bytes over all borders, both ways")
by_formula = 2 * 3 * 16 * SEQUENCE * WIDTH * 4
ring = 2 * 3 * 4 * new_model().num_parameters
print(f"2 ways x 3 borders x 16 windows x {SEQUENCE} x {WIDTH} x 4 bytes = {by_formula:,}")
print(f"data parallel on 4 ranks, all gradients: {ring:,}, {ring / by_formula:.0f} times as many")
assert activation_bytes == by_formula

# %% [markdown]
# One activation for each border, not for each layer: of the ways to cut, the pipeline sends least, and cutting into micro-batches sends the same bytes in more pieces. His table
# puts it above data parallel, "low": that depends on the batch. The pipeline's bytes grow with it, data parallel's do not, so here they would be equal at 13 times the batch. And his "deep CTR models"? A recommender's parameters are in one place. A DeepFM with
# tables of a million, a thousand and a hundred rows, 1,024 columns wide as S4's (on the `meta` device, which holds shapes and no numbers):

# %% tags=["lab-failure"]
with torch.device("meta"):
    recommender = DeepFM([1_000_000, 1_000, 100], num_dense=8, dim=1024)
with expect_failure(
    UserError,
    match="DeepFM: one table holds",
    within=30,
    explain={
        "100% of the parameters": "rounded: one stage would hold all, and the others have nothing to do",
        "shard the table": "by rows, over all ranks: lesson 07",
    },
):
    split(recommender, 2)

# %% [markdown]
# ## On a GPU
# The orders are the same. `pipeline(..., engine="torch")` runs them on NCCL. Measure one thing first: how long a backward takes against a forward, stage by stage, because the slowest stage sets the pace.

# %% tags=["gpu-optional"]
if torch.cuda.is_available():
    stage = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
    x = torch.randn(4096, 2048, device="cuda", requires_grad=True)
    for _ in range(3):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        y = stage(x)
        marks[1].record()
        y.sum().backward()
        marks[2].record()
        torch.cuda.synchronize()
    forward, backward = marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])
    print(f"backward / forward: {backward / forward:.1f}; on paper we took 2")
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# Keep the stages of one pipeline on cards that reach each other, but they may be on several hosts: this is the traffic that a slow network bears best. Each pipeline of $p$ cards is *one* data-parallel rank: S3's 16 cards at two stages are 8 ranks
# for the global batch and the learning rate (lesson 05).
#
# ## The bill
# S3's 18 hours at one micro-batch, half of it bubble. With eight micro-batches the bubble is $1/9$, so the same work takes $18 \cdot \frac{1/2}{8/9} = 10.1$ hours, if a micro-batch of an eighth keeps a card as busy. That is the most that
# it can be: a smaller micro-batch uses a card less well.

# %%
bill(
    "18 hours, one micro-batch on two stages",
    "10.1 hours, eight micro-batches",
    instance="ml.p3.16xlarge",
    count=2,
    fault_seconds=18 * 3600,
    fix_seconds=18 * 3600 * (1 / 2) / (8 / 9),
)

# %% [markdown]
# ## Recap

# %%
recap(
    "08",
    [
        "p stages, m micro-batches: (p-1)/(m+p-1) of the time is bubble; v stages a rank make it v*m.",
        "GPipe keeps m micro-batches alive, 1F1B at most p; the bubble is the same.",
        "A send must not wait: in 1F1B activations and gradients cross.",
    ],
)
