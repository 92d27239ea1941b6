"""Checks of lesson 12: the patches of the five patients, each run in its trainer on real ranks."""

from __future__ import annotations

import math
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import on_ranks, require_function


@exercise(
    "12-skip",
    todo="let all ranks agree on whether the loss is finite, and skip the step on every rank or on none",
    hints=(
        "Rank 1 cannot know that rank 0's loss is not a number. Which call turns two flags into one answer, "
        "the same on both? It must stand outside every condition.",
        "fine = w.all_agree(math.isfinite(loss)); if not fine: return. Then average and update as before.",
    ),
)
def skip(checks: Checks, answer: Any) -> None:
    """Steps that were taken, then the weights of one process that leaves the same batch out."""
    from dtlab.course.clinic import LOSSES

    require_function(answer)
    look = (
        "what stands under an `if` on this rank's own loss is called by one rank and not by the other; "
        "let the ranks agree outside of it, then skip on both or on none."
    )
    ranks = on_ranks(2, _skips, answer, look=look)
    means = [sum(losses) / 2 for losses in zip(*LOSSES, strict=True)]
    for rank, after in enumerate(ranks):
        taken = sum(a != b for a, b in zip([0.0, *after], after, strict=False) if math.isfinite(b))
        checks.integer(
            f"steps taken on rank {rank}, of {len(means)}",
            taken,
            sum(map(math.isfinite, means)),
            look="the step with the bad batch is skipped by all, the other three are taken by all",
        )
    expected, weight = [], 0.0
    for mean in means:
        weight -= 0.5 * mean if math.isfinite(mean) else 0.0
        expected.append(weight)
    for rank, after in enumerate(ranks):
        checks.equal(
            f"weight after each step, rank {rank}",
            after,
            expected,
            tolerance=1e-6,
            look="weight -= 0.5 * gradient / w.size, with the gradient summed over the ranks",
        )


def _skips(answer: Any) -> list[float]:
    from dtlab.course.clinic import skips_a_batch

    return skips_a_batch(answer, patience=3.0)


@exercise(
    "12-vocabulary",
    todo="bring the items of all ranks together before the table is made",
    hints=(
        "The table needs a row for each item of any rank, in the same order everywhere. Which call gives "
        "every rank what each rank has?",
        "everybody = dtlab.gather(set(rows), dst=None) is a list of sets, on every rank; return "
        "sorted(set().union(*everybody)).",
    ),
)
def vocabulary(checks: Checks, answer: Any) -> None:
    """Rows of the table on each rank, then items, start and end."""
    from dtlab.course.clinic import ITEMS

    require_function(answer)
    everything = sorted(set().union(*ITEMS))
    vocabularies = on_ranks(2, _items, answer)
    for rank, items in enumerate(vocabularies):
        look = "items that any rank has, each once; `rows` holds this rank's alone"
        checks.integer(f"items on rank {rank}", len(items), len(everything), look=look)
    for rank, items in enumerate(vocabularies):
        checks.equal(f"items on rank {rank}, sorted", items, everything, look="sort the union")
    for rank, got in enumerate(on_ranks(2, _vocabulary, answer)):
        checks.equal(f"start on rank {rank}", got["start"], [1.0] * len(everything))
        checks.equal(f"table on rank {rank}", got["table"], [0.0] * len(everything))


def _items(answer: Any) -> list[str]:
    """The answer alone: tables of unequal lengths would hang before they could be compared."""
    from dtlab import world
    from dtlab.course.clinic import ITEMS

    with world(timeout=3.0) as w:
        items = answer(ITEMS[w.rank])
        if items is None or items is ...:
            raise NotImplementedError
        return list(items)


def _vocabulary(answer: Any) -> dict[str, Any]:
    from dtlab.course.clinic import own_vocabulary

    return own_vocabulary(answer, patience=3.0)


@exercise(
    "12-heads",
    todo="return a loss that depends on both heads in every step, also when nobody clicked",
    hints=(
        "Why is there an `if`? What is the sum over no rows at all, and does it still depend on the head?",
        "click, buy = model(rows); return click.sum() + buy[clicked].sum(). The sum over no rows is 0, and "
        "its gradient is 0 rather than absent.",
    ),
    references=("dtlab.course.clinic.loss_if_clicked",),
)
def heads(checks: Checks, answer: Any) -> None:
    """Parameters that a loss does not reach, its value, then the weights of DDP on two ranks."""
    from dtlab import launch
    from dtlab.course.clinic import TwoHeads, loss_if_clicked, shopping, unused_head
    from dtlab.parallel.checks import unused_parameters

    require_function(answer)
    batches = [(rank, step) for step in range(3) for rank in range(2)]
    for rank, step in batches:
        model = TwoHeads()
        loss = answer(model, *shopping(rank, step))
        if loss is None or loss is ...:
            raise ToDo("the loss is missing; is a return missing?")
        if not hasattr(loss, "requires_grad") or loss.numel() != 1:
            raise CheckFailed(f"got {loss!r}: give the loss as a tensor with one number.")
        unused = unused_parameters(model, loss)
        if unused or (rank, step) == (1, 1):
            checks.integer(
                f"parameters without a gradient, rank {rank}, step {step}",
                len(unused),
                0,
                look="no `if` around a head: the loss must depend on both",
            )
    checks.equal(
        "loss of each rank and step",
        {f"rank {r}, step {s}": float(answer(TwoHeads(), *shopping(r, s)).detach()) for r, s in batches},
        {
            f"rank {r}, step {s}": float(loss_if_clicked(TwoHeads(), *shopping(r, s)).detach())
            for r, s in batches
        },
        tolerance=1e-6,
        look="all rows for the click head, clicked rows for the buy head, and sums",
    )
    got = launch(unused_head, 2, answer, timeout=90, echo=False)
    for rank in range(2):
        checks.equal(f"weights after DDP, rank {rank}", got[rank], _one_process(), tolerance=1e-5)


def _one_process() -> list[float]:
    import torch

    from dtlab.course.clinic import TwoHeads, loss_if_clicked, shopping

    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss = torch.stack([loss_if_clicked(model, *shopping(rank, step)) for rank in range(2)]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


@exercise(
    "12-groups",
    todo="give the ranks that hold my replica, and the ranks that hold my part",
    hints=(
        "Write the ranks as rows of `parts`: 0 1 / 2 3. Your replica is your row; the ranks with your part "
        "are your column. Which of // and % gives the row?",
        'row = rank // parts; {"model": [parts * row + p for p in range(parts)], '
        '"data": list(range(rank % parts, size, parts))}.',
    ),
    references=("dtlab.course.clinic.pair_by_remainder",),
)
def groups(checks: Checks, answer: Any) -> None:
    """Lengths and members for three shapes of the world, then the outputs of four real ranks."""
    require_function(answer)
    worlds = ((4, 2), (8, 4), (6, 2), (3, 1))
    shapes = [(rank, size, parts) for size, parts in worlds for rank in range(size)]
    given = {one: _two_groups(answer(*one)) for one in shapes}
    for key, number, what in (
        ("model", lambda size, parts: parts, "replica"),
        ("data", lambda size, parts: size // parts, "part"),
    ):
        for size, parts in worlds:
            wrong = [r for r in range(size) if len(given[r, size, parts][key]) != number(size, parts)]
            rank, world = wrong[0] if wrong else 0, f"{size} ranks, {parts} part{'s' if parts > 1 else ''}"
            checks.integer(
                f"{world}: ranks in the {what} of rank {rank}",
                len(given[rank, size, parts][key]),
                number(size, parts),
                look="a replica has one rank for each part; a part has one rank in each replica",
            )
    got, right = {}, {}
    for rank, size, parts in shapes:
        name, first = f"rank {rank} of {size}, {parts} parts", rank - rank % parts
        got[name] = {key: list(ranks) for key, ranks in given[rank, size, parts].items()}
        right[name] = {
            "model": list(range(first, first + parts)),
            "data": list(range(rank % parts, size, parts)),
        }
    checks.equal(
        "members, for every rank of the four worlds",
        got,
        right,
        look="model: neighbours, with me among them; data: every `parts`-th rank, with me among them",
    )
    outputs = on_ranks(4, _pairs, answer)
    checks.equal("outputs on 4 ranks", outputs, [11.0, 11.0, 1100.0, 1100.0])


def _two_groups(given: Any) -> dict[str, Any]:
    if given is None or given is ...:
        raise ToDo("a group is missing; is a return missing?")
    if not isinstance(given, dict) or set(given) != {"model", "data"}:
        raise CheckFailed(f"got {given!r}: give a dict with 'model' and 'data', lists of ranks.")
    if not all(hasattr(ranks, "__len__") for ranks in given.values()):
        raise CheckFailed(f"got {given!r}: give lists of ranks.")
    return given


def _pairs(answer: Any) -> float:
    from dtlab.course.clinic import wrong_pairs

    return wrong_pairs(answer, patience=3.0)


@exercise(
    "12-settings",
    todo="let the launcher's variables win over the file, and list the names where the two disagree",
    hints=(
        "Which of the two knows where this job's rank 0 is: the process that started you a second ago, or a "
        "file? The launcher's names are in clinic.LAUNCHER.",
        "ignored = sorted(name for name in LAUNCHER if name in file and name in environ and file[name] != "
        "environ[name]); return {**environ, **file, **{the launcher's names that environ has}}, ignored.",
    ),
    references=("dtlab.course.clinic.file_wins",),
)
def settings(checks: Checks, answer: Any) -> None:
    """The merged variables of made-up files, then two real hosts, one with an old port in its file."""
    from dtlab.course.clinic import LAUNCHER, old_settings

    require_function(answer)
    environ = {name: str(number) for number, name in enumerate(LAUNCHER)} | {"LR": "0.1", "HOME": "here"}
    file = {"MASTER_PORT": "29500", "WORLD_SIZE": "64", "RANK": environ["RANK"], "LR": "0.01", "EPOCHS": "3"}
    before = (dict(environ), dict(file))
    merged, ignored = _merged(answer(environ, file))
    checks.integer(
        "launcher's variables kept",
        sum(merged.get(name) == environ[name] for name in LAUNCHER),
        len(LAUNCHER),
        look="RANK, WORLD_SIZE, MASTER_PORT and the others are not the file's to set",
    )
    checks.integer("names that were not followed", len(ignored), 2, look="where file and launcher disagree")
    checks.equal("names that were not followed", list(ignored), ["MASTER_PORT", "WORLD_SIZE"], look="sorted")
    checks.equal(
        "all variables", merged, {**file, **environ, "LR": "0.01"}, look="the file's own settings count"
    )
    alone, none = _merged(answer({"HOME": "here"}, file))
    checks.equal("without a launcher the file counts", alone, {"HOME": "here", **file})
    checks.equal("without a launcher nothing is ignored", list(none), [])
    checks.true("the arguments are left alone", (environ, file) == before, look="make a new dict")
    from dtlab import launch

    results = launch(old_settings, 1, answer, nnodes=2, timeout=25, echo=False)
    checks.equal("ranks that met, on each host", [one["ranks"] for one in results], [2, 2])
    checks.equal("learning rate of the file, on each host", [one["lr"] for one in results], ["0.01", "0.01"])


def _merged(given: Any) -> tuple[dict[str, str], Any]:
    if given is None or given is ...:
        raise ToDo("settings gave nothing; is a return missing?")
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], dict)):
        raise CheckFailed(f"got {type(given).__name__}: give (a dict of variables, a list of names).")
    if not isinstance(given[1], list | tuple):
        raise CheckFailed(f"the second value is {given[1]!r}: give a list of names.")
    return given
