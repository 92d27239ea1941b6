"""Tests see the prices of the package, not a file that the developer keeps at home, and share the cores."""

import gc
import os

from dtlab.course.notebook_format import import_nbformat

os.environ["DTLAB_PRICES"] = ""
# Threads of OpenMP that wait for the next operation sleep: spinning, they take the cores of other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import_nbformat()


def pytest_collection():
    """Thousands of tests and all that they import are made here and stay: nothing for the collector."""
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
