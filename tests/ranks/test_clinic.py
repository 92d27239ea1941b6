"""The broken trainers of the clinic fail as their lesson says, with every rank's state in the report."""

import pytest

from dtlab import RankError, launch
from dtlab.course import clinic


def test_a_rank_that_left_too_early_reports_its_own_state_and_the_line_of_the_trainer():
    with pytest.raises(
        RankError, match="rank 0 of 2 has left after all_reduce #3, but rank 1 waits"
    ) as failure:
        launch(clinic.skips_a_batch, 2, timeout=60, echo=False)
    states = [report.state for report in failure.value.reports]
    assert [state.groups["0"] for state in states] == [3, 4]
    assert [state.waits for state in states] == [False, True]
    assert any("with world(timeout=patience) as w:" in line for line in failure.value.cell_lines)


def test_a_monitored_barrier_is_named_although_no_flight_recorder_sees_it():
    with pytest.raises(RankError, match="rank 0 waits in monitored_barrier; rank 0 gave up") as failure:
        launch(clinic.stuck_reader, 2, 1.0, timeout=60, echo=False)
    assert failure.value.late == (1,)
    assert "__getitem__" in str(failure.value)


def test_a_broadcast_of_unequal_lengths_gives_a_wrong_value_without_an_error():
    starts = [one["start"] for one in launch(clinic.own_vocabulary, 2, steps=0, timeout=60, echo=False)]
    assert starts == [[1.0, 1.0], [1.0, 1.0, 2.0]]


def test_the_wrong_group_that_holds_the_rank_gives_a_wrong_value_without_an_error():
    def same_half(rank, size, parts):
        return {"model": list(range(rank % parts, size, parts))}

    assert launch(clinic.wrong_pairs, 4, same_half, timeout=60, echo=False) == [101.0, 1010.0, 101.0, 1010.0]
