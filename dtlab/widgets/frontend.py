"""Is there somebody in front of a notebook who could move a slider?"""

from __future__ import annotations

import importlib.util
import os
import sys


def has_front_end() -> bool:
    """True in a Jupyter kernel with ipywidgets, unless the notebook is being built or tested.

    DTLAB_STATIC=1 (set while building and testing) asks for static figures; a kernel that was started under
    pytest inherits PYTEST_CURRENT_TEST.
    """
    if os.environ.get("DTLAB_STATIC") == "1" or "PYTEST_CURRENT_TEST" in os.environ:
        return False
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None and importlib.util.find_spec("ipywidgets") is not None
