# %% [markdown]
# # Tensor parallel, and the embedding trap
#
# A recommender's embedding grew from 256 to 1,024 numbers a row and no longer fitted its cards. So its tensors were split "layer by layer" over them; the traffic exploded, and on the same two hosts,
# \$9.78 an hour, training took twice as long: every second dollar bought nothing.
#
# Which cut sends least: the matrices, the layers, or the rows of the table? And would the remedies that he then put first, half precision and recomputing, have moved a single byte?
#
# (The incident is S4's, an engineer who got eight cards for a new recommender. S0 is a recommender team that went from one card to SageMaker, S3 a team that tuned a model of images and text. The course takes its
# incidents from their three write-ups.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, expect_failure, goal, hint, predict, recap, solved

goal(
    [
        "cut a pair of matrices so that one message forward and one backward are enough",
        "find a missing backward all-reduce, which no output and no loss shows",
        "say what a table sends in a step, for each way to hold it, before you run it",
        "look up rows that other ranks hold, each once, with the load spread",
        "pick the remedy by the largest item of the bill",
    ],
    minutes=55,
    needs=["03", "06"],
)

# %% tags=["hide-input"]
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtlab import UserError, data_parallel, launch, traffic, world
from dtlab.cost.cards import cards
from dtlab.cost.embedding import dense_bytes, row_wise_bytes, sparse_bytes
from dtlab.cost.embedding_plan import plan_table
from dtlab.diagnose.memory_trace import trace_memory
from dtlab.figures.sharding import cut_figure, shard_load_figure, table_bytes_figure
from dtlab.figures.style import show
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel import check_sparse_gradients, parameter_hash, shard_embeddings
from dtlab.parallel.embedding import full_state
from dtlab.parallel.embedding_exchange import all_to_all, exchange, gather_counts
from dtlab.parallel.embedding_optim import RowWiseAdagrad
from dtlab.parallel.tensor import ColumnLinear, RowLinear
from dtlab.parallel.tensor_gpt import full_parameters, tensor_parallel
from dtlab.parallel.vocabulary_parallel import VocabularyEmbedding
from dtlab.train.recompute import recompute_blocks
from dtlab.widgets.explorer import explorer

# %% [markdown]
# ## Predict
# A table of 1,000,000 rows of 16 FP32 numbers, 64 MB. Four ranks train it in DDP, with the defaults of `nn.Embedding`. In one step each rank looks up 512 different rows; as numbers, those
# rows are 33 kB. Commit to an answer before you go on.

# %%
ask = predict(
    "07-bytes",
    "How many bytes does a rank send in that step?",
    [
        "33 kB: its rows' gradients",
        "about 100 kB: its rows to the three others",
        "64 MB: the table",
        "96 MB: one and a half times the table",
    ],
)

# %% [markdown]
# ## Break it: a matrix without its message
# First the cut *inside* a layer, tensor parallelism (S0: "splits layers horizontally"; a cut *between* layers is a pipeline). `y = gelu(x A) B`: rank r takes a share of A's *columns* (its outputs), so it has a share of the hidden values, and the *rows* of B (its inputs) that go with them. Each rank's product is a
# *part* of y, and y is the sum of the parts. In front of the pair stands a layer that is not cut. Three ways to write it:
#
# - **no sum**: each rank takes its part for y.
# - **no message back**: parts are summed forward, nothing is done on the way back.
# - **torch's own**: `torch.distributed.nn.functional.all_reduce`, which "supports autograd".


# %% tags=["hide-input"]
def whole_model():
    """The layer in front, the two matrices, samples and targets: the same everywhere."""
    torch.manual_seed(0)
    front, first, second = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 4)
    samples, wanted = torch.randn(32, 8).double(), torch.randn(32, 4).double()
    return nn.ModuleList([front, first, second]).double(), samples, wanted


def gradients(front, first, second):
    return {"A": first.weight.grad, "B": second.weight.grad, "front": front.weight.grad.clone()}


def closest(found, wanted):
    """Which multiple of `wanted` this is: "right", "2 x", or "wrong"."""
    for times in (1, 2):
        if torch.allclose(found, times * wanted, atol=1e-12):
            return "right" if times == 1 else f"{times} x"
    return "wrong"


# %%
def own_sum(how, parts):
    """What the rank does with its part of y."""
    if how == "no sum":
        return parts
    if how == "torch's own":
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(parts)
    total = parts.detach().clone()
    dist.all_reduce(total)
    return parts + (total - parts.detach())  # the value of the sum, the gradient of the part


# %%
def train_pair(how, steps=20):
    """First step's output and gradients, losses, and at the end a hash of the layer in front."""
    with world():
        (front, first, second), x, wanted = whole_model()
        column, row = ColumnLinear(first, copy_input=how == "right"), RowLinear(second)
        optimizer = torch.optim.SGD(
            [*front.parameters(), *column.parameters(), *row.parameters()], 0.2
        )
        losses, found = [], {}
        for _ in range(steps):
            y = own_sum(how, F.linear(F.gelu(column(front(x))), row.weight)) + row.bias
            loss = F.mse_loss(y, wanted)
            optimizer.zero_grad()
            loss.backward()
            found = found or {"y": y.detach(), **gradients(front, column, row)}
            optimizer.step()
            losses.append(loss.item())
        return found | {"losses": losses, "hash": parameter_hash(front)}


# %% tags=["lab-failure", "nbval-check-output"]
def every_way():
    return {
        how: train_pair(how) for how in ("no sum", "no message back", "torch's own", "right")
    }


(front, first, second), x, wanted = whole_model()
y = second(F.gelu(first(front(x))))
F.mse_loss(y, wanted).backward()
alone = {"y": y.detach(), **gradients(front, first, second)}
two = launch(every_way, 2, timeout=60, echo=False)
print("                 output  grad A  grad B  grad in front  models of it   loss fell")
verdicts = {}
for how in two[0]:
    one = two[0][how]
    halves = {"A": alone["A"].chunk(2, 0)[0], "B": alone["B"].chunk(2, 1)[0]}
    verdicts[how] = [
        closest(one[name], (alone | halves)[name]) for name in ("y", "A", "B", "front")
    ]
    models, fell = (
        len({rank[how]["hash"] for rank in two}),
        one["losses"][-1] < one["losses"][0],
    )
    print(f"{how:16} {verdicts[how][0]:7} {verdicts[how][1]:7} {verdicts[how][2]:7}", end=" ")
    print(f"{verdicts[how][3]:14} {models:12}   {fell}")

# %%
assert verdicts["no sum"][0] == "wrong"
assert verdicts["no message back"] == ["right", "right", "right", "wrong"]
assert len({rank["no message back"]["hash"] for rank in two}) == 2
assert verdicts["torch's own"][:3] == ["right", "2 x", "2 x"]
assert verdicts["right"] == ["right"] * 4

# %% [markdown]
# Read the second line. Output right, loss right, gradients of *both cut matrices* right. The one thing that is wrong is the gradient of what came **before**: each rank computed the share that went through its own half of A.
# The layer in front is meant to be one model and is two from the first step on. The loss falls. No message. You find it by hashing what should be equal on all ranks (lesson 03), or by comparing
# the *first* layer's gradient with one process.
#
# The third line is a trap of the same family. That function's backward all-reduces too. It is right when each rank has a loss of its own and these are summed; here every rank computes the *same* loss, so
# the gradient comes in whole and is counted once for each rank.
#
# So the pair needs two operators, which are each other's mirror:
#
# | | forward | backward |
# |---|---|---|
# | **f**, before A | identity | all-reduce |
# | **g**, behind B | all-reduce | identity |
#
# (Shoeybi et al., arXiv 1909.08053, section 3.) `how == "right"` above is f in front and, with a little trick, g behind.
#
# ## Look: where the matrices are cut

# %%
show(cut_figure(2))

# %% [markdown]
# Why columns first? gelu works on each hidden value by itself, and a rank has all of *its* values. Cut A by rows and each rank has a part of *every* value; the gelu of a sum is not the sum of gelus, so you would
# have to all-reduce in between.
#
# With $T$ tokens of width $d$, a pair sends an all-reduce of $T\,d$ numbers forward and one backward, whatever the hidden width. Above: 32 x 4 numbers of 8 bytes forward, 32 x 8 backward. In a transformer that is for *every* attention layer and *every* MLP, each step,
# and nothing can be computed meanwhile. That is why this cut stays inside one host.
#
# ## Break it: the table is shipped whole
# Now the table of the prediction, on four real ranks: DDP as it is, DDP under autocast (S4's remedy), DDP with `sparse=True`, and two of `dtlab`'s ways to deal the table out. The traffic counter adds up what each rank sends in a step.

# %% tags=["hide-input"]
ROWS, DIM, TOUCHED, RANKS = 1_000_000, 16, 512, 4
WAYS = {
    "data_parallel, dense": ("data_parallel", False),
    "data_parallel, dense, bf16": ("data_parallel", False),
    "data_parallel, sparse": ("data_parallel", True),
    "row_wise": ("row_wise", True),
    "column_wise": ("column_wise", True),
}


def new_table(rows, dim, sparse=False):
    return nn.Embedding.from_pretrained(torch.zeros(rows, dim), freeze=False, sparse=sparse)


# %%
def bytes_of_ways():
    """Bytes that this rank sends in one step, for each way to hold the table."""
    sent = {}
    with world() as w:
        mine = torch.randperm(ROWS, generator=torch.Generator().manual_seed(w.rank))[:TOUCHED]
        for name, (strategy, sparse) in WAYS.items():
            model = shard_embeddings(nn.Sequential(new_table(ROWS, DIM, sparse)), strategy)
            if strategy == "data_parallel":
                model = data_parallel(model, w)
            with traffic() as counted, torch.autocast("cpu", enabled=name.endswith("bf16")):
                model(mine).sum().backward()
            sent[name] = counted.bytes
            del model
        sent["skew"] = skewed_loads(w)
    return sent


# %%
def skewed_loads(w, rows=100_000, ids=4096):
    """Rows that this rank serves when ids are drawn as people click: row i as often as 1/i."""
    popularity = 1 / torch.arange(1, rows + 1, dtype=torch.float64)
    draw = torch.Generator().manual_seed(w.rank)
    mine = popularity.multinomial(ids, replacement=True, generator=draw)
    block = rows // w.size
    loads = {
        "blocks, each id": int((torch.cat(w.gather(mine, dst=None)) // block == w.rank).sum())
    }
    for name, strategy in (("blocks", "row_wise"), ("every n-th row", "row_wise_cyclic")):
        table = shard_embeddings(new_table(rows, 4), strategy)
        table(mine)
        loads[name] = sum(table.asked_by)
    return loads


# %% tags=["lab-failure", "nbval-check-output"]
four = launch(bytes_of_ways, RANKS, timeout=100, echo=False)
busiest = {name: max(rank[name] for rank in four) for name in WAYS}
touched = TOUCHED * DIM * 4
for name in ("data_parallel, dense", "data_parallel, dense, bf16", "data_parallel, sparse"):
    times = busiest[name] / touched
    print(f"{name:28} {busiest[name]:12,} bytes, {times:8,.1f} x the rows touched")
print("formula, dense: ", f"2 x 3/4 x {ROWS:,} x {DIM} x 4 = {dense_bytes(ROWS, DIM, RANKS):,}")
print(
    "formula, sparse:",
    f"3 x {TOUCHED} x (8 + {DIM} x 4) = {sparse_bytes(TOUCHED, DIM, RANKS):,}",
)
print("row_wise sends under 60 kB:", busiest["row_wise"] < 60_000)
assert busiest["data_parallel, dense"] == dense_bytes(ROWS, DIM, RANKS)
assert busiest["data_parallel, dense, bf16"] == busiest["data_parallel, dense"]
assert busiest["data_parallel, sparse"] == sparse_bytes(TOUCHED, DIM, RANKS)
assert max(busiest["row_wise"], busiest["column_wise"]) < 70_000

# %%
ask.reveal(
    "d",
    because="A dense gradient has the table's size; a ring sends 2(n-1)/n of it.",
)

# %% [markdown]
# 999,488 of a million rows of that gradient are zeros from this rank, and they cross one and a half times. Half precision changed nothing, because a lookup is not cast: weights and gradients of a table are
# FP32 under autocast. `sparse=True` sends indices and rows: 868 times less. Asking the owner of a row sends less again, because each row travels to one rank and not to three.
#
# ## Break it: a diet for the wrong item
# S4's order for a table that does not fit: mixed precision and gradient checkpointing first, cutting last. Lesson 06 measured what those save. Here they are on a table, in our size (100,000 rows of 32), counted in bytes.


# %%
class Recommender(nn.Module):
    """Fields of a sample looked up in one table, then an MLP."""

    def __init__(self, rows, dim, fields, sparse=False):
        super().__init__()
        self.table = new_table(rows, dim, sparse)
        self.mlp = nn.Sequential(nn.Linear(fields * dim, 128), nn.GELU(), nn.Linear(128, 1))

    def forward(self, ids):
        return self.mlp(self.table(ids).flatten(1)).squeeze(1)


# %%
def held(bf16=False, recompute=False, optimizer_of=torch.optim.Adam, sparse=False):
    """Bytes at the peak of a step that is not the first, by item."""
    torch.manual_seed(0)
    model = Recommender(100_000, 32, fields=8, sparse=sparse)
    if recompute:
        recompute_blocks(model, ["mlp"])
    table = model.table.weight
    optimizer = optimizer_of([table])

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=bf16):
            loss = model(torch.randint(100_000, (256, 8))).float().square().mean()
        loss.backward()
        optimizer.step()

    step()
    with trace_memory() as trace:
        trace.label("table", [table])
        trace.label("gradient", lambda: [table.grad])
        states = [value for state in optimizer.state.values() for value in state.values()]
        trace.label("optimizer", [value for value in states if isinstance(value, torch.Tensor)])
        step()
    return trace.items


# %% tags=["lab-failure", "nbval-check-output"]
diets = {
    "FP32, Adam": held(),
    "bf16": held(bf16=True),
    "bf16, MLP recomputed": held(bf16=True, recompute=True),
}
numbers = 100_000 * 32
for name, items in diets.items():
    per_number = {
        item: round(items[item] / numbers, 3) for item in ("table", "gradient", "optimizer")
    }
    print(f"{name:22} bytes for each number of the table: {per_number}")
    assert all(items[item] == diets["FP32, Adam"][item] for item in per_number)

# %% [markdown]
# The bytes do not move: 4 + 4 + 8. Both remedies shrink *activations*, and a lookup has next to none: the vectors of the batch. What moves a table's bytes:

# %% tags=["nbval-check-output"]
cures = {
    "sparse gradient, SparseAdam": held(sparse=True, optimizer_of=torch.optim.SparseAdam),
    "sparse gradient, row-wise Adagrad": held(sparse=True, optimizer_of=RowWiseAdagrad),
}
for name, items in cures.items():
    small = items.get("gradient", 0) < 0.05 * 4 * numbers
    state = items["optimizer"] / numbers
    print(
        f"{name:34} gradient under 5 % of the table: {small}; state {state:.3f} bytes a number"
    )
    assert small
assert cures["sparse gradient, row-wise Adagrad"]["optimizer"] == 4 * 100_000

# %% [markdown]
# Row-wise Adagrad keeps one number a *row*. At S4's width with a million rows (our number, he gives none): 16.4 GB with Adam, 12.3 GB with sparse gradients, 4.1 GB with row-wise state too.

# %% tags=["nbval-check-output"]
t4 = cards()["T4 16 GiB"]
for dim in (256, 1024):
    adam, row_wise = t4 / 16 / dim / 1e6, t4 / (4 + 4 / dim) / dim / 1e6
    print(f"{dim:5} numbers a row: a T4 ends at {adam:.2f}M rows with Adam,", end=" ")
    print(f"at {row_wise:.2f}M with sparse gradients and row-wise state")
size = 16 * 1024 * 1e6 / 1e9
print(f"1M x 1,024 with Adam: {size:.1f} GB of {t4 / 1e9:.1f}, and then the rest")

# %% [markdown]
# So at his width a T4 was full at a million rows, and with sparse gradients and row-wise state it holds four million.
#
# For S4's order to be right the largest item would have to be activations: a deep network over narrow tables.
#
# ## Look: bytes of one step
# What each way sends by formula, on a log scale, with the measured ones marked. Move the sliders: which bars depend on the number of rows, which on the samples? ("skew" 1: row i is drawn as often as 1/i.)

# %%
counted = {name: busiest[name] for name in busiest if not name.endswith("bf16")}


def bytes_figure(rows=ROWS, dim=DIM, samples=TOUCHED, ranks=RANKS, skew=0.0):
    ours = (rows, dim, samples, ranks, skew) == (ROWS, DIM, TOUCHED, RANKS, 0.0)
    return table_bytes_figure(rows, dim, samples, ranks, skew, counted if ours else None)


explorer(
    bytes_figure,
    rows=[100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000],
    dim=[16, 64, 256, 1024],
    samples=(64, 4096, 64),
    ranks=(2, 16),
    skew=(0.0, 1.5, 0.5),
)

# %% [markdown]
# Only the dense bar knows the number of rows. It is the best one where a batch touches nearly every row, so small tables belong in DDP:

# %% tags=["nbval-check-output"]
for rows in (100, 10_000, 1_000_000):
    best = plan_table(rows, DIM, samples=TOUCHED, ranks=RANKS).best
    print(f"{rows:9,} rows: {best.name}")

# %% [markdown]
# ## Look: who serves the hot rows
# Ids are not drawn evenly. Vocabularies are usually sorted by frequency, so blocks of neighbouring rows put all hot ones on rank 0. Four ranks, 4,096 ids on each:

# %%
loads = {name: [rank["skew"][name] for rank in four] for name in four[0]["skew"]}
show(shard_load_figure(loads))

# %% tags=["nbval-check-output"]
ratio = {name: max(served) / (sum(served) / len(served)) for name, served in loads.items()}
print("blocks, asking for each id: busiest over 3 x the mean:", ratio["blocks, each id"] > 3)
print("blocks, each row once:      busiest over 2 x:         ", ratio["blocks"] > 2)
print("every n-th row, each once:  busiest under 1.1 x:      ", ratio["every n-th row"] < 1.1)
assert ratio["blocks, each id"] > 3
assert ratio["blocks"] > 2
assert ratio["every n-th row"] < 1.1

# %% [markdown]
# Two remedies, and both are needed: ask for each row **once**, so that a hot row costs one vector and not hundreds; and let **neighbours part**, row i to rank `i % n`. A step is as slow as the busiest rank.
#
# ## Build it: the pair
# f, g, the three cuts, and the pair itself. torch keeps a matrix as [outputs, inputs], so "columns of A" is dimension 0 of `first`.


# %% tags=["exercise"]
class CopyToRanks(torch.autograd.Function):
    """f: x itself; backward, the sum of its gradients over the ranks."""

    @staticmethod
    def forward(ctx, x):
        """Return x."""
        ### BEGIN SOLUTION
        return x.view_as(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        """Return x's gradient when every rank used all of x. Leave `gradient` as it is."""
        ### BEGIN SOLUTION
        total = gradient.clone()
        dist.all_reduce(total)
        return total
        ### END SOLUTION


# %% tags=["exercise"]
class SumOverRanks(torch.autograd.Function):
    """g: the sum of x over the ranks; backward, the gradient itself."""

    @staticmethod
    def forward(ctx, x):
        """Return the sum over ranks. Leave `x` as it is."""
        ### BEGIN SOLUTION
        total = x.clone()
        dist.all_reduce(total)
        return total
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of this rank's part."""
        ### BEGIN SOLUTION
        return gradient
        ### END SOLUTION


# %% tags=["exercise"]
def cut(first, bias, second, rank, ranks):
    """This rank's parts of first [h, d], bias [h] and second [o, h], as three tensors."""
    ### BEGIN SOLUTION
    return first.chunk(ranks, 0)[rank], bias.chunk(ranks, 0)[rank], second.chunk(ranks, 1)[rank]
    ### END SOLUTION


def pair(x, first, bias, second, last_bias):
    """y [t, o] of x [t, d] from this rank's parts, the same on all ranks.

    y = gelu(x A + bias) B + last_bias. x and last_bias are whole, the same on all ranks.
    """
    ### BEGIN SOLUTION
    hidden = F.gelu(F.linear(CopyToRanks.apply(x), first, bias))
    return SumOverRanks.apply(F.linear(hidden, second)) + last_bias
    ### END SOLUTION


# %% tags=["hint"]
hint("07-pair")

# %% [markdown]
# ## Check: the pair
# On 2 and on 3 ranks: numbers held, all-reduces and their bytes each way, then the output and every gradient against one process.

# %% tags=["check"]
check("07-pair", pair, cut)

# %% [markdown]
# ## Build it: a table by rows
# One lookup is a question and an answer. You get three messages that exist (from `dtlab.parallel.embedding_exchange`):
#
# - `gather_counts(counts, None)`: `counts` [n], what this rank will send to each; back comes, as a list, what each will send to this one.
# - `all_to_all(tensor, sent, received, None)`: the first `sent[0]` entries go to rank 0, and so on. Lists of integers.
# - `exchange(tensor, sent, received, None)`: the same, and autograd can go back through it. It divides the gradients that return by n, so that their sum is the mean over ranks.


# %% tags=["exercise"]
def place(rows, num_rows, ranks):
    """Owner and slot of rows [k] of a table of num_rows: two int64 tensors [k].

    A slot is the row's place among its owner's rows, from 0 on. Each rank owns
    ceil(num_rows / ranks) rows or fewer. Low rows are asked for most: spread them.
    """
    ### BEGIN SOLUTION
    return rows % ranks, rows // ranks
    ### END SOLUTION


# %% tags=["exercise"]
def lookup(ids, part, num_rows, ranks):
    """Vectors [k, d] of ids [k] int64, in their order; k differs by rank, and may be 0.

    part [own rows, d] is what this rank holds, in the order of slots. Ask the owner of each
    different row once. Every rank calls this together.
    """
    ### BEGIN SOLUTION
    wanted, position = ids.unique(return_inverse=True)
    owners, slots = place(wanted, num_rows, ranks)
    order = owners.argsort(stable=True)
    counts = torch.bincount(owners, minlength=ranks)
    asked, served = counts.tolist(), gather_counts(counts, None)
    questions = all_to_all(slots[order], asked, served, None)
    vectors = exchange(part[questions], served, asked, None)
    return vectors[order.argsort()][position]
    ### END SOLUTION


# %% tags=["hint"]
hint("07-lookup")

# %% [markdown]
# ## Check: a table by rows
# On 3 ranks and 11 rows, with uneven ids, duplicates, and ranks without any: places, messages, bytes of each rank to the byte; then vectors, the gradient of the whole table, and the load under skewed ids.

# %% tags=["check"]
check("07-lookup", lookup, place)

# %% [markdown]
# ## Build it: the remedy
# Neither S4's order nor S3's ("accumulation before anything else") is a rule. The bill is. In FP32 with Adam:
#
# | item | bytes | its remedies, in order | bytes after it |
# |---|---|---|---|
# | `"table"` | 16 a number | `"sparse gradients"` | 12 a number |
# | | | `"row-wise state"` | 4 a number and 4 a row |
# | | | `"rows over ranks"` | that, divided by the ranks |
# | `"states"` | 16 a parameter outside the table | `"states over ranks"` | divided by the ranks (lesson 09) |
# | `"activations"` | as given | `"smaller micro-batch"` | a quarter |
# | | | `"recompute"` | a quarter of that (our assumption) |


# %% tags=["exercise"]
def choose(rows, dim, other, activations, card, ranks):
    """Remedies to take, in order, and the bytes of each item after them: (list, dict).

    While the bill is over `card` bytes, the item that is largest then takes its next remedy.
    The table has rows x dim numbers, `other` are the parameters outside it. Whole bytes: use //.
    If the largest item has no remedy left, raise a ValueError that names it.
    """
    ### BEGIN SOLUTION
    row_wise, quarter = 4 * rows * dim + 4 * rows, activations // 4
    bill = {"table": 16 * rows * dim, "states": 16 * other, "activations": activations}
    left = {
        "table": [("sparse gradients", 12 * rows * dim), ("row-wise state", row_wise)],
        "states": [("states over ranks", 16 * other // ranks)],
        "activations": [("smaller micro-batch", quarter), ("recompute", quarter // 4)],
    }
    left["table"].append(("rows over ranks", row_wise // ranks))
    taken = []
    while sum(bill.values()) > card:
        item = max(bill, key=bill.get)
        if not left[item]:
            raise ValueError(f"{item}: {bill[item]:,} bytes, and no remedy left")
        name, bill[item] = left[item].pop(0)
        taken.append(name)
    return taken, bill
    ### END SOLUTION


# %% tags=["hint"]
hint("07-remedy")

# %% [markdown]
# ## Check: the remedy
# Tables of S4's width, S3's model, one of 7 billion parameters, a mixed one, and three that nothing helps.

# %% tags=["check"]
check("07-remedy", choose)

# %% [markdown]
# ## The real thing
# `tensor_parallel` cuts a whole GPT: attention by heads, MLPs as your pair, embedding and head by tokens. By hand as above, or with torch's DTensor plans. Beside it `shard_embeddings`
# with row-wise Adagrad, ten steps, against one process. All on two ranks.


# %% tags=["hide-input"]
def new_gpt():
    torch.manual_seed(0)
    return GPT(64, 16, 32, num_layers=1, num_heads=4).double()


tokens = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(1))


def step_gpt(model):
    loss = token_loss(model(tokens), tokens.roll(-1, 1))
    (loss.total / loss.tokens).backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()


# %% tags=["hide-input"]
def new_recommender(sparse=True):
    torch.manual_seed(0)
    model = Recommender(1_000, 8, fields=4, sparse=sparse)
    nn.init.normal_(model.table.weight)
    return model.double()


def train_recommender(model, rank, ranks):
    """Ten steps of 32 samples over all ranks; the loss is the mean over this rank's."""
    table = next(p for name, p in model.named_parameters() if "table" in name)
    rest = [p for name, p in model.named_parameters() if "table" not in name]
    optimizers = [RowWiseAdagrad([table], lr=0.1), torch.optim.SGD(rest, lr=0.1)]
    draw = torch.Generator().manual_seed(2)
    for _ in range(10):
        ids = torch.randint(1_000, (32, 4), generator=draw)[rank::ranks]
        model.zero_grad()
        (model(ids) - ids.double().mean(1) / 500).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


# %%
def real_thing():
    """Parameters after training, whole on every rank, and the all-reduces of a GPT's step."""
    found = {}
    with world() as w:
        mesh = init_device_mesh("cpu", (w.size,))
        for engine in ("by_hand", "dtensor"):
            model = tensor_parallel(new_gpt(), mesh, engine=engine)
            with traffic() as counted:
                step_gpt(model)
            found[engine] = full_parameters(model)
            found[f"{engine} calls"] = counted.by_op["all_reduce"].calls
        sharded = shard_embeddings(new_recommender(), "row_wise_cyclic")
        train_recommender(data_parallel(sharded, w), w.rank, w.size)
        found["row-wise table"] = full_state(sharded)
    return found


# %% tags=["nbval-check-output"]
one, recommender = new_gpt(), new_recommender()
step_gpt(one)
train_recommender(recommender, 0, 1)
expected = {engine: dict(one.named_parameters()) for engine in ("by_hand", "dtensor")}
expected["row-wise table"] = recommender.state_dict()
both = launch(real_thing, 2, timeout=100, echo=False)
for name, wanted in expected.items():
    same = all(
        torch.allclose(rank[name][key], wanted[key], atol=1e-9)
        for rank in both
        for key in wanted
    )
    print(f"{name:15} as one process on both ranks: {same}")
    assert same
# embedding, attention, MLP forward; MLP, attention, head backward
print("all-reduces of the GPT's step, by hand:", both[0]["by_hand calls"])
assert both[0]["by_hand calls"] == 6

# %% [markdown]
# If you solved the second exercise, your own look-up beside the core's, on one batch of ids of each rank:


# %%
def yours_beside_core(lookup):
    """Same vectors? And the bytes that this rank sent, yours and the core's."""
    with world() as w:
        whole = nn.Embedding(1_000, 8, _weight=new_recommender().table.weight.detach().float())
        ids = torch.randint(1_000, (200,), generator=torch.Generator().manual_seed(w.rank))
        table = shard_embeddings(whole, "row_wise_cyclic")
        with traffic() as core:
            wanted = table(ids)
        with traffic() as own:
            got = lookup(ids, table.weight, 1_000, w.size)
        return torch.equal(got, wanted), own.bytes, core.bytes


# %%
if solved("07-lookup"):
    for rank, (same, own, core) in enumerate(launch(yours_beside_core, 2, lookup, echo=False)):
        print(f"rank {rank}: same vectors {same}, bytes sent {own:,}, by the core {core:,}")
        assert same
else:
    print("to do: solve 07-lookup, then run this cell again")

# %% [markdown]
# `plan_table` is the figure as a table, and `plan_embeddings(model, ...)` makes it for each table of a model. S4's table, 256 samples a rank, at most 6 GB for it on a card:

# %% tags=["nbval-check-output"]
print(*plan_table(1_000_000, 1024, samples=256, ranks=8, memory_bytes=6e9).lines(), sep="\n")

# %% [markdown]
# ### S4's strategy table, counted
# His table says: data parallel "low: one gradient sync", model parallel "high: activations cross at every layer", pipeline "medium". We count it: a recommender with a table of 100,000 x 16, eight fields, 512
# samples in a step over four ranks. "Model parallel" is the cut of this lesson's first half, through the table too. The pipeline has two stages, the table and the MLP, and sends one activation.


# %% tags=["hide-input"]
def tensor_cut(model):
    model.table = VocabularyEmbedding(model.table)
    model.mlp[0], model.mlp[2] = ColumnLinear(model.mlp[0]), RowLinear(model.mlp[2])
    return lambda ids: model(ids).square().mean().backward()


def two_stages(model, rank):
    """Rank 0 looks up, rank 1 has the MLP; the two others have nothing to do."""

    def step(ids):
        if rank == 0:
            fields = model.table(ids).flatten(1)
            dist.send(fields.detach(), 1)
            dist.recv(gradient := torch.empty_like(fields), 1)
            fields.backward(gradient)
        elif rank == 1:
            dist.recv(fields := torch.empty(len(ids), 128), 0)
            model.mlp(fields.requires_grad_()).square().mean().backward()
            dist.send(fields.grad, 0)

    return step


# %% tags=["hide-input"]
def replicas(model, w):
    wrapped = data_parallel(model, w)
    return lambda ids: wrapped(ids.chunk(w.size)[w.rank]).square().mean().backward()


# %%
def new(sparse=False):
    return Recommender(100_000, 16, fields=8, sparse=sparse)


def count_strategies():
    """Bytes that this rank sends in one step of 512 samples, for each strategy."""
    sent = {}
    with world() as w:
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(100_000, (512, 8), generator=draw)
        strategies = {
            "data parallel, dense": replicas(new(), w),
            "data parallel, sparse": replicas(new(True), w),
            "model (tensor) parallel": tensor_cut(new()),
            "pipeline of 2": two_stages(new(), w.rank),
            "rows exchanged": replicas(shard_embeddings(new(True), "row_wise_cyclic"), w),
        }
        for name, step in strategies.items():
            with traffic() as counted:
                step(ids)
            sent[name] = counted.bytes
            w.barrier()
    return sent


# %% tags=["hide-input"]
said = {
    "data parallel, dense": "low",
    "data parallel, sparse": "low",
    "model (tensor) parallel": "high",
    "pipeline of 2": "medium",
    "rows exchanged": "-",
}

# %% tags=["nbval-check-output"]
ranks = launch(count_strategies, 4, timeout=90, echo=False)
most = {name: max(rank[name] for rank in ranks) for name in said}
order = sorted(
    ("data parallel, dense", "model (tensor) parallel", "pipeline of 2"), key=most.get
)
place_of = dict(zip(order, ("low", "medium", "high"), strict=True))
print("strategy                 S4 says  counted, kB  among his three")
for name, word in said.items():
    rank_of = place_of.get(name, "")
    mark = "" if rank_of in ("", word) else "  <- WRONG CELL"
    print(f"{name:24} {word:8} {most[name] / 1e3:11,.0f}  {rank_of}{mark}")
assert order == ["pipeline of 2", "model (tensor) parallel", "data parallel, dense"]
assert most["data parallel, sparse"] < most["data parallel, dense"] / 10
assert most["rows exchanged"] < most["data parallel, dense"] / 10

# %% [markdown]
# For a table with dense gradients, the default, all three cells of that column are wrong. Data parallel is the *most*: at his first size, 1M x 256 on 8 ranks, $2 \cdot 7/8 \cdot 1{,}024$ MB = 1.79 GB from each
# rank in each step. For "low" to hold, gradients must be sparse or the table small. With sparse ones tensor parallel is indeed the most. The pipeline is the *least* of his three: one activation there, one gradient back.
#
# His last column, "fit for recommenders":
#
# | strategy | he says | counted |
# |---|---|---|
# | data parallel | high: the embedding is big but fits | **WRONG** with dense gradients: the more it "is big", the more it sends. Right for small tables, and with sparse gradients |
# | model parallel | low, unless the embedding is huge | right of this cut, **WRONG** of the rows: dealt out and exchanged they send least of all, and memory is divided by n. He did not try that |
# | pipeline | medium: deep CTR models | few bytes, right; but a naive split by layers keeps one card busy at a time (lesson 08) |
#
# The last point is a second reason for "twice as slow": two cards in turn are half used, whatever crosses. Which of the two it was we cannot tell, because he reports no split of the time.

# %% [markdown]
# ## On a GPU
# The sums are the same, the links are not: tensor parallelism belongs inside a host with NVLink. One thing does change. NCCL reduces dense tensors only, so DDP with `sparse=True`, which just ran on gloo, stops:

# %% tags=["lab-failure"]
with expect_failure(
    UserError,
    match="table.weight: sparse gradients cannot be reduced",
    within=5,
    explain={
        "table.weight": "which table; torch's own message says 'must be dense' and no name",
        "sparse=False": "way out 1: the whole gradient crosses, in every step",
        "backend 'gloo'": "way out 2: keep this table on the CPU",
    },
):
    check_sparse_gradients(Recommender(10, 2, fields=2, sparse=True), "nccl")

# %% [markdown]
# Way out 3 is this lesson's: `shard_embeddings(model, "row_wise_cyclic")`. Its messages are dense all_to_alls, its sparse gradient never leaves the owner, and `data_parallel` leaves such tables alone. On a larger scale TorchRec does the
# same with fused kernels; `dtlab.parallel.embedding_torchrec` takes it as the engine of a table where it is installed, and says how to install it.

# %% tags=["gpu-optional"]
if torch.cuda.is_available():
    table = nn.Embedding(100_000, 64, sparse=True, device="cuda")
    table(torch.arange(512, device="cuda")).sum().backward()
    table.weight.grad = table.weight.grad.coalesce()
    RowWiseAdagrad(table.parameters(), lr=0.1).step()
    print(
        f"{len(table.weight.grad.indices()[0])} rows moved, the state is {100_000 * 4:,} bytes"
    )
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# S4's two hosts of four T4, at the width that did fit: 1M x 256. A ring over the hosts sends each rank's 1.79 GB through one 50 Gbit/s link. 256 samples with 26 fields (our assumption) on each rank, exchanged
# by rows, four sevenths of it with the other host (four of the seven other ranks are there). At the links' full rate, which nobody reaches:

# %%
LINK = 50e9 / 8
asks = 256 * 26
ring = dense_bytes(1_000_000, 256, 8) / LINK
exchanged = 4 * row_wise_bytes([[asks // 8] * 8] * 8, 0, 256) * 4 / 7 / LINK
through = (
    f"the whole table {ring * LINK / 1e6:,.0f} MB, the rows {exchanged * LINK / 1e6:.1f} MB"
)
print(f"through a host's link in one step: {through}")

bill(
    "1,000,000 steps, the table shipped whole",
    "1,000,000 steps, rows exchanged",
    instance="ml.g4dn.12xlarge",
    count=2,
    fault_seconds=1_000_000 * ring,
    fix_seconds=1_000_000 * exchanged,
)

# %% [markdown]
# That is communication alone. And the incident: for every hour that the job should have taken, the second one. Say it was a job of 10 hours (he gives no number):

# %%
bill(
    "a job of 10 hours, twice as slow",
    "the 10 hours",
    instance="ml.g4dn.12xlarge",
    count=2,
    fault_seconds=20 * 3600,
    fix_seconds=10 * 3600,
)

# %% [markdown]
# ## Recap

# %%
recap(
    "07",
    [
        "Columns, then rows: g sums forward, f backward. Without f, what stands in front is wrong.",
        "Dense gradients ship the whole table; exchange touched rows, each once, neighbours apart.",
        "The largest item of the bill picks the remedy; half precision does not move a table.",
    ],
)
