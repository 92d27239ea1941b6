"""``torchrun ... -m dtlab.train FILE [flags]``: ``dtlab train`` under another launcher."""

import sys

from dtlab.cli import main

sys.exit(main(["train", *sys.argv[1:]]))
