"""The parts of a step: what counts where, in loops of every shape, and what the verdict makes of them."""

import numpy as np
import pytest
import torch
from torch import nn

from dtlab.course.lessons.l01_traces import recorded_traces
from dtlab.diagnose.bound import bound_verdict
from dtlab.diagnose.checks import OK, WARN
from dtlab.diagnose.profiler import step_profile
from dtlab.diagnose.step_profile import PARTS, StepProfile, gather_profiles
from dtlab.diagnose.utilisation import busy_share, cloudwatch_per_card, utilisation_lines
from dtlab.errors import UserError


def loop(profiler, model, batches, *, micro_batches=1, leave_after=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number, batch in enumerate(profiler.steps(batches), start=1):
        optimizer.zero_grad()
        for piece in batch.chunk(micro_batches):
            model(piece).square().mean().backward()
        optimizer.step()
        if number == leave_after:
            break


def batches(steps=4):
    return torch.randn(steps, 16, 8)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def test_parts_add_up_to_the_step(model):
    with step_profile(model, skip=0) as profiler:
        loop(profiler, model, batches())
    profile = profiler.profile()
    assert len(profile) == 4
    assert sum(profile.mean(part) for part in PARTS) == pytest.approx(profile.step_seconds)
    assert sum(profile.share(part) for part in PARTS) == pytest.approx(1.0)
    for part in ("data", "forward", "backward", "optimizer"):
        assert (profile.column(part) > 0).all(), part
    assert not profile.column("communication").any()  # one rank


def test_time_between_marks_is_neither_lost_nor_counted_twice(model):
    import time

    began = time.perf_counter()
    with step_profile(model, skip=0) as profiler:
        loop(profiler, model, batches())
    whole = time.perf_counter() - began
    assert 0 < profiler.profile().seconds.sum() <= whole


def test_slow_loader_is_data_and_slow_body_is_other(model):
    import time

    def slow():
        for batch in batches(3):
            time.sleep(0.05)
            yield batch

    with step_profile(model, skip=0) as profiler:
        for batch in profiler.steps(slow()):
            model(batch).mean().backward()
            time.sleep(0.05)
    profile = profiler.profile()
    assert (profile.column("data") >= 0.05).all()
    assert (profile.column("other")[:-1] >= 0.05).all()
    assert (profile.column("forward") < profile.seconds.sum(axis=1) - 0.05).all()


def test_micro_batches_and_recomputed_blocks_stay_one_step(model):
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, batch):
            return checkpoint(self.inner, batch.requires_grad_(), use_reentrant=True)

    with step_profile(model, skip=0) as profiler:
        loop(profiler, Recomputed(), batches(), micro_batches=4)
    assert len(profiler.profile()) == 4


def test_loop_that_is_left_early_ends_with_its_last_step(model):
    with step_profile(model, skip=0) as profiler:
        loop(profiler, model, batches(), leave_after=2)
        before = torch.autograd.backward
    assert len(profiler.profile()) == 2
    assert torch.autograd.backward is not before  # the wrapper is gone
    assert torch.autograd.backward.__module__ == "torch.autograd"
    model(batches()[0]).mean().backward()  # outside the block nothing is watched
    assert len(profiler.profile()) == 2


def test_first_steps_are_left_out_but_never_all(model):
    with step_profile(model, skip=3) as profiler:
        loop(profiler, model, batches(4))
    assert len(profiler.profile()) == 1
    with step_profile(model, skip=9) as profiler:
        loop(profiler, model, batches(2))
    assert len(profiler.profile()) == 1


def test_failing_body_leaves_torch_as_it_was(model):
    before = torch.autograd.backward

    def failing(profiler):
        with profiler:
            for _ in profiler.steps(batches()):
                raise KeyError("of the loop")

    profiler = step_profile(model)
    with pytest.raises(KeyError):
        failing(profiler)
    assert torch.autograd.backward is before
    with pytest.raises(UserError, match="no step was profiled"):
        profiler.profile()


def test_own_all_reduce_is_named_by_the_loop(model):
    with step_profile(model, skip=0) as profiler:
        for batch in profiler.steps(batches()):
            model(batch).mean().backward()
            with profiler.part("communication"):
                torch.randn(64, 64) @ torch.randn(64, 64)
    assert (profiler.profile().column("communication") > 0).all()
    with pytest.raises(UserError, match="'wire' is no part of a step"), profiler.part("wire"):
        pass


def test_watched_loader_keeps_its_attributes(model):
    class Loader(list):
        wait_seconds = 2.5

    watched = step_profile(model).steps(Loader([1, 2]))
    assert (len(watched), watched.wait_seconds) == (2, 2.5)


@pytest.mark.parametrize(
    "seconds", [np.zeros((2, 6)), np.full((1, 6), -1.0), np.ones((0, 6)), np.ones((2, 3))]
)
def test_profile_of_no_time_is_refused(seconds):
    with pytest.raises(UserError, match="seconds"):
        StepProfile(seconds)


def test_profiles_of_other_parts_or_lengths_are_refused():
    with pytest.raises(UserError, match="'sync' is no part of a step"):
        StepProfile.of([{"sync": 1.0}])
    with pytest.raises(UserError, match="1 to 2 steps"):
        bound_verdict([StepProfile.of([{"data": 1.0}]), StepProfile.of([{"data": 1.0}] * 2)])
    with pytest.raises(UserError, match="empty"):
        bound_verdict([])
    with pytest.raises(UserError, match="skip = -1"):
        step_profile(nn.Linear(1, 1), skip=-1)


# -- the verdict -----------------------------------------------------------------------------------------


def recorded(name):
    """A job of lesson 01, as the profiler would have measured it, without the first step."""
    names = {"data": "data", "compute": "forward", "sync": "communication"}
    return [
        StepProfile.of(
            [{names[part]: us / 1e6 for part, us in step.items()} for step in steps], rank=rank, world_size=2
        ).without_first()
        for rank, steps in enumerate(recorded_traces()[name])
    ]


@pytest.mark.parametrize(
    ("name", "bound"),
    [("A", "input-bound"), ("B", "communication-bound"), ("C", "input-bound"), ("D", "compute-bound")],
)
def test_recorded_jobs_get_their_verdict(name, bound):
    verdict = bound_verdict(recorded(name))
    assert verdict.bound == bound
    assert verdict.lines()[0].status == (WARN if bound != "compute-bound" or verdict.busy_share < 0.7 else OK)
    gains = [advice.most for advice in verdict.advice]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1


def test_one_rank_alone_would_misjudge_the_job_with_a_slow_disk():
    """Rank 0 only waits for rank 1's disk: its own profile looks communication-bound."""
    rank_0, _ = recorded("A")
    assert bound_verdict(rank_0).bound == "communication-bound"
    verdict = bound_verdict(recorded("A"))
    assert verdict.bound == "input-bound"
    (note,) = [note for note in verdict.notes if "came last" in note]
    assert note.startswith("rank 1 came last in 8 of 8 steps")


def test_rare_stall_is_told_and_does_not_decide():
    verdict = bound_verdict(recorded("D"))
    assert verdict.bound == "compute-bound"
    (note,) = [note for note in verdict.notes if "stalled in data" in note]
    assert note.startswith("1 of 8 steps stalled in data for up to 0.60")
    assert not [note for note in bound_verdict(recorded("B")).notes if "stalled in data" in note]


def test_advice_follows_the_largest_part():
    slow_input = bound_verdict(StepProfile.of([{"data": 8.0, "forward": 1.0, "backward": 1.0}] * 3))
    assert slow_input.advice[0].what.startswith("keep prepared rows")
    assert slow_input.advice[0].most == pytest.approx(5.0)
    assert slow_input.advice[1].most == pytest.approx(10 / 8)  # reading ahead hides the 2 s of computing
    slow_wire = bound_verdict(StepProfile.of([{"communication": 9.0, "backward": 1.0}] * 3, world_size=4))
    assert slow_wire.advice[0].what.startswith("one rank instead of 4")
    assert slow_wire.advice[0].most == pytest.approx(2.5)
    busy = bound_verdict(StepProfile.of([{"forward": 1.0, "backward": 2.0}] * 3))
    assert busy.advice[0].what.startswith("twice the ranks")
    assert not any("data" in advice.what or "sync" in advice.what for advice in busy.advice)
    on_card = bound_verdict(StepProfile.of([{"forward": 1.0, "backward": 2.0}] * 3, device="cuda"))
    assert any("bf16" in advice.what for advice in on_card.advice)


@pytest.mark.parametrize(
    "waits", [{"communication": 0.25, "data": 0.0}, {"communication": 0.05, "data": 0.15}]
)
def test_more_ranks_are_not_advised_while_those_there_are_wait(waits):
    steps = [{**waits, "forward": 1 - sum(waits.values())}] * 3
    verdict = bound_verdict(StepProfile.of(steps, world_size=2))
    assert verdict.bound == "compute-bound"
    assert verdict.busy_share >= 0.7
    assert not any("twice the ranks" in advice.what for advice in verdict.advice)


def test_a_step_that_computes_longest_is_compute_bound_without_a_warning():
    (line,) = bound_verdict(
        StepProfile.of([{"data": 0.2, "forward": 0.55, "communication": 0.25}] * 3)
    ).lines()
    assert (line.status, line.value.startswith("compute-bound")) == (OK, True)
    assert "next: " in line.value
    (line,) = bound_verdict(StepProfile.of([{"data": 0.6, "forward": 0.4}] * 3)).lines()
    assert (line.status, line.value.startswith("input-bound")) == (WARN, True)


def test_busy_share_is_what_is_not_waited():
    profile = StepProfile.of([{"data": 1.0, "forward": 2.0, "communication": 1.0}])
    assert profile.busy_share == busy_share(0.25, 0.25) == 0.5
    low, nvml, cloudwatch = utilisation_lines(0.25, 0.25)
    assert (low.status, utilisation_lines(0.1, 0.1)[0].status) == (WARN, OK)
    assert low.fix
    assert "any kernel" in nvml.value
    assert "added up" in cloudwatch.value
    assert cloudwatch_per_card(40, 4) == 0.1
    for wrong in ((1.2, 0), (-0.1, 0), (0.6, 0.6)):
        with pytest.raises(UserError, match="share"):
            busy_share(*wrong)
    with pytest.raises(UserError, match="4 card"):
        cloudwatch_per_card(500, 4)


def test_text_and_json_of_a_profile_agree():
    profile = StepProfile.of([{"data": 0.001, "communication": 0.003}])
    assert "exposed communication       3.00   75.0%" in str(profile)
    found = profile.to_dict()
    assert found["shares"]["communication"] == 0.75
    assert found["busy_share"] == 0.0
    assert len(gather_profiles(profile)) == 1


@pytest.mark.parametrize("skip", [-1, 1.5, True, float("nan"), "1"])
def test_steps_to_skip_are_a_whole_number(model, skip):
    with pytest.raises(UserError, match=r"skip = .*whole number"):
        step_profile(model, skip=skip)
