"""Clicks: deterministic by seed, any size, and a truth whose best AUC is known."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from dtlab.data import clicks
from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset
from dtlab.errors import UserError


def log(rows, seed=0):
    return pa.concat_tables([chunk.table for chunk in clicks.generate(rows, seed)])


def test_the_same_seed_gives_the_same_rows_and_another_seed_does_not():
    assert log(3000, 7).equals(log(3000, 7))
    assert not log(3000, 7).equals(log(3000, 8))


def test_a_longer_log_begins_with_the_shorter_one():
    longer = log(clicks.CHUNK + 500)
    assert longer.num_rows == clicks.CHUNK + 500
    assert longer.slice(0, 1000).equals(log(1000))
    assert longer.column("id").to_pylist() == list(range(clicks.CHUNK + 500))


def test_few_items_get_most_of_the_views_as_zipf_says():
    views = np.sort(np.bincount(log(200_000).column("item").to_numpy(), minlength=clicks.NUM_ITEMS))[::-1]
    harmonic = (1 / np.arange(1, clicks.NUM_ITEMS + 1)).sum()
    assert views[0] / 200_000 == pytest.approx(1 / harmonic, rel=0.05)
    assert views[0] / views[9] == pytest.approx(10, rel=0.1)


def test_favourites_and_purchases_are_among_the_clicks_and_rarer():
    table = log(50_000)
    click, favourite, purchase = (table.column(name).to_numpy() for name in clicks.LABELS)
    assert favourite[click == 0].sum() == purchase[click == 0].sum() == 0
    assert 0.1 < click.mean() < 0.5
    assert 0 < favourite.mean() < click.mean()
    assert 0 < purchase.mean() < click.mean()


def test_true_probabilities_are_those_that_the_labels_were_drawn_from():
    chunks = list(clicks.generate(400_000, 3))
    for label in clicks.LABELS:
        probability = np.concatenate([chunk.probabilities[label] for chunk in chunks])
        drawn = np.concatenate([chunk.table.column(label).to_numpy() for chunk in chunks])
        order = np.argsort(probability).reshape(20, -1)
        expected, seen = probability[order].mean(axis=1), drawn[order].mean(axis=1)
        error = np.sqrt(np.maximum(expected * (1 - expected), 1e-6) / order.shape[1])
        assert np.abs(seen - expected).max() < 5 * error.max(), label


def test_the_logit_is_the_factorisation_machine_written_out_as_pairs():
    truth = clicks.Truth.plant(5)
    rows = {name: np.array([1, size - 1]) for name, size in clicks.FIELDS.items()}
    for at, logit in enumerate(truth.logits("click", rows)):
        names = list(clicks.FIELDS)
        total = clicks.BIAS["click"] + sum(truth.weights["click"][n][rows[n][at]] for n in names)
        total += truth.price_slope["click"] * (np.log(truth.item_price[rows["item"][at]]) - 3.0)
        for i, one in enumerate(names):
            for other in names[i + 1 :]:
                total += (
                    truth.vectors["click"][one][rows[one][at]]
                    @ truth.vectors["click"][other][rows[other][at]]
                )
        assert logit == pytest.approx(total, abs=1e-4)


def test_best_auc_is_that_of_the_true_probabilities_on_the_test_rows(tmp_path):
    for label in clicks.LABELS:
        dataset = load_dataset(
            DataConfig(name="clicks", rows=60_000, seed=2, label=label, root=str(tmp_path))
        )
        chunks = list(clicks.generate(60_000, 2))
        probability = torch.from_numpy(np.concatenate([chunk.probabilities[label] for chunk in chunks]))
        want = binary_auroc(probability[dataset.test.ids], dataset.test.labels.long(), thresholds=None)
        assert dataset.best_auc == pytest.approx(want.item(), abs=1e-4)
        assert 0.7 < dataset.best_auc < 0.95


def test_a_model_of_the_single_columns_stays_below_the_best_auc(tmp_path):
    dataset = load_dataset(DataConfig(name="clicks", rows=200_000, root=str(tmp_path)))
    item = dataset.train.categorical[:, 1]
    sums = torch.zeros(dataset.cardinalities[1]).index_add_(0, item, dataset.train.labels)
    rate = (sums + 1) / (torch.bincount(item, minlength=dataset.cardinalities[1]) + 4)
    reached = binary_auroc(rate[dataset.test.categorical[:, 1]], dataset.test.labels.long()).item()
    assert 0.6 < reached < dataset.best_auc - 0.02


def test_the_splits_hold_each_row_once_and_are_8_1_1(tmp_path):
    dataset = load_dataset(DataConfig(name="clicks", rows=50_000, root=str(tmp_path)))
    ids = torch.cat([dataset.train.ids, dataset.validation.ids, dataset.test.ids])
    assert torch.equal(ids.sort().values, torch.arange(50_000))
    assert len(dataset.train) / 50_000 == pytest.approx(0.8, abs=0.01)
    assert len(dataset.test) / 50_000 == pytest.approx(0.1, abs=0.01)


def test_a_log_too_short_to_have_three_parts_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"data\.rows = 1") as caught:
        load_dataset(DataConfig(name="clicks", rows=1, root=str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_an_unknown_label_lists_the_three():
    with pytest.raises(
        UserError, match=r"'clik': clicks has click, favourite, purchase; the nearest name is 'click'"
    ):
        clicks.spec("clik")


def test_auc_of_the_truth_is_none_with_one_kind_of_label_and_counts_ties_half():
    counts = clicks.AucOfTruth()
    counts.add(np.array([0.2, 0.2]), np.array([1, 1]))
    assert counts.value() is None
    counts.add(np.array([0.2, 0.2]), np.array([0, 0]))
    assert counts.value() == 0.5


def test_values_have_the_types_that_the_card_states():
    table = log(10)
    assert pc.all(pc.greater(table.column("price"), 0)).as_py()
    assert table.schema.field("device").type.value_type == pa.string()


def test_log_larger_than_the_disk_is_refused_before_it_fills_it(tmp_path):
    config = DataConfig(name="clicks", rows=2**62, root=str(tmp_path))
    with pytest.raises(UserError, match=r"data\.rows = 4611686018427387904: needs [0-9.,]+ GB .* free"):
        load_dataset(config)
    assert not list(tmp_path.rglob("*.parquet"))
