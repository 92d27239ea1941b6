"""Pipeline schedules as data: legal, with the bubble and the live activations of the closed forms."""

import pytest

from dtlab.cost.pipeline import bubble_share, live_activations
from dtlab.errors import UserError
from dtlab.figures.pipeline import pipeline_figure, schedule_figure
from dtlab.figures.style import alt_text, png
from dtlab.parallel.actions import Action, Kind, Schedule
from dtlab.parallel.legality import check_schedule
from dtlab.parallel.schedules import SCHEDULES, build_schedule
from dtlab.parallel.simulate import PipelineTimeline, Span, mean_durations, replay, simulate

RANKS = (1, 2, 3, 4)
MICRO_BATCHES = range(1, 17)
DURATIONS = ((1, 1), (1, 2), (2.5, 3))


def fits_rounds(m: int, p: int) -> bool:
    return m % max(1, m // p) == 0


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_legal_and_runs_each_micro_batch_once_through_each_stage(name, p):
    for m in MICRO_BATCHES:
        if name in ("interleaved", "zero_bubble") and not fits_rounds(m, p):
            continue
        schedule = check_schedule(build_schedule(name, p, m))
        forwards = [a[0::2] for actions in schedule.ranks for a in actions if a.kind is Kind.FORWARD]
        assert sorted(forwards) == [(s, i) for s in range(schedule.num_stages) for i in range(m)]


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_bubble_of_gpipe_and_1f1b_is_p_minus_1_over_m_plus_p_minus_1(name, p):
    for m in range(p, 17):
        for forward, backward in DURATIONS:
            share = simulate(build_schedule(name, p, m), forward, backward).bubble_share
            assert share == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
            assert share == pytest.approx(bubble_share(p, m), abs=1e-12)


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("v", [2, 3])
def test_the_interleaved_bubble_is_v_times_shorter_for_m_that_its_rounds_divide(p, v):
    fitting = [m for m in range(p, 17) if fits_rounds(m, p)]
    assert len(fitting) > 5
    for m in fitting:
        for forward, backward in DURATIONS:
            share = simulate(build_schedule("interleaved", p, m, v), forward, backward).bubble_share
            assert share == pytest.approx((p - 1) / (v * m + p - 1), abs=1e-12)
            assert share == pytest.approx(bubble_share(p, m, v), abs=1e-12)


@pytest.mark.parametrize("name", ["interleaved", "zero_bubble"])
@pytest.mark.parametrize(("m", "p"), [(7, 2), (9, 4), (11, 4), (13, 4)])
def test_micro_batches_that_the_rounds_do_not_divide_are_refused_by_name(name, m, p):
    with pytest.raises(
        UserError, match=rf"num_micro_batches = {m} with {p} ranks.*max\(1, {m} // {p}\)"
    ) as e:
        build_schedule(name, p, m)
    assert name.replace("_", "-") in str(e.value)  # what was asked for
    with pytest.raises(UserError, match=f"num_micro_batches = {m} with {p} ranks"):
        bubble_share(p, m, 2)


@pytest.mark.parametrize(("m", "p"), [(8, 4), (10, 4), (3, 4)])
def test_relaxed_rounds_give_an_interleaved_order_also_below_the_number_of_ranks(m, p):
    check_schedule(build_schedule("interleaved", p, m, 2))


def test_the_interleaved_formula_is_refused_below_the_number_of_ranks_where_it_is_wrong():
    assert simulate(build_schedule("interleaved", 4, 3)).bubble_share != pytest.approx(3 / 9)
    with pytest.raises(UserError, match="num_micro_batches = 3 is below the 4 ranks"):
        bubble_share(4, 3, 2)


@pytest.mark.parametrize(("p", "m", "share"), [(4, 2, 0.6), (4, 8, 3 / 11), (1, 5, 0.0)])
def test_the_bubble_formula_holds_for_fewer_micro_batches_than_ranks(p, m, share):
    assert bubble_share(p, m) == pytest.approx(share)
    assert simulate(build_schedule("1f1b", p, m)).bubble_share == pytest.approx(share)


@pytest.mark.parametrize(("p", "m", "said"), [(4, 0, "num_micro_batches = 0"), (0, 4, "num_ranks = 0")])
def test_a_pipeline_without_ranks_or_micro_batches_is_refused(p, m, said):
    for build in (lambda: bubble_share(p, m), lambda: build_schedule("1f1b", p, m)):
        with pytest.raises(ValueError, match=said):
            build()


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_live_activations_are_those_of_the_closed_form(name, p):
    for m in MICRO_BATCHES:
        if name in ("interleaved", "zero_bubble") and not fits_rounds(m, p):
            continue
        peaks = simulate(build_schedule(name, p, m)).peak_live
        assert peaks == [live_activations(name, p, m, rank) for rank in range(p)]
    assert simulate(build_schedule("gpipe", p, 16)).peak_live[0] == 16
    assert simulate(build_schedule("1f1b", p, 16)).peak_live[0] == min(16, p)


@pytest.mark.parametrize("p", [2, 4])
def test_cutting_the_backward_in_two_shortens_the_bubble_of_1f1b_without_more_activations(p):
    one, cut, v = (simulate(build_schedule(name, p, 8), 1, 2) for name in ("1f1b", "zero_bubble", "zbv"))
    assert v.bubble_share < cut.bubble_share < one.bubble_share
    assert max(cut.peak_live) == max(one.peak_live)


def test_a_v_placement_has_first_and_last_stage_on_one_rank():
    schedule = build_schedule("zbv", 3, 5)
    assert [schedule.stages_of(rank) for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]
    assert build_schedule("interleaved", 3, 3).stages_of(1) == [1, 4]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([["0F0", "0B0"], ["1B0", "1F0"]], "rank 1 runs 1B0 before 1F0"),
        ([["0F0"], ["1F0", "1B0"]], "rank 0 never runs a backward of 0F0"),
        ([["0B0"], ["1F0", "1B0"]], "rank 0 never runs 0F0"),
        ([["0F0", "0B0", "0B0"], ["1F0", "1B0"]], "rank 0 runs 0B0 twice"),
        ([["0F0", "0I0"], ["1F0", "1B0"]], "rank 0 runs 0I0 but never 0W0"),
        ([["0F0", "0W0", "0I0"], ["1F0", "1B0"]], "rank 0 runs 0W0 before 0I0"),
        ([["0F0", "0B0", "0W0"], ["1F0", "1B0"]], "rank 0 runs 0B0 and 0W0"),
        ([["0F0", "1F0", "0B0"], ["1B0"]], "rank 0 runs 1F0, but stage 1 is on rank 1"),
        ([["0F0", "2F0"], []], "rank 0 runs 2F0, but there are 2 stages"),
        ([["0F0", "0B0", "0F1"], ["1F0", "1B0"]], "rank 0 runs 0F1, but there are 1 micro-batches"),
    ],
)
def test_an_illegal_schedule_is_refused_with_rank_and_action(ranks, said):
    with pytest.raises(UserError, match=said):
        check_schedule(Schedule.of("mine", 1, ranks))


def test_ranks_that_wait_for_each_other_are_all_named():
    ranks = [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]
    with pytest.raises(
        UserError, match=r"wait for ever: rank 0 at 0B0 for 1B0 or 1I0; rank 1 at 1F1 for 0F1"
    ):
        simulate(Schedule.of("mine", 2, ranks))


def test_an_uneven_split_and_slow_messages_lengthen_the_bubble():
    schedule = build_schedule("1f1b", 2, 4)
    even = simulate(schedule, 1, 2)
    assert simulate(schedule, [1, 2], [2, 4]).bubble_share > even.bubble_share
    slow = simulate(schedule, 1, 2, transfer=0.5)
    assert slow.makespan > even.makespan
    assert slow.busy == even.busy == [12, 12]
    with pytest.raises(UserError, match="forward: 3 durations for 2 stages"):
        simulate(schedule, [1, 1, 1])
    with pytest.raises(UserError, match="backward_input = 3"):
        simulate(schedule, backward_input=3)


@pytest.mark.parametrize(
    ("name", "v", "said"),
    [("1f1b", 2, "1f1b has 1"), ("zbv", 3, "zbv has 2"), ("gpip", None, "choose from gpipe")],
)
def test_an_unknown_schedule_or_number_of_stages_is_refused(name, v, said):
    with pytest.raises(UserError, match=said):
        build_schedule(name, 2, 4, v)


def test_an_action_is_written_and_read_back():
    assert Action.parse(str(Action(12, Kind.BACKWARD_INPUT, 3))) == Action(12, Kind.BACKWARD_INPUT, 3)
    with pytest.raises(UserError, match="action 'F3'"):
        Action.parse("F3")


def test_the_figure_has_a_box_for_every_action_and_one_for_the_bubble_of_every_rank():
    timeline = simulate(build_schedule("1f1b", 4, 8))
    figure = pipeline_figure(timeline)
    lanes, below = figure.axes
    assert lanes.get_title(loc="left") == "1f1b: bubble 27.3 %, at most 4 activations on a rank"
    assert len(lanes.patches) == 4 + 4 * 16
    assert [max(line.get_ydata()) for line in below.lines] == timeline.peak_live == [4, 3, 2, 1]
    assert "rank 3: 3F0 3B0 3F1" in alt_text(figure)
    assert png(figure)[:4] == b"\x89PNG"


def test_the_figure_of_a_moment_shows_only_what_has_started():
    timeline = simulate(build_schedule("gpipe", 2, 4))
    (lanes, _) = pipeline_figure(timeline, until=2.0).axes
    started = sum(span.start < 2 for spans in timeline.ranks for span in spans)
    assert len(lanes.patches) == 2 + started
    with pytest.raises(ValueError, match="at least one timeline"):
        pipeline_figure({})


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_explorers_figure_is_that_of_the_simulated_schedule(name):
    timeline = simulate(build_schedule(name, 3, 6))
    assert alt_text(schedule_figure(name, 3, 6)) == alt_text(pipeline_figure(timeline))


def test_numbers_that_a_schedule_cannot_take_give_a_figure_that_says_why():
    figure = schedule_figure("interleaved", 4, 9)
    assert "2 does not divide 9; take 8 or 10" in alt_text(figure)
    (axes,) = figure.axes
    assert "take 8 or 10" in " ".join(axes.texts[0].get_text().split())
    assert png(figure)[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", SCHEDULES)
def test_durations_read_from_a_timeline_give_the_timeline_again(name):
    schedule = build_schedule(name, 2, 4)
    stages = schedule.num_stages
    timeline = simulate(schedule, [1 + s for s in range(stages)], [2.5] * stages, backward_input=0.5)
    assert simulate(schedule, **mean_durations(timeline)) == timeline


def test_a_replay_takes_the_wall_clocks_waiting_out_and_leaves_each_actions_own_time():
    schedule = build_schedule("1f1b", 2, 4)
    equal = simulate(schedule)
    slowed = [
        [Span(a, 10 * start, 10 * start + (end - start)) for a, start, end in spans] for spans in equal.ranks
    ]
    assert replay(schedule, PipelineTimeline("measured", tuple(map(tuple, slowed)))) == equal
    first, *rest = slowed[0]
    slowed[0] = [Span(first.action, first.start, first.end + 5.0), *rest]  # one forward, 5 longer
    late = replay(schedule, PipelineTimeline("measured", tuple(map(tuple, slowed))))
    assert late.makespan == equal.makespan + 5


def test_a_replay_of_other_actions_is_refused():
    with pytest.raises(UserError, match="'gpipe' did not run the actions of 'interleaved'"):
        replay(build_schedule("interleaved", 2, 4), simulate(build_schedule("gpipe", 2, 4)))
