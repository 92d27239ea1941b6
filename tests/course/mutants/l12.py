"""Wrong answers of lesson 12: what people write before they get it right."""

import math

import torch.distributed as dist

import dtlab
from dtlab.course import clinic
from dtlab.course.mutants import edit


def _lowest_number(states):
    """The rule of thumb, for one group only: whoever has the lowest number is late."""
    numbers = [max(state.groups.values(), default=0) for state in states]
    waiting = any(state.waits for state in states)
    late = [rank for rank, number in enumerate(numbers) if number < max(numbers)] if waiting else []
    return {"late": late, "why": "late" if late else "nobody waits"}


def _who_does_not_wait(states):
    late = [state.rank for state in states if not state.waits]
    return {"late": late, "why": "late" if late else "all are here"}


def _right(**changes):
    right = {
        "skips_a_batch": ("condition", [0]),
        "own_vocabulary": ("shapes", [0, 1]),
        "unused_head": ("unused parameter", [1]),
        "wrong_pairs": ("wrong group", [1, 2]),
        "old_settings": ("stale address", [1]),
    }
    return right | changes


def _zero_gradient(w, weight, loss, gradient):
    """Nobody waits, but the good gradient of the other rank is halved instead of left out."""
    if not math.isfinite(loss):
        gradient.zero_()
    dist.all_reduce(gradient)
    weight -= 0.5 * gradient / w.size


def _agrees_only_when_bad(w, weight, loss, gradient):
    """The agreement itself stands under the condition."""
    if not math.isfinite(loss):
        w.all_agree(False)
        return
    dist.all_reduce(gradient)
    weight -= 0.5 * gradient / w.size


def _gathers_on_rank_0(rows):
    everybody = dtlab.gather(set(rows))
    return sorted(set().union(*everybody)) if everybody else sorted(set(rows))


def _items_of_rank_0(rows):
    return sorted(dtlab.broadcast(set(rows)))


def _mean_of_clicked(model, rows, clicked):
    """The mean over no rows is not a number."""
    click, buy = model(rows)
    return click.sum() + buy[clicked].mean()


def _all_rows_for_both(model, rows, clicked):
    click, buy = model(rows)
    return click.sum() + buy.sum()


def _detached(model, rows, clicked):
    click, buy = model(rows)
    return click.sum() + buy[clicked].detach().sum()


def _update_in_place(environ, file):
    kept = {name: environ[name] for name in clinic.LAUNCHER if name in environ}
    ignored = sorted(name for name in kept if name in file and file[name] != kept[name])
    environ.update(file)
    environ.update(kept)
    return environ, ignored


MUTANTS = {
    "12-late": {
        "only the lowest number": _lowest_number,
        "who does not wait": _who_does_not_wait,
        "ranks outside the group too": edit("state.members or range(len(states))", "range(len(states))"),
        "the default group for every group": edit("groups.get(state.group, 0)", "groups.get('0', 0)"),
        "the rank's own number, of whatever group": edit(
            "states[rank].groups.get(state.group, 0)", "(states[rank].sequence or 0)"
        ),
        "those that are not further": edit("< state.sequence:", "<= state.sequence:"),
        "the one who waits": edit("late.add(rank)", "late.add(state.rank)"),
        "sizes are not compared": edit('("operation", "sizes")', '("operation",)'),
        "operations are not compared": edit('("operation", "sizes")', '("sizes",)'),
        "groups are not compared": edit('"all are here" if waiting else "nobody waits"', '"nobody waits"'),
    },
    "12-diagnosis": {
        "rank 0 for the vocabulary": _right(own_vocabulary=("shapes", [0])),
        "the rank that waits": _right(skips_a_batch=("condition", [1])),
        "the rank that noticed": _right(unused_head=("unused parameter", [0])),
        "one late rank of two": _right(wrong_pairs=("wrong group", [2])),
        "the ranks that wait for their pair": _right(wrong_pairs=("wrong group", [0, 3])),
        "the rank that hosts the store": _right(old_settings=("stale address", [0])),
        "another cause": _right(own_vocabulary=("condition", [0, 1])),
        "rank 1 everywhere": {name: (cause, [1]) for name, (cause, _) in _right().items()},
    },
    "12-skip": {
        "as it was": edit("w.all_agree(math.isfinite(loss))", "math.isfinite(loss)"),
        "agrees under the condition": _agrees_only_when_bad,
        "a step if any rank's loss is finite": edit(
            "(math.isfinite(loss))", "(math.isfinite(loss), rule='any')"
        ),
        "no check at all": edit("if not w.all_agree(math.isfinite(loss)):", "if False:"),
        "a zero gradient": _zero_gradient,
        "a sum, not a mean": edit("gradient / w.size", "gradient"),
        "not added up": edit("    dist.all_reduce(gradient)\n    weight -= 0.5", "    weight -= 0.5"),
        "every step skipped": edit("if not w.all_agree(math.isfinite(loss)):", "if True:"),
    },
    "12-vocabulary": {
        "its own items": clinic.own_items,
        "gathered on rank 0 only": _gathers_on_rank_0,
        "rank 0's items": _items_of_rank_0,
        "what all ranks have": edit("set().union(*everybody)", "set.intersection(*everybody)"),
        "not sorted": edit(
            "sorted(set().union(*everybody))", "sorted(set().union(*everybody), reverse=True)"
        ),
        "duplicates kept": edit(
            "sorted(set().union(*everybody))", "sorted(i for one in everybody for i in one)"
        ),
    },
    "12-heads": {
        "as it was": clinic.loss_if_clicked,
        "the mean of no rows": _mean_of_clicked,
        "all rows for both heads": _all_rows_for_both,
        "detached": _detached,
        "one head only": edit(" + buy[clicked].sum()", ""),
        "the second head for nothing": edit("buy[clicked].sum()", "0.0 * buy.sum()"),
        "without a gradient": lambda model, rows, clicked: model(rows)[0].sum().detach(),
    },
    "12-groups": {
        "remainder instead of quotient": edit("rank // parts", "rank % parts"),
        "the two swapped": edit('{"model": model, "data": data}', '{"model": data, "data": model}'),
        "four ranks in two pairs only": edit("range(rank % parts, size, parts)", "range(rank % parts, 4, 2)"),
        "the number of replicas as step": edit(
            "range(rank % parts, size, parts)", "range(rank % parts, size, size // parts)"
        ),
        "all ranks share my part": edit("list(range(rank % parts, size, parts))", "list(range(size))"),
    },
    "12-settings": {
        "the file wins": edit("{**environ, **file, **launcher}", "{**environ, **file}"),
        "the environment wins always": edit("{**environ, **file, **launcher}", "{**file, **environ}"),
        "the port alone": edit("for name in clinic.LAUNCHER if", "for name in ('MASTER_PORT',) if"),
        "also those that agree": edit(" and file[name] != launcher[name]", ""),
        "nothing is told": edit("**launcher}, ignored", "**launcher}, []"),
        "changes its argument": _update_in_place,
        "drops the launcher's names from the file, launcher or not": edit(
            "{**environ, **file, **launcher}",
            "{**environ, **{n: v for n, v in file.items() if n not in clinic.LAUNCHER}}",
        ),
    },
}
