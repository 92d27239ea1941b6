"""``torchrun ... -m dtlab.train FILE [flags]``: ``dtlab train`` under another launcher."""

import os
import sys

from dtlab.cli import main
from dtlab.ranks.worker import leave


def _train() -> int | None:
    return main(["train", *sys.argv[1:]])


if os.environ.get("TORCHELASTIC_ERROR_FILE"):
    from torch.distributed.elastic.multiprocessing.errors import record

    _train = record(_train)  # the agent's report then shows an exception with its traceback

code = _train()
if code:
    sys.exit(code)
leave(0)
