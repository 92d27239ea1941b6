"""Bad input under torchrun: one line from rank 0, and the same line in the agent's own report.

torchrun's agent reports a failed rank with a box of its own. It holds the rank's message when the rank has
left it in the file that the agent names, and a pointer to torch's documentation otherwise. Every rank sees
the same bad input at about the same time; the first to leave makes the agent end the others, and the agent
takes the earliest message for the root cause. So rank 0 goes first, and another rank speaks for itself only
when rank 0 had nothing to say.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

__all__ = ["tell_agent", "tell_agent_after_rank_0"]

FILE = "TORCHELASTIC_ERROR_FILE"
_RANK_0_FIRST = 10.0


def tell_agent(line: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Leave ``line`` for torchrun's report; False where no agent asked for it.

    >>> tell_agent("optim.lr = -1: must be positive", {})
    False
    """
    path = environ.get(FILE)
    if not path:
        return False
    # What torch's own ErrorHandler writes; without a py_callstack the agent shows the message.
    told = {"message": {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}}
    with suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump(told, file)
    return True


def tell_agent_after_rank_0(
    line: str, environ: Mapping[str, str] = os.environ, *, wait: Callable[[float], None] = time.sleep
) -> bool:
    """:func:`tell_agent`; other ranks than 0 first wait for the agent to end them because rank 0 has left."""
    if environ.get(FILE) and environ.get("RANK", "0") != "0":
        wait(_RANK_0_FIRST)
    return tell_agent(line, environ)
