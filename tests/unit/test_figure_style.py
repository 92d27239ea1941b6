"""House style of figures, and explorers that fall back to the same figure, still."""

import subprocess
import sys
from itertools import combinations

import pytest

from dtlab.figures.style import PALETTE, alt_text, new_figure, png, rank_style, show
from dtlab.widgets import explorer as explorer_module
from dtlab.widgets.explorer import explorer, starting_values


def bars(ranks=3, kind="ring"):
    fig, ax = new_figure(
        f"{kind} of {ranks}", alt=f"{ranks} equal bars", xlabel="rank", ylabel="bytes sent (MB)"
    )
    for rank in range(ranks):
        ax.bar(rank, 1, **rank_style(rank))
    return fig


def test_a_figure_carries_title_units_and_alt_text():
    fig = bars()
    assert alt_text(fig) == "ring of 3. 3 equal bars"
    assert fig.axes[0].get_ylabel() == "bytes sent (MB)"
    with pytest.raises(ValueError, match="alt is empty"):
        new_figure("title", alt=" ")


def test_the_same_figure_gives_the_same_bytes_and_pyplot_keeps_none():
    import matplotlib.pyplot as plt

    assert png(bars()) == png(bars())
    assert plt.get_fignums() == []


def test_ranks_differ_by_hatch_as_well_as_by_colour():
    styles = [(rank_style(r)["color"], rank_style(r)["hatch"]) for r in range(7)]
    for (colour, hatch), (other_colour, other_hatch) in combinations(styles, 2):
        assert colour != other_colour
        assert hatch != other_hatch


# Machado, Oliveira, Fernandes, IEEE TVCG 15(6), 2009, table 1: full severity, on linear RGB.
DEFICIENCIES = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colours_stay_apart_for_readers_with_a_colour_deficiency(deficiency):
    import numpy as np
    from matplotlib.colors import to_rgb

    seen = [
        np.clip(np.array(DEFICIENCIES[deficiency]) @ np.array(to_rgb(c)) ** 2.2, 0, 1) ** (1 / 2.2)
        for c in PALETTE
    ]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 0.08


def test_outside_a_notebook_the_alt_text_is_printed(capsys):
    show(bars())
    assert capsys.readouterr().out == "[figure] ring of 3. 3 equal bars\n"


def test_an_explorer_without_front_end_shows_the_figure_at_its_start(capsys):
    explorer(bars, ranks=(2, 8), kind=["ring", "tree"])
    assert capsys.readouterr().out == "[figure] ring of 3. 3 equal bars\n"


def test_starting_values_are_defaults_where_they_fit_and_first_values_elsewhere():
    assert starting_values(bars, {"ranks": (4, 8), "kind": ["tree", "ring"]}) == {"ranks": 4, "kind": "ring"}
    assert starting_values(bars, {"kind": {"Tree": "tree"}}) == {"kind": "tree"}


@pytest.mark.parametrize(
    ("controls", "error"),
    [
        ({"rank": (1, 2)}, TypeError),
        ({"ranks": (8, 2)}, ValueError),
        ({"ranks": []}, ValueError),
        ({"ranks": "x"}, ValueError),
    ],
)
def test_a_control_that_fits_nothing_is_refused(controls, error):
    with pytest.raises(error, match=r"control 'ranks?'"):
        explorer(bars, **controls)


def test_with_a_front_end_moving_a_slider_draws_the_figure_at_its_value(monkeypatch):
    shown, drawn = [], []
    monkeypatch.setattr(explorer_module, "has_front_end", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda *objects: shown.extend(objects))
    monkeypatch.setattr(explorer_module, "show", lambda fig: drawn.append(alt_text(fig)))
    explorer(bars, ranks=(2, 8), kind=["ring", "tree"])
    slider, menu = shown[0].children[0].children
    slider.value = 5
    menu.value = "tree"
    assert drawn == ["ring of 3. 3 equal bars", "ring of 5. 5 equal bars", "tree of 5. 5 equal bars"]


def test_style_and_explorer_import_neither_matplotlib_nor_ipywidgets():
    code = (
        "import sys, dtlab.figures.style, dtlab.widgets.explorer;"
        "print({'matplotlib', 'ipywidgets', 'torch'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


class Shell:
    """Stands for IPython's shell: style.show only asks whether there is one."""


@pytest.mark.parametrize("static", ["0", "1"])
def test_in_a_notebook_the_words_of_the_figure_reach_every_reader(monkeypatch, static):
    import IPython

    shown = []
    monkeypatch.setattr(IPython, "get_ipython", Shell)
    monkeypatch.setattr("IPython.display.display", lambda data, **more: shown.append((data, more)))
    monkeypatch.setenv("DTLAB_STATIC", static)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    show(bars())
    html = "".join(data.get("text/html", "") for data, _ in shown)
    assert "ring of 3. 3 equal bars" in html
    assert all(data["text/plain"] == "[figure] ring of 3. 3 equal bars" for data, _ in shown)
    if static == "1":
        assert shown[0][1]["metadata"] == {"image/png": {"alt": "ring of 3. 3 equal bars"}}
        assert shown[0][0]["image/png"].startswith("iVBOR")
    else:
        assert html.startswith('<img alt="ring of 3. 3 equal bars" src="data:image/png;base64,iVBOR')
