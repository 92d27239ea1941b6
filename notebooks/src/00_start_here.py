# %% [markdown]
# # Start here
#
# This course teaches distributed PyTorch training by breaking it. In each lesson real processes fail as they fail at work; you
# measure the failure, write the fix, and see what it would have cost on a named machine. Everything runs on this
# computer's CPU and costs nothing. Later you take the same package, `dtlab`, to a cluster.
#
# You need to know PyTorch on one card: a model, a loss, an optimizer, a training loop. You need no GPU and no cloud account.
#
# ## How a lesson goes
# *Predict* an answer, *break* a run, *look* at why, *build* the part that matters in 5 to 20 lines, *check* it, see *the real thing* in
# torch and `dtlab`, pay *the bill*, keep three lines. A cell runs with Shift+Enter. Where you see `NotImplementedError`, write
# your answer; the cell below checks it and says what is wrong and where to look. `hint("02-ring")` helps a little,
# `hint("02-ring", 2)` helps more. `notebooks/solutions/` holds every lesson solved and executed, unless your copy came without.
#
# ## Is this machine ready?

# %% tags=["hide-input"]
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import dtlab
from dtlab import launch, load_dataset, world
from dtlab.course import progress_table
from dtlab.course.paths import paths_table
from dtlab.data.config import DataConfig
from dtlab.models.deepfm import DeepFM

# %% tags=["varies"]
dtlab.doctor()

# %% [markdown]
# A line that says FAIL carries its fix. WARN means that the course runs, with a reservation. In a terminal the same check is `dtlab doctor`.
#
# With a GPU one line is about NCCL, which carries messages between cards. One of the authors below looks for a wrong version with `ldd` and installs
# another by hand. A torch from pip brings its own NCCL and loads that, whatever the system has. So ask torch, on every rank:
# `torch.cuda.nccl.version()` must be the same everywhere. The doctor holds it against the installed wheel.
#
# ## Two ranks from a cell
# A distributed job is several processes that run the same function. Each is a *rank*, and all of them together are the *world*.
# `launch` starts them here and brings their results back in rank order:


# %% tags=["nbval-check-output"]
def hello():
    """Every rank runs this. It learns who it is from the world that it joins."""
    with world() as w:
        everybody = w.gather(f"rank {w.rank}", dst=None)
        mean = w.mean(float(w.rank))
        return f"I am rank {w.rank} of {w.size}; here are {everybody}; mean of our numbers: {mean}"


for line in launch(hello, 2, echo=False):
    print(line)

# %% [markdown]
# Two processes started, found each other, exchanged a word and a number, and ended. The first launch takes about
# a second because torch is loaded for all that follow; later ones take about a tenth. Change 2 to 4 and run the cell again.
# (`echo=False`: what the ranks print stays in their log files.)
#
# ## Which way?
# Lessons take 40 to 60 minutes. 01 to 04 build on each other; the later ones name what they need. 16 is the capstone: a trainer with four
# faults, a plan over its budget, and a report card that measures what you make of them.

# %% tags=["hide-input"]
paths_table()

# %% [markdown]
# If you have one hour, take 02.
#
# ## What data do I have?
# One of the authors that this course learns from lost two weekends on images and text before noticing that the company had
# not one labelled image. It had clicks. Start from the data that you have:
#
# | I have | then train | in this course |
# |---|---|---|
# | clicks, favourites, purchases | a recommender: the events are the labels | `clicks`, generated, any size |
# | a table with a column of 0 and 1 | a classifier | `flights`, real; or **your own Parquet** |
# | text without labels | pre-training of a language model first | `text`, real: `dtlab train examples/gpt.toml` |
# | labelled images | a vision model | not covered; ranks, samplers and costs are the same |
#
# Each name is a `DataConfig`. `load_dataset` gives three splits, transformed and in memory, and says how a model for them is shaped.


# %%
def describe(dataset):
    parts = (dataset.train, dataset.validation, dataset.test)
    sizes = " / ".join(f"{len(part):,}" for part in parts)
    print(f"{dataset.name}: {sizes} rows to train, validate, test")
    columns = f"{len(dataset.cardinalities)} categorical and {dataset.num_dense} dense columns"
    print(f"{columns}; {dataset.train.labels.mean():.1%} of the labels are 1")


def few_steps(config, steps=20):
    """Train a DeepFM for some steps on this rank's part of each batch; loss per row over all ranks."""
    with world(seed=0):
        dataset = load_dataset(config)
        model = DeepFM(dataset.cardinalities, dataset.num_dense, dim=8, hidden=(32,))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        trainer = dtlab.Trainer(model, optimizer, show_progress=False)
        loader = dtlab.Loader(dataset.train, dtlab.GlobalBatchSampler(len(dataset.train), 256))
        first = trainer.train_epoch(loader, max_steps=1).loss
        return first, trainer.train_epoch(loader, max_steps=steps).loss


# %% [markdown]
# ### Flights
# All departures from New York in 2013 with the weather: which arrive more than 15 minutes late? (`data/README.md` is
# its card.) `cache="disk"` keeps the transformed columns, so that the second time takes a moment.

# %% tags=["nbval-check-output"]
describe(load_dataset(DataConfig(name="flights", cache="disk")))

# %% [markdown]
# Train on all of it with two ranks, with a report: `dtlab train examples/flights.toml --nproc 2`, or `make train`.
#
# ### Clicks
# A recommender's log that is made on the spot. Its truth is planted, so the best score that any model can reach is known.

# %% tags=["nbval-check-output"]
clicks = DataConfig(name="clicks", rows=20_000)
dataset = load_dataset(clicks)
describe(dataset)
print(f"the best AUC that anybody can reach on the test rows: {dataset.best_auc:.3f}")
losses = launch(few_steps, 2, clicks, timeout=60, echo=False)
print("loss fell:", all(after < before for before, after in losses))
print("the ranks agree:", losses[0] == losses[1])

# %% [markdown]
# Also `label="favourite"` or `label="purchase"`. In a terminal: `dtlab train --data.name clicks --data.rows 200000 --nproc 2`.
#
# ### Your own Parquet
# Name the file or folder, the label, and the columns by kind. Here the cell first writes a small file; put your path in its place.

# %% tags=["nbval-check-output"]
folder = tempfile.TemporaryDirectory()  # removed when the kernel stops
path = Path(folder.name) / "orders.parquet"
random = np.random.default_rng(0)
price, city = random.gamma(2, 10, 5000), random.integers(0, 4, 5000)
table = {
    "city": [f"city {number}" for number in city],
    "price": price,
    "bought": (price + 10 * city + random.normal(0, 5, 5000) < 35).astype(int),
}
pq.write_table(pa.table(table), path)

columns = {"categorical": ("city",), "numeric": ("price",)}
mine = DataConfig(name="parquet", path=str(path), label="bought", **columns)
describe(load_dataset(mine))
losses = launch(few_steps, 2, mine, timeout=60, echo=False)
print("loss fell:", all(after < before for before, after in losses))

# %% [markdown]
# A wrong column is one line that says what the file has. As a config file it is the table `[data]` of `examples/flights.toml`
# with your names, and `dtlab train yours.toml --nproc 2`.

# %% tags=["nbval-check-output"]
try:
    load_dataset(DataConfig(name="parquet", path=str(path), label="bougth", numeric=("price",)))
except dtlab.UserError as error:
    print(str(error).replace(str(path), "orders.parquet"))

# %% [markdown]
# ### Text
# Bytes of the Python standard library's source, as this Python brings it: nothing is downloaded. `dtlab train examples/gpt.toml --nproc 2` trains
# a small GPT on them.
#
# ## Sources
# The incidents come from three write-ups by practitioners, blog posts of 2026 in Chinese. The lessons call them S0, S3 and S4, and quote what
# they claim, also where it is wrong. A measurement here, or the arithmetic in the cell, then says what holds.
#
# | | who writes | claims that the course checks |
# |---|---|---|
# | **S0** | a recommender team that moved from one card to SageMaker | 4 cards give 3-4x; 300M parameters fill 32 GB; `.to("cuda")` is enough; a barrier cures a hang; curves may differ by 5 % |
# | **S3** | a team that tuned a model of images and text, 320M parameters, three times in vain | model parallel against an out-of-memory error; "n or sqrt(n)" for the learning rate |
# | **S4** | an engineer who got eight cards for a new recommender | `init_process_group` is distributed training; memory is why one distributes; 22 minutes became 6 by the sampler alone |
#
# We have their texts, and neither their code nor their machines. What cannot be checked is called theirs.
#
# ## Your progress
# Kept in one file on this computer; nothing leaves it. Solved exercises and finished lessons (all exercises solved) appear when you run this cell again.
# `dtlab course report mine.md` writes what was checked of each lesson, when and by which version, to hand in or to keep; `mine.html` works too, and the same as JSON lies beside it. It is a record, not a certificate: you can edit the file that it is made from.

# %% tags=["varies"]
progress_table()
