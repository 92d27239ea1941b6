# %% [markdown]
# # Feeding the ranks
#
# An engineer changed four things in his loader at once: a sampler, `num_workers=4`, `pin_memory`, a batch of 256. His epoch fell from
# 22 minutes to 6, from \$3.59 to \$0.98 on two hosts; another team wrote down `num_workers=0` as *the* rule, because theirs hung.
#
# Which reader reads which rows, who prepares them, and what is each of these settings worth, alone?
#
# (The engineer is S4, who got eight cards for a new recommender; the team is S0, which moved a recommender from one card to SageMaker.)
#
# ## Goal

# %% tags=["hide-input"]
from dtlab.course import bill, check, expect_failure, goal, hint
from dtlab.course import predict, recap, running, solved

goal(
    [
        "give every row group of a Parquet log one reader: a rank and a worker",
        "let one process prepare the data, and show the others a whole folder or none",
        "name a cache entry by what decides its content, and bound its age",
        "say from three times whether loader workers pay, and when they hang",
    ],
    minutes=50,
    needs=["02", "04"],
)

# %% tags=["hide-input"]
import hashlib
import json
import multiprocessing
import os
import shutil
import tempfile
import textwrap
import threading
import time
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch.utils.data import IterableDataset, get_worker_info

# %% tags=["hide-input"]
from dtlab import RankError, launch, world
from dtlab.cost import billing, catalogue
from dtlab.data import clicks
from dtlab.data.cache import Cache
from dtlab.data.coverage import seen
from dtlab.data.features import Features
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.row_group_reader import RowGroupReader
from dtlab.data.shards import ShardWriter
from dtlab.data.stream import StreamSampler
from dtlab.data.stream_loader import StreamLoader
from dtlab.data.workers import expected_step_seconds, recommend_workers
from dtlab.data.workers import usable_cores, why_not_fork
from dtlab.figures.feeding import rates_figure, readers_figure, rows_by_rank
from dtlab.figures.style import show

# %% [markdown]
# ## Predict
# Two ranks. Each has a `DataLoader` with `num_workers=2` over one and the same `IterableDataset`, which goes through a log of 12,000
# rows. Commit to an answer before you go on.

# %%
ask = predict(
    "11-rows",
    "How many rows reach the model in one epoch?",
    ["12,000", "24,000", "48,000", "an error: an iterable cannot have workers"],
)

# %% [markdown]
# ## Break it: three files for four ranks
# The log: made-up clicks of three days, one Parquet file a day. Inside a file the rows lie in *row groups*, the smallest piece that
# can be read alone. A row's id is its place in the log, so that we can count what was read.

# %% tags=["nbval-check-output"]
place = tempfile.TemporaryDirectory()  # removed when the kernel stops
home = Path(place.name)
FILES = ((1000, 1000, 1000, 1000, 600), (1000, 1000, 1000, 1000, 600), (1000, 1000, 800))
group_rows = list(chain(*FILES))
rows = sum(group_rows)
log = next(clicks.generate(rows)).table
for day, file in enumerate(FILES):
    part = log.slice(sum(map(sum, FILES[:day])), sum(file))
    pq.write_table(part, home / f"day-{day}.parquet", row_group_size=1000)
paths = sorted(home.glob("day-*.parquet"))
for path in paths:
    footer = pq.read_metadata(path)
    print(
        path.name, [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    )

# %% [markdown]
# The first idea of many: rank r reads the files r, r + N, r + 2N, ... Every batch ends in an all-reduce, as a training step does.


# %% tags=["lab-failure"]
def own_files(batch=100):
    with world() as w:
        for path in paths[w.rank :: w.size]:
            for _ in pq.ParquetFile(path).iter_batches(batch, columns=["id"]):
                dist.all_reduce(torch.ones(1))


with expect_failure(
    RankError,
    match=r"rank 3 of 4 has left after no collective yet, but rank \d waits in all_reduce #1",
    within=40,
    explain={
        "has left after no collective yet": "rank 3 has no file: its loop ended before it began",
        "waits in all_reduce #1": "the first step; it needs all four ranks for its sum",
        "every rank must make the same collective calls": "so: equal step counts on every rank",
    },
    lines=1,
):
    launch(own_files, 4, timeout=30)

# %% tags=["nbval-check-output"]
by_file = {rank: sum(sum(file) for file in FILES[rank::4]) for rank in range(4)}
for rank, count in by_file.items():
    print(f"rank {rank}: {count:5,} rows, {count // 100:2} steps of 100")

# %% [markdown]
# Rank 3 has no file: it starves, and the other three wait for it in their first step. `dtlab` sees that a rank has left while others wait. Plain
# gloo waits for 30 minutes, NCCL for 10, and neither names rank 3.
#
# A fourth file would not help. Ranks 0 and 1 have 46 steps and rank 2 has 28: the hang would come at step 29. Whole files are too
# large a piece, and a file's length is nobody's decision.
#
# ## Break it: everybody prepares
# Features are made once from the log and kept in a folder. The script makes them where they are missing:


# %%
def make_features(folder, some=paths):
    """One .npy of features for each file of the log. Think of an hour of work."""
    folder.mkdir(exist_ok=True)
    for path in some:
        table = pq.read_table(path, columns=["user", "price"])
        np.save(folder / f"{path.stem}.npy", np.stack([table["user"], table["price"]], axis=1))


def rows_in(folder):
    return sum(len(np.load(part)) for part in folder.glob("*.npy")) if folder.exists() else 0


def fresh(name):
    """A path under which nothing is, also when a cell is run again."""
    shutil.rmtree(home / name, ignore_errors=True)
    return home / name


# %% tags=["lab-failure", "nbval-check-output"]
def prepare_where_missing(together, later):
    with world() as w:
        missing = not together.exists()
        w.barrier()  # all have looked by now, as when a launcher starts them in one second
        if missing:
            make_features(together)
        if w.rank == 0:
            make_features(later, paths[:2])
        w.barrier()  # rank 0 is still at work on this one; the others start now, and look
        found = rows_in(later)
        w.barrier()
        return missing, found


folders = fresh("together"), fresh("later")
ranks = launch(prepare_where_missing, 4, *folders, timeout=30, echo=False)
built, found = sum(missing for missing, _ in ranks), ranks[1][1]
print(f"ranks that prepared the first folder: {built} of 4")
print(f"rank 1 found the second folder, and {found:,} of {rows:,} rows in it")
assert built == 4
assert 0 < found < rows

# %% [markdown]
# Four ranks did the same hour of work, each wrote the same files over those of the others, and nobody was told. S0 writes that with many cards one
# can "preprocess in parallel". For that to be true each rank would have to prepare *another part*. The second folder is worse: one that exists is
# taken for a complete one. Rank 1 trains on three quarters of the log, without an error.
#
# ## Break it: a stream, repeated by every worker
# A `DataLoader` with workers copies its data set into each of them. A map-style data set is asked for indices, so the copies share the work. An iterable
# one is asked for everything:


# %%
class Log(IterableDataset):
    """All rows of the log, each with the number of the worker that read it."""

    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        me = get_worker_info()
        for path in self.paths:
            for row in pq.read_table(path, columns=["id"])["id"].to_pylist():
                yield (me.id if me else 0), row


def epoch_of(workers):
    """Workers and ids of one epoch of this rank. Workers are forked: no group is there yet."""
    loader = DataLoader(Log(paths), 500, num_workers=workers, multiprocessing_context="fork")
    worker, ids = (torch.cat(column) for column in zip(*loader, strict=True))
    return worker.tolist(), ids.tolist()


# %% tags=["lab-failure", "nbval-check-output"]
repeated = launch(epoch_of, 2, 2, timeout=60, echo=False)
found = seen([ids for _, ids in repeated], range(rows))
print(f"rows in one epoch: {int(found.times.sum()):,}; different ones: {found.unique_rows:,}")
print("how often each row came:", sorted(set(found.times.tolist())))
assert set(found.times.tolist()) == {4}

# %%
ask.reveal(
    "c", because="2 ranks x 2 workers, and each of the four goes through all 12,000 rows."
)

# %% [markdown]
# Four passes under the name of one epoch, in batches of 500 rows that come twice from each rank. torch's documentation warns of it; no message does.
#
# ## Break it: too many open files
# Two ways to use up a process's file descriptors. A log in 60 shards, all held open. And batches that are *kept*: a tensor comes from a worker in shared
# memory, and holds a descriptor as long as it lives. Here a rank sets itself a limit, as a container does.


# %%
def descriptors(shards):
    import resource

    def in_use():
        return len(os.listdir("/dev/fd"))

    before = in_use()
    kept = list(DataLoader(Log(paths), 1000, num_workers=1, multiprocessing_context="fork"))
    told = {"batches of two columns": len(kept)}
    told["kept: a descriptor for every column"] = in_use() - before >= 2 * len(kept)
    kept = [[column.clone() for column in batch] for batch in kept]
    told["copied and kept: fewer than batches"] = in_use() - before < len(kept)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use() + 20, hard))
    held = []
    try:
        for shard in shards:
            held.append(pq.ParquetFile(shard))
    except OSError as error:
        told["all held open"] = os.strerror(error.errno)
    held.clear()
    reader = RowGroupReader(shards, ["id"])
    told["one open at a time, rows"] = reader.read(np.arange(reader.num_rows)).num_rows
    return told


# %% tags=["lab-failure", "nbval-check-output"]
many = fresh("many")
many.mkdir()
with ShardWriter(many, "shard", rows_per_group=100, rows_per_shard=200) as writer:
    writer.write(log)
shards = sorted(many.iterdir())
print(f"{len(shards)} shards")
told = launch(descriptors, 1, shards, timeout=60, echo=False)[0]
for what, value in told.items():
    print(f"{what}: {value}")
assert told["all held open"] == "Too many open files"
assert told["kept: a descriptor for every column"]
assert told["one open at a time, rows"] == rows

# %% [markdown]
# S0's cure is `ulimit -n 65535`. It lets a script with 60 or 6,000 shards run. It puts off the second way: two columns a batch are two
# descriptors a batch, and a list that grows all epoch reaches any limit. Close what was read, and copy what is kept.
#
# ## Break it: a worker that waits for ever
# Why does S0 say `num_workers=0`? It is on his list of remedies against a deadlock. A *forked* worker is a copy of the process at one moment, with all its locks and
# only one of its threads. If another thread held a lock at that moment, then nobody is left in the copy to free it.


# %%
class Locked(Log):
    """A log that is read under a lock, as a library may do it out of sight."""

    def __init__(self, paths, held):
        super().__init__(paths)
        self.held = held

    def __iter__(self):
        with self.held:
            yield from super().__iter__()


ONE_FORKED = {"num_workers": 1, "multiprocessing_context": "fork"}


# %%
def fork_beside_a_thread():
    held, has_it, let_go = threading.Lock(), threading.Event(), threading.Event()

    def other_thread():
        with held:
            has_it.set()
            let_go.wait()

    loader = partial(DataLoader, Locked(paths, held), 1000, **ONE_FORKED)
    told = {"rows, forked before the thread": sum(len(ids) for _, ids in loader(timeout=60))}
    thread = threading.Thread(target=other_thread, name="other")
    thread.start()
    has_it.wait()
    told["dtlab knows why not to fork"] = "other" in (why_not_fork() or "")
    batches = iter(loader(timeout=1))  # the worker is forked here
    let_go.set()
    thread.join()
    told["lock is free in this process"] = not held.locked()
    try:
        next(batches)
    except RuntimeError as error:
        told["forked beside it"] = str(error)
        multiprocessing.active_children()[0].terminate()  # it would be waited for, 5 s
    told["rows, num_workers=0"] = sum(1 for _ in Locked(paths, held))
    return told


# %% tags=["lab-failure", "nbval-check-output"]
told = launch(fork_beside_a_thread, 1, timeout=90, echo=False)[0]
for what, value in told.items():
    print(f"{what}: {value}")
assert "timed out" in told["forked beside it"]
assert told["rows, num_workers=0"] == told["rows, forked before the thread"] == rows

# %% [markdown]
# Line by line.
#
# - Forked *before* the thread took its lock, the worker gives all rows.
# - Forked beside it, it gives none; the lock is free again by then, in this process. The worker's copy never will be. We asked for a timeout of 1 s.
#   torch's default is none: the loop waits without limit, and with it the other ranks, in their next collective.
# - `num_workers=0` cures it, because nothing is forked. So do `forkserver` and `spawn`, which start from a fresh process.
#
# Threads of gloo and NCCL are of this kind, and CUDA's. torch's own advice for a rank that has joined a group is `forkserver` or `spawn`. We have
# not seen S0's hang. If it was of this kind, he cured *how* workers start by having none. `dtlab`'s `StreamLoader` forks only where nothing speaks against it, and a worker that is silent
# for `worker_timeout` seconds is an error which says so.
#
# ## Break it: yesterday's cache
# S0 then put the prepared data into a cache, which is right. The usual first version names an entry after the file that it was made from:


# %% tags=["lab-failure", "nbval-check-output"]
def by_name(path):
    """The clicks of a day; from the cache when they are there."""
    entry = home / f"{path.stem}.clicks.npy"
    if not entry.exists():
        np.save(entry, pq.read_table(path, columns=["click"])["click"].to_numpy())
    return np.load(entry)


today = home / "today.parquet"
for copied, what in ((paths[0], "first"), (paths[1], "corrected")):
    shutil.copy(copied, today)  # the second time with the bots taken out, say
    used, true = int(by_name(today).sum()), pq.read_table(today)["click"].to_numpy().sum()
    print(f"the {what} file: the cache's clicks are the file's: {used == true}")
(home / "today.clicks.npy").unlink()
assert used != true

# %% [markdown]
# The log was corrected, the run trained on what was there before, and the report says "cached". S0's remedy is a life time, "24 h typical", chosen by how
# often the data changes. A life time bounds how *long* you train on the wrong rows. It does not notice.
#
# ## Break it: four changes at once
# S4's script, before and after. Rows are made one by one in Python, as home-made features are. He added a sampler, four workers, pinned memory and
# batches of 256 in one change, and credits the sampler. Two ranks, each change alone, then all four:


# %%
MADE = 1600  # rows


class HomeMade(Dataset):
    """Features of one row at a time, in Python."""

    def __init__(self):
        names = ("id", "user", "item", "device", "click")
        self.columns = [log[name].to_pylist()[:MADE] for name in names]

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, row):
        number, *values, click = (column[row] for column in self.columns)
        digests = (hashlib.md5(str(value).encode()).digest() for value in values)
        buckets = [int.from_bytes(digest[:4], "little") % 1000 for digest in digests]
        return number, torch.tensor(buckets), float(click)


# %%
def epoch_by_row(data, sampler=False, batch=32, **options):
    """Ids that this rank read in an epoch; rows and seconds after the first batch."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    split = DistributedSampler(data, size, rank) if sampler else None
    parts, began = [], 0.0
    for ids, _, _ in DataLoader(data, batch, shuffle=not sampler, sampler=split, **options):
        began = began or time.perf_counter()
        parts.append(ids)
    seconds = time.perf_counter() - began
    return torch.cat(parts).tolist(), sum(map(len, parts[1:])), seconds


# %%
WORKERS = {"num_workers": 4, "multiprocessing_context": "fork", "prefetch_factor": 1}
CHANGES = {
    "as printed": {},
    "sampler": {"sampler": True},
    "4 workers": WORKERS,
    "pinned memory": {"pin_memory": True},
    "batch 4x": {"batch": 128},
    "all four": {"sampler": True, "batch": 128, "pin_memory": True, **WORKERS},
}


# %% tags=["lab-failure", "varies"]
def one_after_the_other():
    """The quicker of two epochs for each change; the two lie apart."""
    data = HomeMade()
    rounds = [[epoch_by_row(data, **change) for change in CHANGES.values()] for _ in range(2)]
    quicker = [min(same, key=lambda epoch: epoch[2]) for same in zip(*rounds, strict=True)]
    return dict(zip(CHANGES, quicker, strict=True))


with running("twelve epochs on two ranks"):
    no_gpu = {"CUDA_VISIBLE_DEVICES": ""}  # pinning would start CUDA, and then workers are forked
    by_rank = launch(one_after_the_other, 2, timeout=100, echo=False, env=no_gpu)
runs = {name: [one[name] for one in by_rank] for name in CHANGES}

# %% tags=["nbval-check-output"]
epochs = {}
for name, run in runs.items():
    found = seen([ids for ids, _, _ in run], range(MADE))
    epochs[name] = found
    print(f"{name:14} {int(found.times.sum()):6,} rows read, {found.unique_rows:,} different")
assert epochs["4 workers"].duplicate_rows == MADE
assert epochs["all four"].duplicate_rows == 0

# %% [markdown]
# ## Look: what each change brought
# Different rows per second over both ranks, after the first batch: the start of workers is not in it, although they start with every epoch.

# %%
rates = {}
for name, run in runs.items():
    again = int(epochs[name].times.sum()) / MADE  # how often each row came
    rates[name] = sum(count / seconds for _, count, seconds in run) / again
show(rates_figure(rates, usable_cores()))

# %% [markdown]
# What you see depends on your machine; what follows does not, or says so.
#
# - **Sampler**: half of the rows on each of two ranks, so about 2x, on any machine that has a core for each rank. It is a matter of *counts*: the table above.
# - **Workers**: they need cores that nobody else uses. With two ranks on two cores there are none, and every batch still pays for its way through a queue: slower. On S4's hosts, 48
#   virtual cores for 4 ranks, there are.
# - **Pinned memory**: makes the copy to a GPU faster and lets it run beside the computation. Without a GPU torch ignores it.
# - **A batch four times as large**: fewer batches, so less overhead in the loader; how much depends on the machine. It also changes the training (lesson 05).
#
# For S4's sentence, "this one change" took the epoch from 22 to 6 minutes, to be true, the sampler alone would have to give 6. If reading is what takes the time it gives 22 / 8 = 2.75
# (lesson 04). With four changes at once nobody can say where the other three minutes went.
#
# ## Look: who read what
# From the ids that the ranks returned, and from the list of files:


# %%
def groups_of(ids):
    """Numbers of the row groups in which these rows lie."""
    ends = np.cumsum(group_rows)
    return sorted(set(np.searchsorted(ends, ids, side="right").tolist()))


numbers = iter(range(len(group_rows)))
of_file = [[next(numbers) for _ in file] for file in FILES]
whole_files = {(rank, 0): list(chain(*of_file[rank::4])) for rank in range(4)}
every_worker = {
    (rank, worker): groups_of(
        [i for who, i in zip(workers, ids, strict=True) if who == worker]
    )
    for rank, (workers, ids) in enumerate(repeated)
    for worker in (0, 1)
}
show(readers_figure({"whole files": whole_files, "every worker": every_worker}, FILES))

# %% [markdown]
# ## Build it: one reader for every row group
# The piece to hand out is the row group, and the one to hand it to is a pair: a rank and one of its workers. Nothing has to be sent: every process knows
# all row groups from the files' footers, makes the same plan for everybody, and takes its own part.


# %% tags=["exercise"]
def my_groups(group_rows, rank, size, worker=0, workers=1):
    """Numbers of the row groups that one worker reads: worker of `workers`, on rank of `size`.

    group_rows[g] are the rows of group g; they may differ, and there may be fewer groups than
    readers. Every group has one reader. The rows of two ranks, all workers together, differ by
    no more than the largest group; so do those of two workers of a rank. The plan is the same
    on every process, and whenever it is asked for.
    """
    ### BEGIN SOLUTION

    def deal(groups, parts):
        dealt, rows = [[] for _ in range(parts)], [0] * parts
        for group in groups:
            least = rows.index(min(rows))
            dealt[least].append(group)
            rows[least] += group_rows[group]
        return dealt

    mine = deal(range(len(group_rows)), size)[rank]
    return deal(mine, workers)[worker]
    ### END SOLUTION


# %% tags=["hint"]
hint("11-groups")

# %% [markdown]
# ## Check: one reader for every row group
# Equal groups, small last ones, large and small in turn, fewer groups than readers; then four real ranks that read real files.

# %% tags=["check"]
check("11-groups", my_groups)

# %% [markdown]
# Why no two differ by more than a group: a group goes to whoever has the fewest rows. The one who ends with the most was the lowest before his last group,
# and the others only grew since. On our log, with four ranks of two workers:

# %% tags=["nbval-check-output"]
if solved("11-groups"):
    readers = [(rank, worker) for rank in range(4) for worker in (0, 1)]
    yours = {
        (rank, worker): my_groups(group_rows, rank, 4, worker, 2) for rank, worker in readers
    }
    by_group = rows_by_rank(yours, group_rows)
    print("groups, each once:", sorted(chain(*yours.values())) == list(range(len(group_rows))))
    spread = [max(held.values()) - min(held.values()) for held in (by_file, by_group)]
    print(f"busiest minus idlest rank: {spread[0]:,} rows by files, {spread[1]:,} by groups")
    assert spread[1] <= max(group_rows) < spread[0]
    show(readers_figure({"yours": yours}, FILES))

# %% [markdown]
# Balanced within a group is not *equal*. Ranks whose rows differ have different step counts, and then comes the hang of before, later in the epoch. Either all ranks take
# the steps of the busiest, with empty batches at the end (lesson 04), or the rows are dealt out finer than the groups: see *The real thing*.
#
# ## Build it: one prepares, the others wait
# Now the folder. Two rules. One process works, the others wait for it: a lock. And nobody ever sees half a folder: it is made beside its place, and gets its name at the
# end, by a rename, which either has happened or has not.


# %% tags=["exercise"]
def prepare_once(folder, build, lock):
    """Make sure that the Path `folder` is there, complete. True if this process built it.

    build(path) writes files into the folder `path`, which must exist and be empty. `with
    lock():` lets one process in, the others wait there. A `folder` that exists is complete,
    because it comes by os.rename from beside (folder.with_name(...)), inside of the lock. When
    build fails, its error reaches the caller, there is no `folder`, and the next call builds.
    """
    ### BEGIN SOLUTION
    if folder.exists():
        return False
    with lock():
        if folder.exists():
            return False
        beside = folder.with_name(folder.name + ".building")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        build(beside)
        os.rename(beside, folder)
    return True
    ### END SOLUTION


# %% tags=["hint"]
hint("11-prepare")

# %% [markdown]
# ## Check: one prepares
# One process alone; one that waits while another builds; a build that fails; and four real ranks that start together.

# %% tags=["check"]
check("11-prepare", prepare_once)

# %% [markdown]
# ## Build it: a cache that cannot be stale
# An entry's name must hold everything that decides what is in it: the content of the files, their order, the columns. Then a change makes another name, and the old entry is no
# longer asked for. A limit of age is left for what no hash sees: a table that was joined from elsewhere, say.


# %% tags=["exercise"]
def cached(folder, paths, columns, make, max_age=None):
    """The array of make() for these columns of these files, from `folder` when kept there.

    The key is made from the content of every file, the order of the files and the list of
    columns, and from nothing else: no name, no date; it is the same in every process. An entry
    is one .npy file in `folder`; it appears by os.replace when it is whole, and an older one
    stays until then. A write that fails leaves no file. The age is time.time() - st_mtime, in
    seconds; an entry older than `max_age` is made anew, None keeps it for ever. Return it
    mapped: np.load(..., mmap_mode="r").
    """
    ### BEGIN SOLUTION
    digest = hashlib.blake2b(repr(list(columns)).encode(), digest_size=8)
    for path in paths:
        digest.update(hashlib.blake2b(path.read_bytes()).digest())
    entry = folder / f"{digest.hexdigest()}.npy"
    age = time.time() - entry.stat().st_mtime if entry.exists() else 0
    old = max_age is not None and age > max_age
    if old or not entry.exists():
        beside = entry.with_suffix(f".{os.getpid()}.building")
        try:
            with beside.open("wb") as file:
                np.save(file, make())
            os.replace(beside, entry)
        finally:
            beside.unlink(missing_ok=True)
    return np.load(entry, mmap_mode="r")
    ### END SOLUTION


# %% tags=["hint"]
hint("11-cache")

# %% [markdown]
# ## Check: the cache
# Hits and misses are counted for a row of questions: a touched file, a corrected file, other columns, an entry of 23 hours and one of 25, a disk that gets full.

# %% tags=["check"]
check("11-cache", cached)

# %% [markdown]
# ## The real thing
# `ParquetStream` goes another way than `my_groups`. The *order* comes first, one for all ranks, from (seed, epoch): row groups permuted, cut into windows, rows mixed
# inside a window. Then each rank takes its slice of each global batch, as in lesson 04. So steps are equal and batches are those of one process, on any number of ranks.


# %%
def read_stream(cache=None, **loading):
    """An epoch of this rank: ids of each step, groups decoded, answers of the cache."""
    with world():
        cache = None if cache is None else Cache("disk", cache, max_age_seconds=24 * 3600)
        stream = ParquetStream(paths, features, 500, window=4, seed=11, cache=cache)
        ids = [batch.ids.tolist() for batch in StreamLoader(stream, **loading)]
        return ids, stream.counts.groups_read, cache and cache.counts


features = Features.fit(log, clicks.spec())

# %% tags=["nbval-check-output"]
alone = read_stream(prefetch=0)[0]
four = launch(read_stream, 4, timeout=60, echo=False)
print("three files, four ranks:", seen([chain(*ids) for ids, _, _ in four], range(rows)))
print("steps of each rank:", [len(ids) for ids, _, _ in four])
joined = [sorted(chain(*parts)) for parts in zip(*(ids for ids, _, _ in four), strict=True)]
print("batches of one process:", joined == [sorted(batch) for batch in alone])
print(
    f"row groups decoded by each rank: {[groups for _, groups, _ in four]} of {len(group_rows)}"
)
assert joined == [sorted(batch) for batch in alone]

# %% [markdown]
# The price is in the last line. Each rank needs a quarter of *every* window, so each decodes every row group; `my_groups` decodes each once. What one pays, the other lacks:
#
# | | `my_groups` | `ParquetStream` |
# |---|---|---|
# | decoded | each group once | each group once by every rank and worker |
# | rows of ranks | equal within a group; empty batches at the end | equal in every step |
# | mixing | a rank's own groups, the same every epoch | all groups, other neighbours every epoch |
# | on another number of ranks | another order | the same batches, also resumed in mid-epoch |
#
# ### One cache for all ranks
# Decoding again is what a cache is for. Two ranks: the first launch finds none, the second finds it. Then the third file is corrected; then the entry is made to look 25 hours old.


# %%
def ask_cache(what):
    answers = launch(read_stream, 2, cache_folder, timeout=60, echo=False)
    counts = [counts for _, _, counts in answers]
    found = seen([chain(*ids) for ids, _, _ in answers], range(rows)).once
    made = sum(one.misses + one.rebuilds for one in counts)
    taken = sum(one.hits + one.waits for one in counts)
    groups = sum(groups for _, groups, _ in answers)
    print(f"{what:16} made {made}, taken {taken}, decoded {groups:2}, every row once: {found}")
    return made, taken, groups


# %% tags=["nbval-check-output"]
cache_folder = fresh("cache")
assert ask_cache("first launch") == (1, 1, 13)
assert ask_cache("second launch") == (0, 2, 0)
kept = paths[2].read_bytes()
third = log.slice(9200)
column = third.column_names.index("price")
corrected = third.set_column(column, "price", pc.negate(third["price"]))
pq.write_table(corrected, paths[2], row_group_size=1000)
assert ask_cache("a corrected file") == (1, 1, 13)
for manifest in cache_folder.glob("*/manifest.json"):
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"made": told["made"] - 25 * 3600}))
assert ask_cache("25 hours later") == (1, 1, 13)
restored = paths[2].write_bytes(kept)  # so that this cell can be run again

# %% [markdown]
# One rank makes an entry, the others wait for it or find it there, and nobody starts on an old one while the new one is made. `dtlab.data.prepare.prepare` is your
# `prepare_once` with a manifest, so that a folder which somebody tore is rebuilt too, and with a lock that the system frees when its owner is killed.
#
# ### The same batches, however they are read
# In the loop, by a thread, or by two workers:


# %% tags=["nbval-check-output"]
def three_ways():
    stream = partial(ParquetStream, paths, features, 500, seed=11, rank=0, world_size=1)
    ways = {
        "loop": {"prefetch": 0},
        "thread": {"prefetch": 1},
        "2 workers": {"num_workers": 2, "worker_start_method": "fork"},
    }
    return {
        name: [batch.ids.tolist() for batch in StreamLoader(stream(), **options)]
        for name, options in ways.items()
    }


ways = launch(three_ways, 1, timeout=90, echo=False)[0]
for name, ids in ways.items():
    print(f"{name}: {len(ids)} batches, those of above: {ids == alone}")
    assert ids == alone

# %% [markdown]
# ### How many workers?
# Not 0, not 4: it follows from three times. To *decode* what a step needs, to make *features* of it, and to *train* on it. With W workers a step takes
#
# $$\max\Big(\text{train} + \text{queue},\; \text{decode} + \frac{\text{features}}{W}\Big)$$
#
# because each worker decodes the whole window and makes every W-th batch; the queue costs about 2 ms. S4 gives no times. Say a batch takes 2 ms to decode, 40 ms of features, and 10 ms of
# training:

# %% tags=["nbval-check-output"]
slow = {"decode_seconds": 2e-3, "transform_seconds": 40e-3, "step_seconds": 10e-3}
for workers in (1, 2, 4, 8):
    milliseconds = 1e3 * expected_step_seconds(**slow, num_workers=workers)
    print(f"workers: {workers}; max(10 + 2, 2 + 40 / {workers}) = {milliseconds:.0f} ms a step")

# %% [markdown]
# More than four gain nothing. `recommend_workers` takes the fastest way that the host has room for, and says why. S4's host, and four changes to it:

# %% tags=["nbval-check-output"]
columns = {"decode_seconds": 0, "transform_seconds": 5e-5, "step_seconds": 10e-3}
fast = {"decode_seconds": 2e-3, "transform_seconds": 5e-3, "step_seconds": 10e-3}
host = catalogue.instance("ml.g4dn.12xlarge")
free = {"cores": host.vcpus, "ranks_per_host": 4, "shm_bytes": 10**10, "batch_bytes": 10**7}
CASES = {
    f"S4's host, {host.vcpus} cores": slow | free,
    "as many cores as ranks": slow | free | {"cores": 4},
    "a container, 64 MB shared": slow | free | {"shm_bytes": 64 * 2**20},
    "features are quick": fast | free,
    "columns in memory (S0)": columns | free,
}
for name, times in CASES.items():
    advice = recommend_workers(**times)
    print(f"{name}: {advice.num_workers} workers, {advice.prefetch} windows ahead by a thread")
    print(textwrap.indent(textwrap.fill(advice.reason, 90), "  "))

# %% [markdown]
# Both rules are right somewhere. Four workers: cores that nobody uses, and features slower than the training. None: columns in memory, full cores, or a small `/dev/shm`, S0's "shared
# memory". The formula takes it that a worker has a core of its own.
#
# And for our own features, measured a moment ago in S4's loop:

# %% tags=["varies"]
_, count, seconds = runs["sampler"][0]
seconds_a_batch = seconds / (count / 32)
times = {"transform_seconds": seconds_a_batch, "python_seconds": seconds_a_batch}
advice = recommend_workers(decode_seconds=0, step_seconds=2e-3, ranks_per_host=2, **times)
print(f"{usable_cores()} cores, two ranks: {advice.num_workers} workers; {advice.reason}")

# %% [markdown]
# ### Faults that people reported, and the right values
# Short batches in the middle of a stream, and a tail that each worker drops for itself: 16 of the 102 trouble reports that this course was made from are about samplers and loaders. (S0
# puts it at 90 %.)

# %% tags=["nbval-check-output"]
for blocks in ([30, 10], [20, 20]):
    sizes = [len(batch) for batch in StreamSampler(blocks, 8, rank=0, world_size=1)]
    print(f"40 rows in blocks of {blocks}, batches of 8: {sizes}")
stream = partial(ParquetStream, paths, features, 700, seed=11, rank=0, world_size=1)
for tail in ("drop", "keep"):
    source = stream(tail=tail)
    by_worker = [[len(batch) for batch in source.walk(worker, 4)] for worker in range(4)]
    read, batches = sum(map(sum, by_worker)), sum(map(len, by_worker))
    print(f"{tail:4} the tail, 4 workers: {read:,} of {rows:,} rows, {batches} batches")

# %% [markdown]
# 12,000 rows are 17 batches of 700 and one of 100. Dropping the tail loses these 100, once; an iterable with four workers and `drop_last=True` would lose the tail of each.
#
# ## On a GPU
# A batch goes to the card through page-locked memory, while the card still works on the one before. Here pinning pays; it is the default for a CUDA device. Workers must not be
# forked any more once CUDA is in use:

# %% tags=["gpu-optional"]
if torch.cuda.is_available():
    loader = StreamLoader(ParquetStream(paths, features, 500), device="cuda")
    print({str(batch.ids.device) for batch in loader}, "pinned:", loader.pin_memory)
    print(why_not_fork())
else:
    print("no GPU here: nothing to run")

# %% [markdown]
# ## The bill
# Whole files instead of row groups, on a host with four cards. An epoch is over when the busiest rank is done: 4,600 rows by files; 3,000 is a quarter of the log. Even if nothing hangs
# (each rank pads to the steps of the busiest, say), an eight-hour job becomes one of 12.3 hours:

# %%
bill(
    "whole files, the busiest rank has 4,600 of 12,000 rows",
    "row groups, 3,000 rows on every rank",
    instance="ml.g5.12xlarge",
    fault_seconds=8 * 3600 * max(by_file.values()) / (rows / 4),
    fix_seconds=8 * 3600,
)

# %% [markdown]
# The incident, epoch by epoch, at S4's own minutes. And an hour of preparation: on all of his hosts, where eight cards wait for it, or on a small one before the job:

# %%
MINUTES = {"before": 22, "after four changes": 6, "by the sampler alone, 22 / 8": 22 / 8}
for what, minutes in MINUTES.items():
    paid = billing.cost("ml.g4dn.12xlarge", minutes * 60, 2).usd
    print(f"an epoch {what}: {minutes:g} min, ${paid:.2f}")
for name, count in (("ml.g4dn.12xlarge", 2), ("ml.g4dn.xlarge", 1)):
    print("an hour of preparation:", billing.cost(name, 3600, count).line())

# %% [markdown]
# ## Recap

# %%
recap(
    "11",
    [
        "A reader is a rank and a worker, its piece a row group; count ids, make steps equal.",
        "One prepares under a lock; the folder gets its name last; a key is made of content.",
        "Workers pay when features are slower than training and cores are free. "
        "Fork before threads.",
    ],
)
