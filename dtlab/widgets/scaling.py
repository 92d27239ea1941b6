"""Explorers of lesson 01: the memory of a model, and Amdahl's curve beside measured points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtlab.cost.presets import PRESETS
from dtlab.figures.memory import preset_memory_figure
from dtlab.figures.scaling import Points, amdahl_figure
from dtlab.widgets.explorer import explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def memory_explorer() -> None:
    """Choose a preset, a micro-batch and how it is trained; see its bytes by item against cards."""
    explorer(
        preset_memory_figure,
        model=list(PRESETS),
        micro_batch=[1, 2, 4, 8, 16, 32, 64, 128, 256],
        precision=["fp32", "amp", "bf16-mixed"],
        optimizer=["adam", "momentum", "sgd"],
        recompute=False,
        ddp=False,
    )


def amdahl_explorer(serial_share: float, measured: Points) -> None:
    """Move the serial share and see whether the curve passes through the measured points."""
    start = round(serial_share, 2)

    def amdahl(serial_share: float = start) -> Figure:
        return amdahl_figure(serial_share, measured)

    explorer(amdahl, serial_share=(0.0, 1.0, 0.01))
