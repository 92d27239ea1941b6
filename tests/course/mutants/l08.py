"""Wrong answers of lesson 08: what people write before they get it right."""

from dtlab.course.mutants import edit


def _one_at_a_time(name, rank, ranks, m):
    """A micro-batch comes back before the next one starts."""
    return [f"{rank}{kind}{i}" for i in range(m) for kind in "FB"]


def _by_stage(rank, ranks, m, v):
    """All micro-batches through the first stage, then all through the second: GPipe over v stages."""
    forwards = [f"{c * ranks + rank}F{i}" for c in range(v) for i in range(m)]
    backwards = [f"{c * ranks + rank}B{i}" for c in reversed(range(v)) for i in range(m)]
    return forwards + backwards


def _plain(rank, ranks, m, v):
    """1F1B as if v were 1."""
    ahead = min(m, ranks - 1 - rank)
    pairs = [f"{rank}{kind}{i + ahead * (kind == 'F')}" for i in range(m - ahead) for kind in "FB"]
    return [f"{rank}F{i}" for i in range(ahead)] + pairs + [f"{rank}B{i}" for i in range(m - ahead, m)]


def _no_backward(actions, stages, last, inputs, targets, loss, messages):
    """The first stage only, and forwards alone."""
    return 0.0


MUTANTS = {
    "08-orders": {
        "gpipe with backwards from the last": edit(
            "return forwards + backwards", "return forwards + backwards[::-1]"
        ),
        "always gpipe": edit('if name == "gpipe":', "if True:"),
        "always 1f1b": edit('if name == "gpipe":', "if False:"),
        "one warm-up forward too many": edit("ranks - 1 - rank)", "ranks - rank)"),
        "one warm-up forward too few": edit("ranks - 1 - rank)", "max(0, ranks - 2 - rank))"),
        "warms up by the rank": edit("ranks - 1 - rank)", "rank)"),
        "no warm-up": edit("min(m, ranks - 1 - rank)", "0"),
        "as many on each rank": edit("min(m, ranks - 1 - rank)", "min(m, ranks - 1)"),
        "more warm-up than micro-batches": edit("min(m, ranks - 1 - rank)", "ranks - 1 - rank"),
        "the last backwards forgotten": edit("return actions + backwards[m - warm_up :]", "return actions"),
        "backward first": edit(
            "[forwards[warm_up + i], backwards[i]]", "[backwards[i], forwards[warm_up + i]]"
        ),
        "stage 0 everywhere": edit('f"{rank}F{i}"', 'f"0F{i}"'),
        "one micro-batch at a time": _one_at_a_time,
        "one text": edit("return forwards + backwards", 'return " ".join(forwards + backwards)'),
    },
    "08-interleaved": {
        "backwards from the first stage": edit("(v - 1 - c) * ranks", "c * ranks"),
        "stages side by side": edit('f"{c * ranks + rank}F{i}"', 'f"{rank * v + c}F{i}"'),
        "the warm-up of 1F1B": edit("(v - 1) * ranks + 2 * (ranks - 1 - rank)", "ranks - 1 - rank"),
        "the way there only": edit("2 * (ranks - 1 - rank)", "ranks - 1 - rank"),
        "one forward more": edit("2 * (ranks - 1 - rank))", "2 * (ranks - 1 - rank) + 1)"),
        "rounds of v": edit("divmod(k, ranks)", "divmod(k, v)"),
        "one round of all": edit("divmod(k, ranks)", "divmod(k, m)"),
        "micro-batches of a round only": edit("number * ranks + within", "within"),
        "the last backwards forgotten": edit(
            "return actions + backwards[total - warm_up :]", "return actions"
        ),
        "gpipe over the stages": _by_stage,
        "one stage on a rank": _plain,
    },
    "08-run": {
        "no gradient for what was received": edit("x.requires_grad_(stage > 0)", "x"),
        "nothing comes back": edit(
            "                messages.send_gradient(stage, i, x.grad)", "                pass"
        ),
        "kept for ever": edit("kept.pop((stage, i))", "kept[stage, i]"),
        "graphs of all losses": edit("total += y.item()", "total = total + y"),
        "the last part of the loss": edit("total += y.item()", "total = y.item()"),
        "the first targets": edit("targets[i]", "targets[0][: len(y)]"),
        "a backward of ones": edit(
            "y.backward(None if stage == last else messages.receive_gradient(stage, i, y))",
            "y.backward(None if stage == last else 0 * messages.receive_gradient(stage, i, y) + 1)",
        ),
        "gradients of the last micro-batch": edit(
            "            x, y = kept.pop((stage, i))",
            "            x, y = kept.pop((stage, i))\n            stages[stage].zero_grad()",
        ),
        "every forward twice": edit(
            "            y = stages[stage](", "            stages[stage](x)\n            y = stages[stage]("
        ),
        "divided again": edit("y = loss(y, targets[i])", "y = loss(y, targets[i]) / len(inputs)"),
        "does nothing": _no_backward,
    },
}
