"""The planner against a plain model of time and memory in which every answer can be worked out by hand."""

import itertools
import math

import pytest

from dtlab.cost.billing import cost
from dtlab.cost.builders import transformer
from dtlab.cost.plan_job import Job, Space, Spot
from dtlab.cost.plan_json import as_dict
from dtlab.cost.plan_space import options
from dtlab.cost.plan_words import describe, table, why_lost
from dtlab.cost.planner import Plan, plan
from dtlab.errors import UserError

HOUR = 3600.0
MODEL = transformer(8, 1024, 32000, 512, heads=16, kv_heads=8, name="little")
SPEED = {"g5": 1.0, "g6": 1.2, "g6e": 3.0, "p4d": 6.0, "p4de": 6.0}  # of one card, work units per second


class Plain:
    """A step is work over cards x speed x effort, and a latency that grows with the machines."""

    def __init__(self, work: float = 600.0, latency: float = 0.0, gib: float = 10.0) -> None:
        self.work, self.latency, self.gib = work, latency, gib
        self.asked = 0

    def state_bytes(self, job, strategy):
        return 16.0 * job.model.parameters

    def peak_bytes(self, job, strategy):
        share = strategy.dp_shard * strategy.tp * strategy.pp
        kept = 1.0 if strategy.recompute == "full" else 4.0
        return (self.gib / share + kept * strategy.micro_batch / strategy.tp) * 2**30

    def step_seconds(self, job, strategy, machines, count):
        self.asked += 1
        again = 4 / 3 if strategy.recompute == "full" else 1.0
        bubble = (strategy.num_micro_batches + strategy.pp - 1) / strategy.num_micro_batches
        slow = 1 + 0.1 * (strategy.tp > 1) + 0.05 * (strategy.dp_shard > 1)
        bare = self.floor_seconds(job, strategy.precision, machines, count)
        return bare * again * bubble * slow + self.latency * (count - 1)

    def floor_seconds(self, job, precision, machines, count):
        slow = 2.0 if precision == "fp32" else 1.0
        return slow * self.work / (machines.gpus * count * SPEED[machines.name.split(".")[0]])

    def step_parts(self, job, strategy, machines, count):
        return {"compute": self.work, "data parallel": self.latency}

    def step_error(self, job, strategy, machines):
        return "made up"

    def memory_items(self, job, strategy):
        return {"states": self.gib * 2**30}


def job(**changes) -> Job:
    return Job(**{"model": MODEL, "samples": 6400, "global_batch": 64, "start_seconds": 0.0, **changes})


def space(**changes) -> Space:
    types = ("g5.12xlarge", "g6e.12xlarge", "p4d.24xlarge")
    return Space(**{"instances": types, "max_gpus": 32, "kind": "ec2", **changes})


def test_cheapest_and_fastest_are_those_of_hand_arithmetic():
    found = plan(job(), space(counts=(1,)), Plain())
    # 100 steps x 600 s / (4 cards x 1.0) x $5.672/h against 4 x 3.0 at 10.49264 and 8 x 6.0 at 21.957642
    by_hand = {
        "g5.12xlarge": 100 * 150 / HOUR * 5.672,
        "g6e.12xlarge": 100 * 50 / HOUR * 10.49264,
        "p4d.24xlarge": 100 * 12.5 / HOUR * 21.957642,
    }
    assert found.best.instance.name == min(by_hand, key=lambda name: by_hand[name]) == "p4d.24xlarge"
    assert found.best.usd == pytest.approx(by_hand["p4d.24xlarge"])
    assert found.best.seconds == pytest.approx(1250)
    fastest = plan(job(goal="fastest"), space(), Plain())
    assert fastest.best.gpus == 32
    assert fastest.best.instance.name == "p4d.24xlarge"


def test_dollars_are_those_of_the_bill():
    one = plan(job(), space(), Plain()).best
    assert one.usd == pytest.approx(cost(one.instance, one.seconds, count=one.count, kind="ec2").usd)
    short = plan(job(samples=64), space(), Plain(work=1.0)).best
    assert short.seconds < 60
    assert short.usd == pytest.approx(cost(short.instance, short.seconds, count=short.count, kind="ec2").usd)


def test_searching_finds_what_trying_everything_finds():
    model = Plain(latency=0.3, gib=40.0)
    asked, there = job(), space(max_gpus=64)
    found = plan(asked, there, model)
    best: dict[tuple[str, int], float] = {}
    for one in found.candidates:
        world, key = one.gpus, (one.instance.name, one.count)
        for _, strategy in options(asked, there, world, one.instance.gpus):
            fits = model.peak_bytes(asked, strategy) <= 0.8 * one.instance.gpu_memory_bytes
            if fits and strategy.pp == 1:
                step = model.step_seconds(asked, strategy, one.instance, one.count)
                best[key] = min(best.get(key, math.inf), step)
    taken = {(one.instance.name, one.count): one.step_seconds for one in found.candidates}
    assert set(taken) == set(best)
    for key, step in taken.items():
        assert best[key] <= step <= 1.01 * best[key]


def test_every_configuration_is_accounted_for():
    asked, there = job(), space(instances=("g5.12xlarge", "p4d.24xlarge"))
    found = plan(asked, there, Plain(gib=30.0))
    counted = found.refused + found.no_room + found.too_slow + found.set_aside + found.predicted
    assert found.covered == counted
    worlds = [(4, n) for n in (1, 2, 3, 4, 6, 8)] + [(8, n) for n in (1, 2, 3, 4)]
    assert found.covered == sum(len(options(asked, there, cards * n, cards)) for cards, n in worlds)
    assert found.no_room > 0 < found.too_slow
    assert len(found.dots) == found.predicted


def test_old_cards_are_not_planned_in_bf16():
    found = plan(job(), space(instances=("p3.16xlarge", "g4dn.12xlarge"), precisions=("bf16-mixed", "amp")),
                 type("V", (Plain,), {"floor_seconds": lambda *_: 1.0})())  # fmt: skip
    assert found.refused > 0
    assert {one.strategy.precision for one in found.candidates} == {"amp"}


def test_pipelines_are_taken_where_nothing_else_fits_or_where_they_are_asked_for():
    class Deep(Plain):
        def peak_bytes(self, job, strategy):
            return self.gib / strategy.pp * 2**30

    there = space(instances=("g5.12xlarge",), counts=(2,))
    roomy, full = plan(job(), there, Deep(gib=10.0)), plan(job(), there, Deep(gib=40.0))
    assert roomy.set_aside > 0
    assert {one.strategy.pp for one in roomy.candidates} == {1}
    assert full.set_aside == 0
    assert full.best.strategy.pp >= 4
    asked = plan(job(), space(instances=("g5.12xlarge",), counts=(2,), pp=(2,)), Deep(gib=10.0))
    assert asked.best.strategy.pp == 2


def test_of_ways_that_are_equal_within_a_hundredth_the_plainest_is_taken():
    class Alike(Plain):
        def step_seconds(self, job, strategy, machines, count):
            plain = strategy.tp == 1 and strategy.zero == 0 and strategy.num_micro_batches == 1
            return 2.0 if plain else 1.99 if strategy.tp == 2 else 1.995

        def floor_seconds(self, *_):
            return 1.0

    one = space(counts=(1,), instances=("p4d.24xlarge",))
    found = plan(job(), one, Alike(gib=-5.0)).best.strategy
    assert (found.tp, found.zero, found.num_micro_batches) == (1, 0, 1)


def test_frontier_is_what_no_other_beats_in_both():
    found = plan(job(), space(), Plain(latency=2.0))
    front = found.frontier
    assert [one.seconds for one in front] == sorted(one.seconds for one in front)
    for faster, slower in itertools.pairwise(front):
        assert faster.usd > slower.usd
    for one in found.candidates:
        beaten = any(f.seconds <= one.seconds and f.usd <= one.usd for f in front)
        assert beaten
    assert found.best in front


def test_deadline_and_budget_decide():
    slow = Plain(latency=1.0)
    relaxed = plan(job(), space(), slow)
    hurried = plan(job(deadline_seconds=0.6 * relaxed.best.seconds), space(), slow)
    assert hurried.best.seconds <= 0.6 * relaxed.best.seconds
    assert hurried.best.usd > relaxed.best.usd
    rich = plan(job(goal="fastest"), space(), slow)
    poor = plan(job(goal="fastest", budget_usd=1.01 * relaxed.best.usd), space(), slow)
    assert poor.best.usd <= 1.01 * relaxed.best.usd
    assert poor.best.seconds > rich.best.seconds


def test_what_cannot_be_kept_says_what_comes_nearest():
    with pytest.raises(UserError) as error:
        plan(job(deadline_seconds=60.0, budget_usd=1.0), space(), Plain())
    text = str(error.value)
    assert "deadline = 0.0166667 h and budget = $1.00: nothing keeps it" in text
    assert "the fastest is 4 x p4d.24xlarge" in text
    assert "\n" not in text


def test_model_that_fits_nowhere_says_by_how_much():
    with pytest.raises(UserError, match=r"nothing fits; the nearest takes \d+% of one L40S of g6e.12xlarge"):
        plan(job(), space(max_gpus=8), Plain(gib=40_000.0))


def test_a_larger_model_is_sharded_and_its_micro_batch_gets_smaller():
    small, large = plan(job(), space(), Plain(gib=5.0)), plan(job(), space(), Plain(gib=100.0))
    assert small.best.strategy.dp_shard == 1
    assert large.best.strategy.dp_shard * large.best.strategy.tp * large.best.strategy.pp > 1
    assert large.best.peak_bytes <= 0.8 * large.best.instance.gpu_memory_bytes


def test_tensor_parallelism_beyond_a_machine_is_refused():
    with pytest.raises(UserError, match="tp = 16: no machine here has more than 8 GPUs"):
        plan(job(), space(tp=(16,)), Plain())
    with pytest.raises(UserError, match="tp = 8: no machine here has more than 4 GPUs"):
        plan(job(), space(instances=("g5.12xlarge",), tp=(8,)), Plain())
    inside = plan(job(), space(tp=(8,)), Plain())
    assert {one.instance.gpus for one in inside.candidates} == {8}


def test_global_batch_is_kept_whatever_the_strategy():
    asked = job(global_batch=96)
    for world, cards in ((8, 8), (12, 4), (24, 8)):
        for _, strategy in options(asked, space(), world, cards):
            strategy.__class__(**strategy.__dict__)  # the checks of `Strategy` hold for it
            strategy.check(MODEL)
            assert strategy.global_batch == 96
            assert strategy.world_size == world
            assert strategy.tp <= cards


def test_reader_that_is_too_slow_makes_cards_useless():
    free = plan(job(goal="fastest"), space(), Plain())
    bound = plan(job(goal="fastest", reader_per_host=1.0), space(), Plain())
    assert bound.best.step_seconds == pytest.approx(64.0 / bound.best.count)
    assert free.best.step_seconds < 64.0 / free.best.count


def test_runner_up_lost_for_a_reason_that_can_be_checked():
    found = plan(job(), space(), Plain())
    other = found.runner_up
    assert other is not None
    assert other.instance is not found.best.instance
    more = other.usd / found.best.usd - 1
    assert f"${other.usd:,.2f} is {more:.0%} more" in why_lost(found)
    hour = other.price.usd * other.count / (found.best.price.usd * found.best.count)
    assert f"{hour:.2f} times as much" in why_lost(found)
    late = plan(job(deadline_seconds=1250.5), space(counts=(1,)), Plain())
    assert "more than the deadline of" in why_lost(late)
    dear = plan(job(budget_usd=7.63), space(counts=(1,)), Plain())
    assert "more than the budget of $7.63" in why_lost(dear)
    alone = plan(job(), space(instances=("p4d.24xlarge",), counts=(1,)), Plain())
    assert "no runner-up" in why_lost(alone)


def test_table_and_dictionary_hold_the_best_and_its_price():
    found = plan(job(), space(counts=(1,)), Plain())
    lines = table(found)
    assert lines[1].startswith("best")
    assert "1 x p4d.24xlarge" in lines[1]
    assert all(describe(found.best.strategy) in line for line in lines[1:2])
    body = as_dict(found)
    assert body["best"]["usd"] == pytest.approx(found.best.usd)
    assert body["best"]["price"]["kind"] == "on-demand"
    assert body["deadline_seconds"] is None


def test_spot_counts_restarts_and_needs_a_rate():
    with pytest.raises(UserError, match="interruptions_per_hour is needed"):
        space(kind="spot")
    with pytest.raises(UserError, match="goes with kind = 'spot'"):
        space(spot=Spot(interruptions_per_hour=0.1))
    calm = plan(job(), space(kind="spot", spot=Spot(interruptions_per_hour=0.0)), Plain())
    rough = plan(job(), space(kind="spot", spot=Spot(interruptions_per_hour=0.5)), Plain())
    assert rough.best.seconds > calm.best.seconds
    assert rough.best.usd > calm.best.usd
    assert calm.best.price.kind == "spot estimate"


def test_types_without_a_price_are_left_out_aloud_and_refused_when_named():
    everything = Space(kind="ec2", max_gpus=8)
    flat = type("Flat", (Plain,), {"floor_seconds": lambda *_: 1.0})()
    found: Plan = plan(job(), everything, flat)
    assert any("p5e.48xlarge" in reason for reason in found.left_out)
    assert any("Trainium" in reason for reason in found.left_out)
    assert not any(one.instance.retired for one in found.candidates)
    for name, said in (
        ("p5e.48xlarge", "no EC2 price"),
        ("trn1.32xlarge", "Trainium"),
        ("m5.xlarge", "no GPU"),
    ):
        with pytest.raises(UserError, match=said):
            plan(job(), space(instances=(name,)), flat)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: job(samples=0), "samples = 0"),
        (lambda: job(samples=math.inf), "samples = inf"),
        (lambda: job(samples=True), "samples = True"),
        (lambda: job(global_batch=0), "global_batch = 0"),
        (lambda: job(global_batch=1.5), "global_batch = 1.5"),
        (lambda: job(deadline_seconds=-1), "deadline_seconds = -1"),
        (lambda: job(budget_usd=math.nan), "budget_usd = nan"),
        (lambda: job(goal="best"), "goal = 'best'"),
        (lambda: job(optimizer="lion"), "optimizer = 'lion'"),
        (lambda: job(start_seconds=-1), "start_seconds = -1"),
        (lambda: job(reader_per_host=0), "reader_per_host = 0"),
        (lambda: space(max_gpus=20_000), "max_gpus = 20000"),
        (lambda: space(counts=(0,)), "counts = 0"),
        (lambda: space(precisions=("fp8",)), "precisions = 'fp8'"),
        (lambda: space(zeros=()), "zeros is empty"),
        (lambda: space(zeros=(4,)), "zeros = 4"),
        (lambda: space(fits_below=1.5), "fits_below = 1.5"),
        (lambda: space(kind="lease"), "kind = 'lease'"),
        (lambda: Spot(interruptions_per_hour=-1), "interruptions_per_hour = -1"),
        (lambda: Spot(interruptions_per_hour=0, fraction=0), "fraction = 0"),
        (
            lambda: plan(job(global_batch=7), space(tp=(1,), pp=(1,), counts=(2,)), Plain()),
            "global_batch = 7",
        ),
        (lambda: plan(job(), space(instances=("g5.12xlage",)), Plain()), "g5.12xlarge"),
        (lambda: plan(job(), space(instances=(), region="us-esat-1"), Plain()), "did you mean us-east-1"),
    ],
)
def test_bad_values_are_named(make, said):
    with pytest.raises(UserError) as error:
        make()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
