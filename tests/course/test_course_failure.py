"""Failure labs assert that something failed, how, and in time."""

import pytest

from dtlab.course.failure import NothingFailed, OtherFailure, expect_failure, stable


def test_the_expected_failure_is_shown_and_explained(capsys):
    with expect_failure(
        ValueError, match="of 2", within=5, explain={"rank 1 of 2": "who failed", "width 3": "why"}
    ) as failure:
        raise ValueError("rank 1 of 2 failed\nwidth 3")
    assert isinstance(failure.error, ValueError)
    assert failure.message == "rank 1 of 2 failed\nwidth 3"
    assert failure.seconds < 5
    assert capsys.readouterr().out == (
        "It failed, as it should. The message at work would be:\n"
        "  | ValueError: rank 1 of 2 failed\n  | width 3\n\n"
        'Reading it:\n  "rank 1 of 2": who failed\n  "width 3": why\n'
    )


def test_a_block_that_works_fails_the_lab():
    said = "meant to fail with ValueError or KeyError, and nothing failed"
    with pytest.raises(NothingFailed, match=said), expect_failure((ValueError, KeyError)):
        pass


def test_another_error_another_message_or_a_late_one_fails_the_lab():
    with pytest.raises(OtherFailure, match="expected ValueError, got KeyError"), expect_failure(ValueError):
        raise KeyError("x")
    with (
        pytest.raises(OtherFailure, match="does not match 'rank 1'"),
        expect_failure(ValueError, match="rank 1"),
    ):
        raise ValueError("rank 0 failed")
    with pytest.raises(OtherFailure, match="the lab allows 0 s"), expect_failure(ValueError, within=0):
        raise ValueError("late")


def test_an_explanation_of_something_the_message_does_not_say_fails_the_lab():
    lab = expect_failure(ValueError, explain={"timeout": "..."})
    with pytest.raises(OtherFailure, match="explains 'timeout'"), lab:
        raise ValueError("no rank answered")


@pytest.mark.parametrize("said", ["lost its peer", "was stopped"])
def test_of_fragments_that_depend_on_the_order_of_ranks_the_one_that_came_is_explained(said, capsys):
    with expect_failure(ValueError, explain={("lost its peer", "was stopped"): "a consequence"}):
        raise ValueError(f"rank 0 failed\n  rank 1 {said} in all_reduce")
    assert capsys.readouterr().out.endswith(f'Reading it:\n  "{said}": a consequence\n')


def test_an_explanation_of_which_no_fragment_came_fails_the_lab():
    lab = expect_failure(ValueError, explain={("lost its peer", "was stopped"): "a consequence"})
    with pytest.raises(OtherFailure, match="explains 'lost its peer' or 'was stopped', which"), lab:
        raise ValueError("rank 0 failed")


def test_an_interrupt_is_the_readers_own():
    with pytest.raises(KeyboardInterrupt), expect_failure(ValueError):
        raise KeyboardInterrupt


def test_a_failed_lab_shows_one_line_in_a_notebook():
    with pytest.raises(NothingFailed) as caught, expect_failure(ValueError):
        pass
    assert caught.value._render_traceback_() == [f"NothingFailed: {caught.value}"]


def test_long_messages_are_cut_and_what_varies_is_replaced(capsys):
    with expect_failure(ValueError, lines=2):
        raise ValueError("\n".join(f"line {i}" for i in range(9)))
    assert "  | line 1\n  | ... and 7 more lines\n" in capsys.readouterr().out
    varying = 'File "/tmp/ipykernel_12/345.py" at 0x7f00aa11bb22 on 127.0.0.1:4001'
    assert stable(varying) == 'File "<cell>" at 0x... on 127.0.0.1:<port>'
