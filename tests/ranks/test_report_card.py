"""The report card of lesson 16 passes a sound trainer, and catches and names each planted fault alone."""

from dataclasses import replace

import pytest

from dtlab import Generators, GlobalBatchSampler
from dtlab.course.capstone import (
    FAULTY,
    GLOBAL_BATCH,
    Recipe,
    clicks,
    mean_of_ranks,
    same_rows,
    weights_only,
    whole_tables,
)
from dtlab.course.capstone_plan import FAULTY_PLAN, JOB, plan_card
from dtlab.course.report_card import card_of, measure
from dtlab.parallel.ddp import data_parallel
from dtlab.parallel.embedding import shard_embeddings
from dtlab.train.metrics import evaluate
from dtlab.train.whole_state import WholeState


def order(w, rows, seed):
    return GlobalBatchSampler(rows, GLOBAL_BATCH, seed=seed)


def share(w, model):
    return data_parallel(shard_embeddings(model, "row_wise"), w)


def kept(run):
    state = WholeState(run.model, run.optimizer)
    return {"state": state, "sampler": run.sampler, "precision": run.precision, "generators": Generators()}


def auc(w, model, table):
    return evaluate(model, table).auc


SOUND = Recipe(order, share, kept, auc)


@pytest.fixture(scope="module")
def data():
    return clicks(5_000)


@pytest.fixture(scope="module")
def sound(data):
    return measure(SOUND, data)


def test_a_sound_trainer_passes_every_line(sound, data):
    card = card_of(sound, least_auc=0.5)
    assert card.passed, card.text()
    assert sound.rows.once
    assert len(sound.rows.ids) == len(data.train)
    assert sound.missing == []
    assert (sound.batch, sound.orders) == (GLOBAL_BATCH, 3)


@pytest.mark.parametrize(
    ("part", "fault"),
    [("order", same_rows), ("share", whole_tables), ("kept", weights_only), ("auc", mean_of_ranks)],
)
def test_each_fault_alone_is_caught_and_named(data, part, fault):
    card = card_of(measure(replace(SOUND, **{part: fault}), data))
    assert card.faults == [part], card.text()
    assert all(line.look for line in card.failed)


def test_the_trainer_that_was_left_behind_fails_in_all_four_and_not_in_its_auc(data, sound):
    found = measure(FAULTY, data)
    card = card_of(found, least_auc=sound.auc - 0.01)
    assert set(card.faults) == {"order", "share", "kept", "auc"}
    assert "AUC on the test rows" not in {line.name for line in card.failed}
    assert found.missing == ["generators", "optimizer", "sampler"]


def test_what_a_recipe_says_of_itself_does_not_count(sound):
    claimed = replace(sound, said=[0.99, 0.99])
    assert card_of(claimed, least_auc=0.5).faults == ["auc"]
    assert card_of(sound, least_auc=0.99).faults == ["recipe"]
    assert card_of(replace(sound, bytes=0)).faults == ["share"]  # who sends nothing does not share


def test_a_plan_is_priced_and_judged_by_the_card_and_not_by_its_own_words():
    found = plan_card(FAULTY_PLAN)
    assert len(found.failed) == 5
    good = {
        "instance": "ml.p4d.24xlarge",
        "hosts": 1,
        "precision": "bf16",
        "seconds": 25_000.0,
        "cents": 17_536,
    }
    assert plan_card(good).passed
    assert [line.name for line in plan_card(good | {"cents": 1}).failed] == ["the bill that the plan names"]
    tight = JOB._replace(budget_cents=17_535, deadline_seconds=24_999.0)
    assert [line.name for line in plan_card(good, tight).failed] == ["in time", "within the budget"]
    with pytest.raises(ValueError, match="not among the machines"):
        plan_card(good | {"precision": "fp64"})
