"""Sliders and menus around a pure figure function; the same figure, still, where nobody can move them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtlab.figures.style import show
from dtlab.widgets.frontend import has_front_end

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Control = tuple[float, float] | tuple[float, float, float] | list[Any] | dict[str, Any] | bool


def explorer(figure_function: Callable[..., Figure], **controls: Control) -> None:
    """Show `figure_function(**values)` with one control per keyword.

    A control is `(low, high)` or `(low, high, step)` for a slider, a list or `{label: value}` for a menu, a
    bool for a tick box. It starts at the default of that keyword, else at its first value. Without
    a front end (CI, print, plain Python) the figure at the starting values is shown. Raises TypeError for
    a keyword that the function does not take and ValueError for a control that is none of these.

    Example: `explorer(ring_figure, step=(0, 5), ranks=[2, 3, 4])`.
    """
    start = starting_values(figure_function, controls)
    if not has_front_end():
        show(figure_function(**start))
        return
    import ipywidgets
    from IPython.display import clear_output, display

    widgets = {name: _widget(name, control, start[name]) for name, control in controls.items()}
    out = ipywidgets.Output()

    def draw(_change: Any = None) -> None:
        with out:
            clear_output(wait=True)
            show(figure_function(**{name: widget.value for name, widget in widgets.items()}))

    for widget in widgets.values():
        widget.observe(draw, names="value")
    display(ipywidgets.VBox([ipywidgets.HBox(list(widgets.values()), layout={"flex_flow": "row wrap"}), out]))
    draw()


_UNITS = {"gb": "GB", "gib": "GiB", "mib": "MiB", "us": "(us)", "gpus": "GPUs", "ddp": "DDP", "usd": "USD"}


def label_of(name: str) -> str:
    """A keyword as a reader writes it, with its unit.

    >>> label_of("write_gb_per_second"), label_of("max_gpus"), label_of("latency_us")
    ('write GB per second', 'max GPUs', 'latency (us)')
    """
    return " ".join(_UNITS.get(word, word) for word in name.split("_"))


def starting_values(figure_function: Callable[..., Figure], controls: dict[str, Control]) -> dict[str, Any]:
    """The values that the static figure is drawn with: defaults of the function, else first values."""
    parameters = inspect.signature(figure_function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    start = {}
    for name, control in controls.items():
        if name not in parameters and not takes_any:
            raise TypeError(f"control {name!r}: {figure_function.__name__}() has no such argument")
        values = _values(name, control)
        default = parameters[name].default if name in parameters else inspect.Parameter.empty
        inside = (
            values[0] <= default <= values[1] if isinstance(control, tuple) and _is_number(default) else False
        )
        start[name] = (
            default if inside or (not isinstance(control, tuple) and default in values) else values[0]
        )
    return start


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _values(name: str, control: Control) -> list[Any]:
    if isinstance(control, bool):
        return [control, not control]
    if isinstance(control, tuple) and len(control) in (2, 3) and all(map(_is_number, control)):
        if control[0] > control[1]:
            raise ValueError(f"control {name!r}: {control} runs from high to low")
        return list(control)
    if isinstance(control, list | dict) and control:
        return list(control.values()) if isinstance(control, dict) else control
    raise ValueError(f"control {name!r}: give (low, high[, step]), a list, a dict or a bool, not {control!r}")


def _widget(name: str, control: Control, start: Any) -> Any:
    import ipywidgets

    label = {"description": label_of(name), "style": {"description_width": "initial"}}
    if isinstance(control, bool):
        return ipywidgets.Checkbox(value=start, **label)
    if isinstance(control, tuple):
        whole = all(isinstance(v, int) for v in control)
        kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
        step = control[2] if len(control) == 3 else 1 if whole else (control[1] - control[0]) / 100
        return kind(value=start, min=control[0], max=control[1], step=step, **label)
    options = list(control.items()) if isinstance(control, dict) else control
    return ipywidgets.Dropdown(options=options, value=start, **label)
