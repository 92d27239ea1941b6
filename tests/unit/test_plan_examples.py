"""Two plans worked end to end and held against arithmetic that a reader can do: examples/plans/README.md."""

import math
from pathlib import Path

import pytest

from dtlab.commands.plan_shape import shape_of
from dtlab.cost.calibration import calibration, gpu
from dtlab.cost.catalogue import instance
from dtlab.cost.plan_job import Job, Space
from dtlab.cost.plan_model import Models
from dtlab.cost.plan_space import options
from dtlab.cost.plan_words import best_of_other_types, why_lost
from dtlab.cost.planner import Plan, plan
from dtlab.cost.presets import LLAMA_7B, preset

HOUR = 3600.0


@pytest.fixture(scope="module")
def deepfm() -> Plan:
    shape = shape_of(str(Path(__file__).parents[2] / "examples/plans/s4-deepfm.toml"))
    job = Job(model=shape, samples=1e9, global_batch=16384, deadline_seconds=6 * HOUR)
    return plan(job, Space(instances=("g5", "g6e", "p4d")))


def test_one_card_trains_the_large_table_in_time_for_three_dollars(deepfm):
    best = deepfm.best
    assert (best.instance.name, best.count) == ("g6e.xlarge", 1)
    # A step reads 26 rows of 1025 fp32 numbers a sample, twice, and Adam passes over the table eight times.
    steps, table = math.ceil(1e9 / 16384), 1_000_000 * 1025 * 4
    rows = 16384 * 26 * 1025 * 4
    memory = (2 * rows + 8 * table) / (0.8 * gpu("L40S").memory_bytes_per_second)
    products = 6 * ((26 * 1024 + 13 + 1) * 128 + 129 * 64 + 65 + 13 * 1025 + 1 + 2 * 39 * 1024) * 16384
    row = calibration("L40S", "half", "recommender")
    seconds = 300 + steps * (memory + products / (row.eta * gpu("L40S").half))
    assert best.seconds == pytest.approx(seconds, rel=0.02)
    assert best.usd == pytest.approx(2.61 * seconds / HOUR, rel=0.02)
    assert best.usd < 4


def test_four_cards_on_pcie_are_late_because_every_step_sends_the_table(deepfm):
    (four,) = [one for one in best_of_other_types(deepfm) if one.instance.name == "g5.12xlarge"]
    sent = 2 * 3 / 4 * 1_000_000 * 1025 * 4  # bytes that each card sends in a ring
    at_least = math.ceil(1e9 / 16384) * sent / 12e9  # 12 GB/s is what cards reach over PCIe 4
    assert four.seconds > at_least > 6 * HOUR
    assert "more than the deadline of 6 h" in why_lost(deepfm, four)


def test_eight_cards_on_nvlink_are_in_time_at_nine_times_the_price(deepfm):
    (eight,) = [one for one in best_of_other_types(deepfm) if one.instance.name == "p4d.24xlarge"]
    assert deepfm.within(eight)
    assert eight.usd / deepfm.best.usd == pytest.approx(9, abs=1.5)
    assert f"times as long ({eight.seconds / HOUR:.2f} h)" in why_lost(deepfm, eight)


def test_table_takes_16_bytes_a_number_of_a_card(deepfm):
    items = Models().memory_items(deepfm.job, deepfm.best.strategy)
    states = items["parameters"] + items["gradients"] + items["optimizer"]
    assert states == pytest.approx(16 * 1_028_431_311, rel=1e-3)
    assert deepfm.best.peak_bytes < 0.8 * 44.7 * 2**30


@pytest.fixture(scope="module")
def llama() -> Plan:
    job = Job(
        model=LLAMA_7B, samples=5e9 / 4096, global_batch=1024, budget_usd=2000.0, deadline_seconds=12 * HOUR
    )
    return plan(job, Space(instances=("p4d", "p4de", "p5.48xlarge", "g6e")))


def test_7b_under_2000_dollars_is_four_machines_for_a_night(llama):
    best = llama.best
    assert (best.instance.name, best.gpus) == ("p4d.24xlarge", 32)
    assert best.usd < 2000
    assert best.seconds < 12 * HOUR
    # 5e9 tokens x 46.1 GFLOP on 32 cards of 312 TFLOP/s: between all of the peak and a third of it.
    ideal = 5e9 * 46.1e9 / (32 * 312e12)
    assert ideal < best.seconds - 300 < 3 * ideal
    assert best.usd == pytest.approx(best.seconds / HOUR * 4 * 21.957642 * 1.15, rel=1e-5)


def test_7b_fits_because_its_states_are_shared_out(llama):
    strategy = llama.best.strategy
    assert (strategy.zero, strategy.dp_shard) == (3, 32)
    items = Models().memory_items(llama.job, strategy)
    assert items["optimizer"] == pytest.approx(12 * LLAMA_7B.parameters / 32, rel=0.01)
    whole = 16 * LLAMA_7B.parameters
    assert whole > llama.best.instance.gpu_memory_bytes, "with plain DDP the states alone would not fit"


def test_7b_names_a_measured_error_and_leaves_pipelines_aside(llama):
    assert "%" in llama.best.trust
    assert llama.set_aside > 0
    assert all(one.strategy.pp == 1 for one in llama.candidates if llama.within(one))


@pytest.mark.parametrize(
    ("name", "machines", "count", "global_batch"),
    [
        ("Llama 7B", "p4d.24xlarge", 2, 64),
        ("BERT-large", "g5.12xlarge", 3, 96),
        ("S4 DeepFM 1M x 1024", "g6e.12xlarge", 2, 4096),
        ("ResNet-50", "g4dn.12xlarge", 2, 512),
    ],
)
def test_what_is_counted_out_is_never_the_best(name, machines, count, global_batch):
    job = Job(model=preset(name), samples=1e5, global_batch=global_batch)
    found = plan(job, Space(instances=(machines,), counts=(count,))).best
    models, room = Models(), 0.8 * found.instance.gpu_memory_bytes
    steps = [
        models.step_seconds(job, strategy, found.instance, count)
        for _, strategy in options(job, Space(), found.gpus, found.instance.gpus)
        if strategy.pp == 1
        and not (strategy.precision == "bf16-mixed" and found.instance.gpu == "T4")
        and models.peak_bytes(job, strategy) <= room
    ]
    assert min(steps) <= found.step_seconds <= 1.01 * min(steps)


def test_floor_is_below_every_step_that_is_predicted():
    job, models = Job(model=LLAMA_7B, samples=1e5, global_batch=64), Models()
    machines = instance("p5.48xlarge")
    floors = {name: models.floor_seconds(job, name, machines, 2) for name in ("bf16-mixed", "amp", "fp32")}
    for effort, strategy in options(job, Space(), 16, 8):
        step = models.step_seconds(job, strategy, machines, 2)
        assert floors[strategy.precision] * effort <= step * (1 + 1e-9)
