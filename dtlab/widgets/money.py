"""Explorers of lesson 14: price against time, scaling in dollars, and finish times on spot hosts."""

from __future__ import annotations

from dtlab.figures.money import finish_figure
from dtlab.figures.run_price import run_price_figure, scaling_price_figure
from dtlab.widgets.explorer import explorer


def plan_explorer() -> None:
    """Move the model, the samples, the deadline; see every configuration, the frontier and the choice.

    >>> plan_explorer()  # doctest: +ELLIPSIS
    [figure] ...
    """
    explorer(
        run_price_figure,
        deadline_hours=(1.0, 96.0, 1.0),
        model=["GPT 320M", "BERT-large", "Llama 7B"],
        million_samples=[1.0, 5.0, 20.0, 100.0],
        max_gpus=[4, 8, 16, 32, 64],
        kind=["sagemaker", "ec2", "spot"],
        goal=["cheapest", "fastest"],
    )


def scaling_explorer() -> None:
    """Choose a machine and a batch; see what more of them do to efficiency, hours and dollars.

    >>> scaling_explorer()  # doctest: +ELLIPSIS
    [figure] ml.g5.12xlarge: cheapest on ...
    """
    explorer(
        scaling_price_figure,
        max_machines=(1, 16),
        instance=["ml.g4dn.12xlarge", "ml.g5.12xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge"],
        model=["GPT 320M", "BERT-large"],
        global_batch=[64, 128, 256, 512, 1024, 4096],
        micro_batch=[1, 2, 4, 8, 16],
        precision=["fp32", "amp"],
    )


def spot_explorer() -> None:
    """Move interruptions, saves and the deadline; see how many runs are late and what they cost.

    >>> spot_explorer()  # doctest: +ELLIPSIS
    [figure] ...
    """
    explorer(
        finish_figure,
        interruptions_per_hour=(0.0, 0.5, 0.01),
        deadline_hours=(10.0, 60.0, 1.0),
        work_hours=(5.0, 50.0, 1.0),
        hosts=[1, 2, 4, 8],
        save_every_minutes=[5.0, 10.0, 15.0, 30.0, 60.0, 120.0],
        restart_minutes=(0.0, 30.0, 1.0),
        spot_fraction=(0.2, 1.0, 0.05),
    )
