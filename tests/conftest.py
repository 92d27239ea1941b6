"""Tests see the prices of the package, whatever price file the developer keeps at home."""

import os

os.environ["DTLAB_PRICES"] = ""
