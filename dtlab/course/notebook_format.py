"""Imports nbformat without a second and a half of work that no notebook needs."""

from __future__ import annotations

import importlib
import sys

_PARSER = "rfc3987_syntax"


def import_nbformat() -> None:
    """Import nbformat, unless it is there. To be called before whatever else imports it: jupytext, nbclient.

    nbformat imports jsonschema, and that, where JupyterLab has brought it along, a package which builds a
    parser of international addresses (the format "iri") when it is imported. The schema of notebooks asks for
    no such format, and every process that reads or runs a notebook would pay for it.
    """
    hidden = _PARSER not in sys.modules
    if hidden:
        sys.modules[_PARSER] = None  # type: ignore[assignment]  # importing it raises ImportError now
    try:
        importlib.import_module("nbformat")
    finally:
        if hidden:
            del sys.modules[_PARSER]
