"""In a real browser: an explorer's slider moves the number beside it and the figure below it."""

import pytest

pytest.importorskip("playwright", reason="playwright comes with the extra dev")

# A busy machine may take long to start a kernel that imports torch.
PATIENCE_MS = 120_000

EXPLORERS = {
    "amdahl": "from dtlab.widgets.scaling import amdahl_explorer\namdahl_explorer(0.1, {1: 1.0, 2: 1.7})",
    "pipeline": "from dtlab.widgets.pipeline import schedule_explorer\nschedule_explorer()",
    "interval": "from dtlab.widgets.interruptions import interval_explorer\ninterval_explorer()",
    "plan": "from dtlab.widgets.money import plan_explorer\nplan_explorer()",
}


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(PATIENCE_MS)
    yield page
    page.close()


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_slider_moves_the_number_and_the_figure(lab, page, name, tmp_path):
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(lab.address([EXPLORERS[name]], f"{name}.ipynb"))
    page.get_by_text("| Idle").wait_for()  # a cell that runs before its kernel is there is forgotten
    page.locator(".jp-Notebook .jp-CodeCell").first.click()
    page.keyboard.press("Shift+Enter")

    figure = page.locator(".jp-OutputArea img").first
    figure.wait_for()
    before = figure.get_attribute("src"), figure.get_attribute("alt")
    slider = page.locator(".widget-slider").first
    readout = slider.locator(".widget-readout")
    number = readout.inner_text()
    slider.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")

    page.wait_for_function(
        "before => { const found = document.querySelector('.jp-OutputArea img');"
        " return found && found.src !== before; }",
        arg=before[0],
    )
    after = page.locator(".jp-OutputArea img").first
    page.screenshot(path=tmp_path / f"{name}.png")
    assert readout.inner_text() != number
    assert after.get_attribute("alt") != before[1], "the words for the figure tell the new values too"
    assert errors == []
