"""`check` and `hint`: to do, wrong, right; integers first; copied answers."""

import functools
import json
import math
import types

import numpy as np
import pytest
import torch

from dtlab import launch, world
from dtlab.course import CheckFailed, Checks, check, exercise, hint, solved
from dtlab.course.compare import describe, difference
from dtlab.errors import UserError


@exercise("99-square", todo="return n squared", hints=("multiply", "return n * n"), references=("math.pow",))
def _check_square(checks, answer, numbers=(2, 3)):
    for n in numbers:
        checks.integer(f"square of {n}", answer(n), n * n, look="multiply n by itself")
    checks.equal("list", [answer(n) for n in numbers], [n * n for n in numbers])


@exercise("99-value", todo="give the value", hints=("a", "b"))
def _check_value(checks, answer):
    checks.equal("value", answer, {"sum": 6.0, "ranks": [1, 2]}, tolerance=1e-6, look="the sum")


@exercise("99-lax", todo="anything", hints=("a", "b"))
def _check_lax(checks, answer):
    pass


@exercise("99-order", todo="anything", hints=("a", "b"))
def _check_order(checks, answer):
    checks.equal("value", answer, 1)
    checks.integer("count", answer, 1)


def test_a_right_answer_is_told_recorded_and_remembered(capsys, own_progress):
    assert check("99-square", lambda n: n * n, (2, 5))
    assert capsys.readouterr().out == "Right: 99-square.\n  square of 2: 4\n  square of 5: 25\n  list\n"
    assert solved("99-square")
    assert "99-square" in json.loads(own_progress.read_text())["solved"]


def unsolved(n):
    raise NotImplementedError("to do")


@pytest.mark.parametrize(
    "answer",
    [None, ..., unsolved, lambda n: ..., lambda n: None],
    ids=["None", "dots", "stub", "returns dots", "returns None"],
)
def test_an_unsolved_answer_is_to_do_and_no_traceback(answer, capsys):
    check("99-square", lambda n: n * n)
    capsys.readouterr()
    assert not check("99-square", answer)
    out = capsys.readouterr().out
    assert out.startswith("to do: return n squared")
    assert out.endswith("Help: hint('99-square')\n")
    assert not solved("99-square")


@pytest.mark.parametrize(
    "answer", [{"sum": ..., "ranks": ...}, {"sum": 6.0, "ranks": ...}, {"sum": None}, (..., 2)]
)
def test_an_answer_with_stubs_inside_is_to_do(answer, capsys):
    assert not check("99-value", answer)
    assert "to do" in capsys.readouterr().out


def test_a_to_do_reported_by_a_rank_is_to_do(capsys):
    class FromRank(RuntimeError):
        exception_type = "NotImplementedError"

    def answer(n):
        raise FromRank("rank 1 of 2 failed: NotImplementedError: to do")

    assert not check("99-square", answer)


def test_in_strict_mode_a_to_do_fails(monkeypatch):
    monkeypatch.setenv("DTLAB_COURSE_STRICT", "1")
    with pytest.raises(CheckFailed, match="to do: return n squared"):
        check("99-square", unsolved)


def test_a_wrong_answer_shows_only_what_is_wrong_and_where_to_look():
    with pytest.raises(CheckFailed) as caught:
        check("99-square", lambda n: 2 * n)
    assert caught.value._render_traceback_() == [
        "Not yet. square of 3: got 6, expected 9.\nWhere to look: multiply n by itself"
    ]
    assert not solved("99-square")


def test_an_error_in_the_answer_is_told_without_its_frames():
    with pytest.raises(CheckFailed, match=r"raised ZeroDivisionError: .*by zero") as caught:
        check("99-square", lambda n: n // 0)
    assert len(caught.value._render_traceback_()) == 1


@pytest.mark.parametrize("value", [True, 4.0, "4", [4]])
def test_a_count_must_be_an_integer(value):
    with pytest.raises(CheckFailed, match="expected the integer 4"):
        Checks().integer("count", value, 4)


def test_numpy_and_torch_integers_are_integers():
    checks = Checks()
    checks.integer("numpy", np.int64(4), 4)
    checks.integer("torch", torch.tensor(4), 4)
    assert len(checks.passed) == 2


def test_a_check_that_compares_nothing_or_counts_after_values_is_a_defect():
    with pytest.raises(RuntimeError, match="compared nothing"):
        check("99-lax", 1)
    with pytest.raises(CheckFailed, match="integers come before values"):
        check("99-order", 1)


def imported_inside(n):
    from math import pow

    return int(pow(n, 2))


def helper(n):
    return math.pow(n, 2)


@pytest.mark.parametrize(
    "answer",
    [
        math.pow,
        functools.partial(math.pow, 2),
        imported_inside,
        lambda n: math.pow(n, 2),
        lambda n: helper(n),
    ],
    ids=["itself", "partial", "import inside", "through the module", "through a helper"],
)
def test_an_answer_that_is_or_calls_the_reference_is_refused(answer):
    with pytest.raises(CheckFailed, match=r"math\.pow itself, or calls it"):
        check("99-square", answer)


def test_using_another_function_of_the_same_module_is_allowed(capsys):
    assert check("99-square", lambda n: math.prod((n, n)))


@pytest.mark.parametrize(
    ("got", "expected", "said"),
    [
        (torch.zeros(3), torch.zeros(2), "got shape (3,), expected (2,)"),
        (
            torch.tensor([1.0, 2.0]),
            torch.tensor([1.0, 3.0]),
            "1 of 2 numbers differ, first at [1]: got 2, expected 3",
        ),
        (torch.tensor([math.nan]), torch.tensor([1.0]), "got nan, expected 1"),
        ([1, 2], [1, 2, 3], "got 2 values, expected 3"),
        ({"a": 1}, {"a": 1, "b": 2}, "keys differ: missing b"),
        ({"a": [1, 5]}, {"a": [1, 2]}, "at ['a']: at [1]: got 5, expected 2"),
        (True, 1, "expected the number 1, got True"),
        ("6", 6.0, "expected the number 6, got '6'"),
        ("ring", "tree", "got 'ring', expected 'tree'"),
        (1, True, "got 1, expected True"),
        (object(), [1], "expected 1 values, got a object"),
    ],
)
def test_differences_are_told_in_one_line(got, expected, said):
    assert said in difference(got, expected, 1e-6)


def test_equal_within_tolerance_only():
    assert difference(1.0 + 1e-9, 1.0, 1e-6) == ""
    assert difference(1.0 + 1e-9, 1.0) != ""
    assert difference(torch.tensor([1.0, 2.0]), [1.0, 2.0], 1e-6) == ""


def test_hints_grow_and_a_third_does_not_exist(capsys):
    hint("99-square")
    hint("99-square", 2)
    assert capsys.readouterr().out == (
        "Hint 1 of 2: multiply\nStill stuck? hint('99-square', 2)\nHint 2 of 2: return n * n\n"
    )
    with pytest.raises(UserError, match="hint level 3"):
        hint("99-square", 3)


def test_an_unknown_exercise_names_near_ones():
    with pytest.raises(UserError, match="exercise '99-sqare' is unknown; known here: 99-square"):
        check("99-sqare", 1)


@pytest.mark.parametrize(("given", "wrong"), [((), "missing"), ((1, 2, 3), "too many")])
def test_a_check_with_too_few_or_too_many_arguments_says_what_it_takes(given, wrong):
    with pytest.raises(UserError, match=f"03-average', ...[)]: {wrong}.*it takes your answer, start"):
        check("03-average", lambda: None, *given)


def test_a_verdict_shows_nothing_as_the_last_line_of_a_cell():
    verdict = check("99-square", lambda n: n * n)
    assert verdict == True  # noqa: E712 - a verdict compares like a bool
    assert isinstance(verdict._ipython_display_, types.MethodType)


def test_a_stub_and_a_wrong_answer_on_real_ranks(capsys):
    @exercise("99-ranks", todo="return the rank", hints=("a", "b"))
    def ranks(checks, answer):
        results = launch(answer, 2, timeout=60, echo=False)
        checks.integer("sum of the ranks", sum(results), 1)

    def joined_rank():
        with world() as w:
            return w.rank

    def stub():
        raise NotImplementedError("to do")

    def broken():
        return {}["rank"]

    assert not check("99-ranks", stub)
    with pytest.raises(CheckFailed, match=r"rank \d of 2 failed: KeyError"):
        check("99-ranks", broken)
    with pytest.raises(CheckFailed, match="sum of the ranks: got 0, expected 1"):
        check("99-ranks", lambda: 0)
    assert check("99-ranks", joined_rank)


def test_an_answer_that_hands_back_the_environment_does_not_show_it(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "secret-of-mine")
    with pytest.raises(CheckFailed) as refused:
        check("02-who", lambda environ: dict(environ))
    message = str(refused.value)
    assert message.startswith("who_am_i gave a dict with the keys '")
    assert "secret-of-mine" not in message
    assert len(message.splitlines()[0]) < 250


def test_a_long_dict_is_described_by_five_keys_in_at_most_120_characters():
    long = {f"{'K' * 40}{number}": "secret" * 10 for number in range(99)}
    assert describe(long).startswith("a dict with the keys 'KKKKKKKKKKK..., ")
    assert describe(long).endswith(" and 94 more")
    assert len(describe(long)) <= 120
    assert describe({"rank": 0}) == "{'rank': 0}"
