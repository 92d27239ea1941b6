"""Throughput becomes dollars: per epoch, per sample, to a target, within a deadline or a budget."""

import pytest

from dtlab.cost.economics import Measured, cheapest, economics, fastest, measured_on, predicted_on
from dtlab.cost.source_table import s0_table, split
from dtlab.errors import UserError

SPEEDS = {1: 1000.0, 2: 1800.0, 4: 3200.0, 8: 5600.0}


def test_efficiency_falls_and_dollars_per_sample_rise_with_cards_of_whole_machines():
    rows = economics(measured_on("ml.g5.12xlarge", {4: 4000.0, 8: 7200.0, 16: 12_000.0}), 3_600_000)
    assert [row.efficiency for row in rows] == pytest.approx([1.0, 0.9, 0.75])
    assert [row.usd_per_epoch for row in rows] == pytest.approx([7.09 / 4, 7.09 * 2 / 7.2, 7.09 * 4 / 12])
    for row in rows:
        assert row.usd_per_sample * 3_600_000 == pytest.approx(row.usd_per_epoch)


def test_idle_cards_of_a_machine_are_in_the_price():
    one, four = economics(measured_on("ml.g5.12xlarge", {1: 1000.0, 4: 1000.0}), 1000)
    assert one.setup.instances == four.setup.instances == 1
    assert one.usd_per_epoch == four.usd_per_epoch


def test_target_counts_epochs_and_the_minimum_of_the_bill():
    row = economics([Measured("ml.g5.12xlarge", 1, 4, 1000.0)], 1000, epochs=10)[0]
    assert row.seconds_to_target == pytest.approx(10.0)
    assert row.usd_to_target == pytest.approx(7.09 / 60)
    assert row.usd_per_epoch == pytest.approx(7.09 / 3600)


def test_deadline_and_budget_choose_differently():
    rows = economics(measured_on("ml.g4dn.12xlarge", {4: 3200.0, 8: 5600.0, 16: 9000.0}), 3.2e6, epochs=36)
    hours = [row.seconds_to_target / 3600 for row in rows]
    assert hours == pytest.approx([10.0, 5.714, 3.556], abs=1e-3)
    assert cheapest(rows).setup.gpus == 4
    assert cheapest(rows, deadline_seconds=6 * 3600).setup.gpus == 8
    assert fastest(rows).setup.gpus == 16
    assert fastest(rows, budget_usd=60).setup.gpus == 8
    with pytest.raises(UserError, match=r"fastest setup, 16 GPUs, needs 12,800 s"):
        cheapest(rows, deadline_seconds=3600)
    with pytest.raises(UserError, match=r"cheapest setup, 4 GPUs, costs \$48.90"):
        fastest(rows, budget_usd=10)


def test_predicted_setups_are_priced_like_measured_ones():
    setups = predicted_on("ml.g5.12xlarge", "BERT-large", 4, [1, 4, 8])
    rows = economics(setups, samples_per_epoch=100_000)
    assert [(row.setup.gpus, row.setup.instances) for row in rows] == [(1, 1), (4, 1), (8, 2)]
    assert rows[0].efficiency == 1.0
    assert 0 < rows[2].efficiency < rows[1].efficiency < 1
    assert rows[1].usd_per_epoch < rows[0].usd_per_epoch, "three of four cards idle in the first"


def test_table_of_the_source_recomputed():
    rows = s0_table()
    assert [row.usd_per_epoch for row in rows] == pytest.approx([9.05, 7.59, 8.45], abs=0.005)
    assert [row.ratio for row in rows] == pytest.approx([1, 0.84, 0.93], abs=0.005)
    assert [row.claimed_ratio for row in rows] == pytest.approx([1, 0.60, 0.74], abs=0.005)
    thousands = [row.epoch_samples_if_per_thousand / 1000 for row in rows]
    assert thousands == pytest.approx([19.3, 27.1, 24.1], abs=0.1)
    ec2 = s0_table("ec2")
    assert [row.usd_per_epoch for row in ec2] == pytest.approx([7.24, 6.32, 7.34], abs=0.005)
    assert ec2[2].ratio > 1, "at EC2's prices eight cards cost more per epoch than one"
    assert min(rows, key=lambda row: row.usd_per_epoch).claimed.gpus == 4


def test_cache_and_cards_are_two_factors_of_the_speed_up():
    found = split()
    assert found.one_card_minutes == pytest.approx(109, abs=0.2)
    assert found.stalled_minutes == pytest.approx(33, abs=0.2)
    assert found.cache * found.cards == pytest.approx(142 / 18)
    assert (round(found.cache, 1), round(found.cards, 2), round(found.efficiency, 2)) == (1.3, 6.06, 0.76)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: economics([], 10), "setups is empty"),
        (lambda: economics(measured_on("g5.xlarge", {1: 10.0}), 0), "samples_per_epoch=0"),
        (lambda: economics(measured_on("g5.xlarge", {1: 10.0}), 10, epochs=-1), "epochs=-1"),
        (lambda: economics(measured_on("g5.xlarge", {1: 0.0}), 10), "samples_per_second=0"),
        (lambda: measured_on("g5.xlarge", {0: 1.0}), "gpus=0"),
        (lambda: predicted_on("g5.xlarge", "BERT-large", 0, [1]), "micro_batch = 0"),
        (lambda: predicted_on("g5.xlarge", "BERT-lrge", 1, [1]), "BERT-large"),
        (lambda: measured_on("m5.xlarge", {1: 1.0}), "no GPU"),
        (lambda: economics([Measured("g5.xlarge", 1, 0, 1.0)], 10), "gpus=0"),
        (lambda: economics([Measured("g5.xlarge", 0, 1, 1.0)], 10), "count=0"),
        (lambda: s0_table("lease"), "kind='lease'"),
    ],
)
def test_bad_values_are_named(call, said):
    with pytest.raises(UserError) as error:
        call()
    assert said in str(error.value)
