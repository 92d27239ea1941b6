"""Wrong answers of lesson 13: what people write before they get it right."""

import contextlib
import os

from dtlab.course.mutants import edit


def _two_names(folder, step, data):
    """Beside it, but under a name that looks like a checkpoint."""
    beside = folder / f"step-{step:06d}.tmp"
    beside.write_bytes(data)
    os.replace(beside, folder / f"step-{step:06d}")


def _straight(folder, step, data):
    with (folder / f"step-{step:06d}").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _errors_swallowed(folder, step, data):
    with contextlib.suppress(OSError):
        _straight(folder, step, data)


def _clears_first(folder, step, data):
    """Room for the new one first: a kill leaves nothing."""
    for old in folder.glob("step-*"):
        old.unlink()
    _good(folder, step, data)


def _good(folder, step, data):
    beside = folder / f".step-{step:06d}.writing"
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, folder / f"step-{step:06d}")


def _renamed_first(folder, step, data):
    beside = folder / f".step-{step:06d}.writing"
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.replace(beside, folder / f"step-{step:06d}")
        os.fsync(file.fileno())


def _leaves_alone(w, run, total, every, ask, told, save):
    while run.steps < total:
        run.step()
        if told():
            save(run)
            return "stopped"
        if run.steps % every == 0:
            save(run)
    return "finished"


def _asks_when_told(w, run, total, every, ask, told, save):
    while run.steps < total:
        run.step()
        stop = told() and w.all_agree(True, rule="any")
        if stop or run.steps % every == 0:
            save(run)
        if stop:
            return "stopped"
    return "finished"


def _saves_twice(w, run, total, every, ask, told, save):
    while run.steps < total:
        run.step()
        if run.steps % every == 0:
            save(run)
        if run.steps % ask == 0 and w.all_agree(told(), rule="any"):
            save(run)
            return "stopped"
    return "finished"


MUTANTS = {
    "13-state": {
        "the weights alone": edit('("model", "optimizer", "schedule", "sampler")', '("model",)'),
        "without the schedule": edit('"schedule", "sampler")', '"sampler")'),
        "without the steps": edit("run.steps, generators = state", "_, generators = state"),
        "goes on changing": edit("return copy.deepcopy(", "return ("),
        "the generator of this rank only": edit(
            "w.gather(torch.get_rng_state(), dst=None)", "[torch.get_rng_state()] * w.size"
        ),
        "rank 0's generator for all": edit("generators[w.rank]", "generators[0]"),
        "no generator": edit("torch.set_rng_state(generators[w.rank])", "pass"),
        "a generator for each old rank only": edit("if len(generators) == w.size:", "if True:"),
        "the old generators for the first ranks": edit(
            "if len(generators) == w.size:", "if w.rank < len(generators):"
        ),
        "gathered on rank 0 alone": edit(", dst=None)", ")"),
        "all new ranks draw alike": edit("1000 * run.steps + w.rank", "1000 * run.steps"),
        "the objects themselves": edit(
            "getattr(run, name).state_dict() for name in parts", "getattr(run, name) for name in parts"
        ),
    },
    "13-save": {
        "straight under its name": _straight,
        "errors are swallowed": _errors_swallowed,
        "a temporary name that counts": _two_names,
        "room first": _clears_first,
        "renamed before it is on the disk": _renamed_first,
        "no fsync": edit("        os.fsync(file.fileno())\n", ""),
        "fsync of what Python still holds": edit("        file.flush()\n", ""),
        "never renamed": edit('    os.replace(beside, folder / f"step-{step:06d}")\n', ""),
        "the oldest": edit("return max(steps), (folder / f\"step-{max(steps):06d}\")",
                           "return min(steps), (folder / f\"step-{min(steps):06d}\")"),
        "the last in the alphabet": edit(
            "    return max(steps), (folder / f\"step-{max(steps):06d}\").read_bytes()",
            "    last = max(folder.glob(\"step-*\"))\n    return int(last.name[5:]), last.read_bytes()",
        ),
        "the one written last": edit(
            "    return max(steps), (folder / f\"step-{max(steps):06d}\").read_bytes()",
            "    last = max(folder.glob(\"step-*\"), key=lambda path: path.stat().st_mtime)\n"
            "    return int(last.name[5:]), last.read_bytes()",
        ),
        "max of nothing": edit("    if not steps:\n        return None\n", ""),
        "an empty folder is step 0": edit("        return None\n", "        return 0, b''\n"),
        "the path instead of the bytes": edit(".read_bytes()", ""),
    },
    "13-stop": {
        "each for itself": _leaves_alone,
        "asks only when told": _asks_when_told,
        "saves twice": _saves_twice,
        "all must be told": edit('rule="any"', 'rule="all"'),
        "everybody must be told": edit(', rule="any"', ""),
        "asks before the step": edit(
            "        run.step()\n        stop = run.steps % ask == 0 and w.all_agree(told(), rule=\"any\")\n",
            "        stop = run.steps % ask == 0 and w.all_agree(told(), rule=\"any\")\n        run.step()\n",
        ),
        "asks in every step": edit("run.steps % ask == 0 and ", ""),
        "never asks": edit('run.steps % ask == 0 and w.all_agree(told(), rule="any")', "False"),
        "stops without a save": edit("if stop or run.steps % every == 0:", "if run.steps % every == 0:"),
        "saves only at the stop": edit("if stop or run.steps % every == 0:", "if stop:"),
        "saves where it was told": edit("if stop or run", "if (stop and told()) or run"),
        "goes on after the save": edit("        if stop:\n            return \"stopped\"\n", ""),
        "says finished": edit('return "stopped"', 'return "finished"'),
        "one step too many": edit("while run.steps < total:", "while run.steps <= total:"),
        "counts its own steps": edit("while run.steps < total:", "for _ in range(total):"),
    },
    "13-interval": {
        "without the 2": edit("math.sqrt(2 * save_seconds", "math.sqrt(save_seconds"),
        "the rate per second": edit("3600 / (interruptions", "1 / (interruptions"),
        "hosts left out": edit("(interruptions_per_hour * hosts)", "interruptions_per_hour"),
        "more hosts, fewer interruptions": edit(
            "3600 / (interruptions_per_hour * hosts)", "3600 * hosts / interruptions_per_hour"
        ),
        "in seconds": edit(" / step_seconds))", "))"),
        "no bound": edit("max(1, round(", "(round("),
        "no step between two saves": edit("max(1, round(", "max(0, round("),
        "rounded down": edit("max(1, round(", "max(1, int("),
        "a whole interval redone": edit("(tau / 2 + restart_seconds)", "(tau + restart_seconds)"),
        "the restart forgotten": edit("(tau / 2 + restart_seconds)", "(tau / 2)"),
        "saving forgotten": edit("return steps, save_seconds / tau + (", "return steps, ("),
        "the interval before it was rounded": edit(
            "    tau = steps * step_seconds\n", "    tau = math.sqrt(2 * save_seconds * mtbf)\n"
        ),
        "every 30 minutes": lambda *job: (round(1800 / job[4]), 0.048),
    },
}  # fmt: skip
