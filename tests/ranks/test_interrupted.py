"""The run of lesson 13: what a resume may not forget, what a restart redoes, a host that gives notice."""

import urllib.error
import urllib.request

import pytest
import torch

import dtlab
from dtlab.course import interrupted
from dtlab.course.interrupted import PARTS, ROWS, TOTAL, WORK, Host, Run, Strike, rows, without_each
from dtlab.diagnose.work import read_attempts, totals


def whole(data, folder, strike=None):
    with dtlab.world() as w:
        run = Run(w, data, folder, strike=strike)
        while run.steps < TOTAL:
            run.step()
        return {"weights": run.weights(), "seen": run.seen}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return dtlab.launch(whole, 2, rows(), tmp_path_factory.mktemp("whole"), timeout=90, echo=False)


def test_three_epochs_see_every_row_three_times(uninterrupted):
    seen = [row for rank in uninterrupted for step in rank["seen"] for row in step]
    assert len(seen) == 3 * ROWS
    assert len(set(seen)) == ROWS


def test_a_resume_that_forgets_one_part_is_another_model_and_one_that_forgets_none_is_not(
    uninterrupted, tmp_path
):
    def compare(data, folder, right):
        with dtlab.world() as w:
            return {name: run.weights().equal(right) for name, run in without_each(w, data, folder).items()}

    right = uninterrupted[0]["weights"]
    both = dtlab.launch(compare, 2, rows(), tmp_path, right, timeout=90, echo=False)
    assert both[0] == both[1] == {"nothing": True, **dict.fromkeys(PARTS, False)}


def test_a_strike_comes_once_and_a_restart_without_checkpoint_begins_anew(uninterrupted, tmp_path):
    strike = Strike(step=5, rank=1)
    results = dtlab.launch(whole, 2, rows(), tmp_path, strike, max_restarts=1, timeout=90, echo=False)
    assert results.restarts == 1
    assert torch.equal(results[0]["weights"], uninterrupted[0]["weights"])
    work = totals(read_attempts(tmp_path / WORK), TOTAL)
    assert work == {"useful": TOTAL - 5, "redone": 5, "lost": 5}


def test_a_host_gives_notice_only_when_it_has_decided_and_counts_who_asks():
    with Host() as host:
        ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(host.url, timeout=30)
        host.give_notice()
        with ask(host.url, timeout=30) as answer:
            assert answer.status == 200
        assert host.asked == 2


def test_an_epoch_is_twenty_steps():
    assert len(rows().table) == ROWS == 20 * interrupted.GLOBAL_BATCH
