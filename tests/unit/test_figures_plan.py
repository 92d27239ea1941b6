"""The figure of a plan names what was chosen, its limits and its frontier, in words and in ink."""

import pytest

from dtlab.cost.plan_job import Job, Space
from dtlab.cost.planner import plan
from dtlab.cost.presets import BERT_LARGE
from dtlab.figures.plan import plan_figure
from dtlab.figures.style import alt_text, png


@pytest.fixture(scope="module")
def found():
    job = Job(model=BERT_LARGE, samples=1e6, global_batch=256, deadline_seconds=8 * 3600.0, budget_usd=900.0)
    return plan(job, Space(instances=("g5.12xlarge", "p4d.24xlarge"), max_gpus=32))


def test_words_name_the_choice_the_limits_and_every_point_of_the_frontier(found):
    words = alt_text(plan_figure(found))
    assert f"{found.best.count} x {found.best.instance.sagemaker_name}" in words
    assert "Deadline: 8 h. Budget: $900." in words
    for one in found.frontier:
        assert f"{one.count} x {one.instance.sagemaker_name}" in words


def test_every_prediction_is_a_dot_and_the_limits_are_lines(found):
    (ax,) = plan_figure(found).axes
    dots = ax.lines[0]
    assert len(dots.get_xdata()) == found.predicted
    labels = [text.get_text() for text in ax.figure.legends[0].get_texts()]
    assert {"deadline, 8 h", "budget, $900", "frontier", "chosen"} <= set(labels)


def test_same_plan_gives_the_same_picture(found):
    assert png(plan_figure(found)) == png(plan_figure(found))
