"""Choose a model, ranks and a card; see what each way to share the model out leaves on a rank (lesson 14)."""

from __future__ import annotations

from dtlab.figures.rank_memory import memory_by_ranks_figure
from dtlab.widgets.explorer import explorer


def strategy_memory_explorer() -> None:
    """Show `memory_by_ranks_figure` with a slider of the micro-batch and menus.

    >>> strategy_memory_explorer()  # doctest: +ELLIPSIS
    [figure] Llama 7B: ...
    """
    explorer(
        memory_by_ranks_figure,
        micro_batch=(1, 16),
        model=["Llama 7B", "Llama 70B", "GPT 320M", "GPT-3 175B"],
        ranks=[2, 4, 8],
        seq_len=[512, 1024, 2048, 4096, 8192],
        card=["T4 16 GiB", "A10G 22.4 GiB", "A100 40 GiB", "A100 80 GiB", "H200 141 GiB"],
        precision=["fp32", "amp", "bf16-mixed", "bf16"],
    )
