"""Wrong answers of lesson 11: what people write before they get it right."""

import hashlib
import os
import shutil
import time
import uuid

import numpy as np

from dtlab.course.mutants import edit


def _every_nth(group_rows, rank, size, worker=0, workers=1):
    """Each group once, and nobody counts rows."""
    return list(range(len(group_rows)))[rank * workers + worker :: size * workers]


def _blocks(group_rows, rank, size, worker=0, workers=1):
    """Consecutive groups for each reader."""
    parts = np.array_split(np.arange(len(group_rows)), size * workers)
    return parts[rank * workers + worker].tolist()


def _rest_dropped(group_rows, rank, size, worker=0, workers=1):
    each = len(group_rows) // (size * workers)
    first = (rank * workers + worker) * each
    return list(range(first, first + each))


def _shuffled_for_itself(group_rows, rank, size, worker=0, workers=1):
    order = np.random.default_rng().permutation(len(group_rows))
    return order[rank * workers + worker :: size * workers].tolist()


def _built_in_place(folder, build, lock):
    if folder.exists():
        return False
    with lock():
        if folder.exists():
            return False
        folder.mkdir()
        build(folder)
    return True


def _only_the_first_rank(folder, build, lock):
    """Rank 0 builds, the others do not wait."""
    if os.environ.get("RANK", "0") != "0" or folder.exists():
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


def _another_place_each(folder, build, lock):
    """Nobody's work is lost, and everybody works."""
    beside = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    beside.mkdir()
    build(beside)
    try:
        os.rename(beside, folder)
    except OSError:
        return False
    return True


def _marked_as_done(folder, build, lock):
    """A mark in the folder instead of a rename: who looks at the folder sees it too early."""
    if (folder / "done").exists():
        return False
    with lock():
        if (folder / "done").exists():
            return False
        folder.mkdir(exist_ok=True)
        build(folder)
        (folder / "done").touch()
    return True


def _by_date(folder, paths, columns, make, max_age=None):
    """A key of names, sizes and dates, as make(1) would do it."""
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime) for path in paths]
    entry = folder / (hashlib.md5(repr((stats, columns)).encode()).hexdigest() + ".npy")
    if not entry.exists() or (max_age and time.time() - entry.stat().st_mtime > max_age):
        with (folder / "beside").open("wb") as file:
            np.save(file, make())
        os.replace(folder / "beside", entry)
    return np.load(entry, mmap_mode="r")


def _kept_in_memory(folder, paths, columns, make, max_age=None, memory={}):  # noqa: B006
    key = (tuple(path.read_bytes() for path in paths), tuple(columns))
    if key not in memory:
        memory[key] = make()
    return memory[key]


MUTANTS = {
    "11-groups": {
        "every n-th group": _every_nth,
        "consecutive groups": _blocks,
        "what does not divide is dropped": _rest_dropped,
        "dealt to all workers of all ranks at once": edit(
            "mine = deal(range(len(group_rows)), size)[rank]\n    return deal(mine, workers)[worker]",
            "return deal(range(len(group_rows)), size * workers)[rank * workers + worker]",
        ),
        "shuffled by each process for itself": _shuffled_for_itself,
        "workers forgotten": edit("return deal(mine, workers)[worker]", "return mine"),
        "ranks forgotten": edit("deal(range(len(group_rows)), size)[rank]", "range(len(group_rows))"),
        "groups counted instead of rows": edit("rows[least] += group_rows[group]", "rows[least] += 1"),
        "to the one with the most": edit("rows.index(min(rows))", "rows.index(max(rows))"),
        "rows instead of groups": edit(
            "dealt[least].append(group)", "dealt[least].append(group_rows[group])"
        ),
        "rank and worker swapped": edit(
            "return deal(mine, workers)[worker]", "return deal(mine, size)[worker]"
        ),
        "the last group left out": edit("range(len(group_rows))", "range(len(group_rows) - 1)"),
        "all that is left to rank 0": edit("least = rows.index(min(rows))", "least = 0"),
        "no group for whoever comes": lambda *a, **k: [],
    },
    "11-prepare": {
        "no second look": edit(
            "    with lock():\n        if folder.exists():\n            return False\n", "    with lock():\n"
        ),
        "the lock itself for its context": edit("    with lock():\n", "    with lock:\n"),
        "no lock": edit("    with lock():\n", "    if True:\n"),
        "in its final place": _built_in_place,
        "a mark instead of a rename": _marked_as_done,
        "rank 0 builds and nobody waits": _only_the_first_rank,
        "everybody builds, the first rename wins": _another_place_each,
        "built before the lock": edit(
            "    with lock():\n        if folder.exists():\n            return False\n        beside",
            "    if True:\n        beside",
        ),
        "renamed behind the lock": edit(
            "        os.rename(beside, folder)\n    return True",
            "    os.rename(beside, folder)\n    return True",
        ),
        "what a killed one left stays": edit(
            "        shutil.rmtree(beside, ignore_errors=True)\n        beside.mkdir()",
            "        beside.mkdir(exist_ok=True)",
        ),
        "what a killed one left stops it": edit("        shutil.rmtree(beside, ignore_errors=True)\n", ""),
        "never renamed": edit("        os.rename(beside, folder)\n", ""),
        "errors swallowed": edit(
            "        build(beside)\n",
            "        try:\n            build(beside)\n        except OSError:\n            pass\n",
        ),
        "says nothing of who built": edit("    return True", "    return False"),
        "always says that it built": edit("return False", "return True"),
        "somewhere else": edit(
            "        beside.mkdir()",
            '        beside = folder.parent / "tmp" / folder.name\n        beside.mkdir(parents=True)',
        ),
        "does nothing": lambda folder, build, lock: False,
    },
    "11-cache": {
        "the key is the name": edit("hashlib.blake2b(path.read_bytes()).digest()", "path.name.encode()"),
        "the key is names, sizes and dates": _by_date,
        "the columns are not in the key": edit("repr(list(columns)).encode(), ", "b'', "),
        "the order of the columns is not in the key": edit("repr(list(columns))", "repr(sorted(columns))"),
        "the order of the files is not in the key": edit("for path in paths:", "for path in sorted(paths):"),
        "only the first file": edit("for path in paths:", "for path in paths[:1]:"),
        "the date in the key": edit(
            "hashlib.blake2b(path.read_bytes()).digest()",
            "path.read_bytes() + str(path.stat().st_mtime).encode()",
        ),
        "no limit of age": edit("if old or not", "if not"),
        "always made": edit("if old or not entry.exists():", "if True:"),
        "the younger are made anew": edit("and age > max_age", "and age < max_age"),
        "hours for seconds": edit("> max_age", "> max_age * 3600"),
        "the age of the log": edit("entry.stat().st_mtime", "paths[0].stat().st_mtime"),
        "written in its place": edit(
            '            with beside.open("wb") as file:\n'
            "                np.save(file, make())\n"
            "            os.replace(beside, entry)\n",
            "            np.save(entry, make())\n",
        ),
        "a key of hash()": edit("{digest.hexdigest()}", "{hash(digest.hexdigest())}"),
        "the names in the key": edit(
            "hashlib.blake2b(path.read_bytes()).digest()", "path.name.encode() + path.read_bytes()"
        ),
        "the folders in the key": edit(
            "hashlib.blake2b(path.read_bytes()).digest()", "str(path).encode() + path.read_bytes()"
        ),
        "contents joined": edit("hashlib.blake2b(path.read_bytes()).digest()", "path.read_bytes()"),
        "columns joined": edit("repr(list(columns)).encode()", "''.join(columns).encode()"),
        "a failed write leaves its file": edit("beside.unlink(missing_ok=True)", "pass"),
        "the old entry goes first": edit(
            "        try:\n", "        entry.unlink(missing_ok=True)\n        try:\n"
        ),
        "not mapped": edit(', mmap_mode="r")', ")"),
        "made, and not from the entry": edit(
            "                np.save(file, make())",
            "                rows = make()\n                np.save(file, rows)\n            return rows",
        ),
        "kept in memory": _kept_in_memory,
        "one entry for all": edit("{digest.hexdigest()}", "entry"),
        "nothing kept": lambda folder, paths, columns, make, max_age=None: make(),
    },
}
