"""Is there somebody in front of a notebook who could move a slider?"""

from __future__ import annotations

import importlib.util
import sys

from dtlab.figures.style import is_static


def has_front_end() -> bool:
    """True in a Jupyter kernel with ipywidgets, unless the notebook is being built or tested.

    Then `dtlab.figures.style.is_static` asks for still figures.
    """
    if is_static():
        return False
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None and importlib.util.find_spec("ipywidgets") is not None
