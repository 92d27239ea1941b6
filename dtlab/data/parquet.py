"""placeholder"""
from __future__ import annotations
def source(config, root):
    raise NotImplementedError
