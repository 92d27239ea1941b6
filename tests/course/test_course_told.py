"""What a refused answer is told: its own prints, its own line, and where to look for this very mistake."""

import pytest

from dtlab import launch
from dtlab.course import CheckFailed, check, exercise
from dtlab.course.checks import _EXERCISES, require_float
from dtlab.course.lessons import on_ranks
from dtlab.course.mutants import answer_of, edit
from dtlab.course.prints import MOST_LINES
from dtlab.course.source import lessons


def refusal(name, old, new):
    (lesson,) = lessons([name[:2]])
    arguments, named = answer_of(lesson, name, edit(old, new))
    with pytest.raises(CheckFailed) as caught:
        check(name, *arguments, **named)
    return str(caught.value)


@pytest.fixture
def two_ranks():
    @exercise("99-prints", todo="return 1", hints=("a", "b"))
    def _check(checks, answer):
        checks.integer("sum", sum(launch(answer, 2, timeout=30, echo=False)), 2)

    yield
    _EXERCISES.pop("99-prints")


def talks():
    import os

    for line in range(MOST_LINES + 5):
        print(f"rank {os.environ['RANK']} line {line}")
    return 0


@pytest.mark.usefixtures("two_ranks")
def test_what_rank_0_printed_is_shown_when_the_check_fails():
    with pytest.raises(CheckFailed) as caught:
        check("99-prints", talks)
    said = str(caught.value)
    assert said.startswith("sum: got 0, expected 2.\nyour prints, rank 0:\n  rank 0 line 0\n")
    assert f"  rank 0 line {MOST_LINES - 1}\n  ... and 5 more lines" in said
    assert "rank 1" not in said


@pytest.mark.usefixtures("two_ranks")
def test_prints_are_not_shown_when_it_passes_or_nothing_was_printed(capsys):
    assert check("99-prints", lambda: print("noise") or 1)
    assert "noise" not in capsys.readouterr().out
    with pytest.raises(CheckFailed) as caught:
        check("99-prints", lambda: 0)
    assert "prints" not in str(caught.value)


@pytest.mark.usefixtures("two_ranks")
def test_an_exception_on_a_rank_shows_its_line_and_no_word_on_restarts():
    def broken():
        print("before")
        return {}["rank"]

    with pytest.raises(CheckFailed) as caught:
        check("99-prints", broken)
    said = str(caught.value)
    assert said.startswith("rank 0 of 2 failed: KeyError: 'rank'\n")
    assert "-->" in said
    assert (
        "Where to look: the line marked -->: rank 0 did not get past it.\nyour prints, rank 0:\n  before"
        in said
    )
    assert "restart" not in said


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("01-bound", "last[1:]", "last", "rule 2: leave out step 0"),
        (
            "01-bound",
            "statistics.median_low(",
            "statistics.mean(",
            "rule 3: a mean lets one slow step decide",
        ),
        ("01-bound", 'min(step, key=lambda one: one["sync"])', "step[0]", "you took rank 0 in every step"),
        ("01-bound", "min(step", "max(step", "you took the one with the most"),
        ("01-speedup", "return n *", "return", "2 ranks: speed-up: got 0.5116"),
        ("02-ring", "        receiving.wait()\n", "", "every isend and every irecv needs its .wait()"),
        ("02-ring", "mine += buffer", "chunks[(rank - step - 1) % size] = mine + buffer", "copy_"),
        ("03-buckets", "gradient.nbytes", "gradient.numel()", "bucket_bytes counts bytes"),
        ("03-buckets", "gradient.nbytes >", "gradient.nbytes >=", "exactly 120 bytes is full, not too full"),
        ("03-accumulate", "number == count", "number == 1", "synchronises must be the last one"),
        ("03-accumulate", "y) / count", "y)", "3 times too large: divide each loss"),
        (
            "03-accumulate",
            "        with nullcontext()",
            "        model.zero_grad()\n        with nullcontext()",
            "only the last micro-batch is in it",
        ),
        ("03-accumulate", "return total", "return torch.tensor(total)", "expected a float, got Tensor"),
        ("06-scale", "(loss * scale).backward()", "loss.backward()", "nothing overflowed: call backward"),
        ("06-scale", "            gradient /= scale", "            pass", "never divided by the scale"),
        ("06-scale", "    optimizer.zero_grad()\n", "", "gradients that stay make the next step wrong too"),
        (
            "06-accumulate",
            "model.no_sync()",
            "nullcontext()",
            "only the last backward of each may synchronise",
        ),
        ("06-accumulate", "ranks / total", "1 / total", "half of what it should be: DDP averages"),
        ("06-recompute", "        torch.set_rng_state(ctx.state)\n", "", "without dropout it is right"),
        ("08-orders", "ranks - 1 - rank)", "ranks - rank)", "one forward too many before the first backward"),
        ("08-orders", "ranks - 1 - rank)", "rank)", "Early ranks run the most forwards ahead"),
        ("08-interleaved", "(v - 1 - c) * ranks", "c * ranks", "backwards begin with the last stage"),
        ("08-interleaved", "number * ranks + within", "within", "passes each of the rank's stages once"),
        ("08-run", "kept.pop((stage, i))", "kept[stage, i]", "kept.pop, not kept[...]"),
        ("08-run", "loss(y, targets[i])", "loss(y, targets[i]) / 4", "0.25 times what it should be"),
        (
            "11-groups",
            "return deal(mine, workers)[worker]",
            "return mine",
            "every worker of a rank got the same",
        ),
        (
            "11-prepare",
            "            return False\n        beside",
            "            pass\n        beside",
            "look again",
        ),
        (
            "09-block",
            "return of_x, reduce(of_whole, len(shard)), None, None",
            "return of_x, of_whole, None, None",
            "got [43] but expected",
        ),
        (
            "09-block",
            "return of_x, reduce(of_whole, len(shard)), None, None",
            "return of_x, of_whole, None, None",
            "what the answer returns; the code above, which is not yours, could not work with it",
        ),
        ("13-stop", "run.step()", "pass", "and step 0 of 40: run.step() makes one"),
        ("11-cache", "repr(list(columns))", "repr(sorted(columns))", "that of the array's columns"),
    ],
)
def test_a_usual_mistake_is_told_where_to_look(name, old, new, said):
    assert said in refusal(name, old, new)


def test_an_exception_in_this_process_names_the_readers_line():
    said = refusal("01-memory", "weights = 4", "wights = 4")
    assert said.startswith("your answer raised NameError: name 'weights' is not defined\n  line ")
    assert "Where to look: that line" in said


def test_only_plain_numbers_are_floats():
    import numpy as np
    import torch

    require_float("loss", 1)
    require_float("loss", np.float32(1))
    for wrong in (torch.tensor(1.0), "1", True, [1.0]):
        with pytest.raises(CheckFailed, match="expected a float"):
            require_float("loss", wrong)


LOOP = "    for parameter in model.parameters():\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # Where each rank of an endless loop is caught is chance: at the same line, or one in the all-reduce.
        ("if parameter.grad is not None:", "while True:", ("loop around that line",)),
        (
            LOOP,
            f"    while os.environ['RANK'] == '1':\n        pass\n{LOOP}",
            (": rank 1 is still at line", "waits for it in all_reduce", "What ends it"),
        ),
    ],
    ids=["on every rank", "on one rank"],
)
def test_an_endless_loop_is_named_with_the_rank_that_waits_for_it(old, new, said, monkeypatch):
    """Within the seconds that ranks need to come to the loop: the reader's limit where that is too short."""
    for limit in (1.5, on_ranks.LIMIT):
        monkeypatch.setattr(on_ranks, "LIMIT", limit)
        told = refusal("03-average", old, new)
        if all(part in told for part in said):
            break
    assert f"your function did not end within {limit:g} s" in told
    for part in said:
        assert part in told
