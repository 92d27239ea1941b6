"""What to change first when a model does not fit: chosen by the largest item of the bill (lesson 09). No
torch.

Recomputation saves activations and nothing else; sharding saves states; autocast leaves weights, gradients
and moments in fp32. So the first question is which item is the largest, and only remedies for that item come
first. Each is tried on the strategy and listed with the bytes that it saves on the fullest rank; one that
saves nothing is left out.

An embedding table has states and almost no activations: sparse gradients first, then one number a row in
place of two moments, then a smaller table, and sharding it by rows last, because that adds messages to every
step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dtlab.cost.memory import MemoryBill, state_bytes
from dtlab.cost.presets import Preset, preset
from dtlab.cost.programs import TORCH, Program
from dtlab.cost.rank_memory import fullest, rank_memory
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError

STATES = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class Remedy:
    """One change.

    - `item` of the bill that it is for; `change` in words; `costs` what is paid for it.
    - `saves`: bytes on the fullest rank.
    - `strategy`: the changed one; None where the change is to the model or its optimizer.
    """

    item: str
    change: str
    costs: str
    saves: int
    strategy: Strategy | None = None


_TABLE_CHANGES = (
    "sparse gradients of the table",
    "row-wise Adagrad: one number a row",
    "half the dimension or half the rows (hashing)",
    "deal the rows of the table out to the data-parallel ranks",
)
_Change = tuple[str, str, dict[str, object]]


def remedies(
    model: str | Preset, strategy: Strategy, *, program: Program = TORCH, seq_len: int | None = None
) -> list[Remedy]:
    """What saves memory on the fullest rank: remedies for the largest item first, then those for the others.

    Raises:
        UserError: as `rank_memory`.

    >>> remedies("Llama 7B", Strategy(dp_replicate=8))[0].change
    'share weights, gradients and optimizer out (zero = 3, FSDP)'
    >>> remedies("Llama 7B", Strategy(dp_shard=8, zero=3, micro_batch=4))[0].change
    'recompute every layer in the backward pass (recompute = "full")'
    """
    found = model if isinstance(model, Preset) else preset(model)
    _, bill = fullest(rank_memory(found, strategy, program=program, seq_len=seq_len))
    listed: list[Remedy] = []
    for item in by_size(bill):
        if item in ("parameters", "gradients", "optimizer") and found.table_parameters:
            listed += _for_tables(found, strategy, item)
        for change, costs, fields in _changes(item, found, strategy):
            try:
                changed = replace(strategy, **fields)  # type: ignore[arg-type]
                bills = rank_memory(found, changed, program=program, seq_len=seq_len)
            except UserError:
                continue  # this model cannot be cut like that
            saves = bill.total - fullest(bills)[1].total
            if saves > 0 and change not in [one.change for one in listed]:
                listed.append(Remedy(item, change, costs, saves, changed))
    first = by_size(bill)[0]
    return sorted(listed, key=lambda one: (not _same(one.item, first), _order(one), -one.saves))


def by_size(bill: MemoryBill) -> list[str]:
    """Items of a bill, largest first; parameters, gradients and optimizer count together as the states.

    >>> by_size(MemoryBill({"parameters": 2, "gradients": 2, "optimizer": 3, "activations": 6}))
    ['optimizer', 'parameters', 'gradients', 'activations']
    """
    states = sum(bill.items.get(name, 0) for name in STATES)
    weight = {name: (states if name in STATES else size, size) for name, size in bill.items.items()}
    return sorted((name for name in weight if name != "context"), key=lambda name: weight[name], reverse=True)


def _same(item: str, first: str) -> bool:
    return item == first or (item in STATES and first in STATES)


def _order(remedy: Remedy) -> int:
    """Changes to a table come first, in an order of their own, whatever saves more."""
    return len(_TABLE_CHANGES) if remedy.strategy else _TABLE_CHANGES.index(remedy.change)


def _changes(item: str, model: Preset, strategy: Strategy) -> Iterator[_Change]:
    if item in STATES:
        yield from _for_states(strategy)
    if item in ("activations", "logits"):
        yield from _for_activations(item, model, strategy)
    if item == "gradients" and strategy.zero == 3 and not strategy.sync_every_micro_batch:
        yield (
            "share gradients out after every micro-batch (sync_every_micro_batch = True)",
            "a reduce-scatter for each micro-batch",
            {"sync_every_micro_batch": True},
        )
    if item == "buffers" and not strategy.reshard_after_forward:
        yield (
            "drop gathered weights after the forward pass (reshard_after_forward = True)",
            "a second all-gather for each micro-batch",
            {"reshard_after_forward": True},
        )
    if item == "buffers" and strategy.fp32_gradients:
        yield "keep gradients in bf16 (fp32_gradients = False)", "sums in bf16", {"fp32_gradients": False}
    if item in ("buffers", "activations") and strategy.tp > 1 and not strategy.sequence_parallel:
        yield (
            "cut the sequence between matrices (sequence_parallel = True)",
            "nothing: as many bytes are sent",
            {"sequence_parallel": True},
        )


def _for_states(strategy: Strategy) -> Iterator[_Change]:
    ranks = strategy.dp
    if strategy.zero < 3 and ranks > 1:
        yield (
            "share weights, gradients and optimizer out (zero = 3, FSDP)",
            "1.5 times the bytes sent, for each micro-batch",
            {"zero": 3, "dp_shard": ranks, "dp_replicate": 1},
        )
        for zero, what in ((2, "gradients and optimizer"), (1, "the optimizer's state")):
            if strategy.zero < zero:
                costs = "an all-gather of the weights in each step"
                yield f"share {what} out (zero = {zero})", costs, {"zero": zero}
    if strategy.zero == 3 and strategy.dp_replicate > 1:
        yield (
            f"shard over all {ranks} data-parallel ranks",
            "all-gathers over more hosts",
            {"dp_shard": ranks, "dp_replicate": 1},
        )
    name = "dp_shard" if strategy.zero == 3 else "tp"
    costs = "twice the ranks" if strategy.zero == 3 else "twice the ranks, and it talks most"
    yield f"{name} = {2 * getattr(strategy, name)}", costs, {name: 2 * getattr(strategy, name)}
    yield f"pp = {2 * strategy.pp}", "twice the ranks, and a bubble", {"pp": 2 * strategy.pp}
    if strategy.precision in ("fp32", "amp") and strategy.zero < 3:
        yield (
            'weights and moments in bf16 (precision = "bf16")',
            "updates are rounded: check that the loss still falls",
            {"precision": "bf16"},
        )


def _for_activations(item: str, model: Preset, strategy: Strategy) -> Iterator[_Change]:
    if item == "activations" and model.layers and strategy.recompute != "full":
        yield (
            'recompute every layer in the backward pass (recompute = "full")',
            "about a third more computing",
            {"recompute": "full"},
        )
    if strategy.micro_batch > 1:
        # The smallest divisor, so that the global batch stays what it is.
        times = next(size for size in range(2, strategy.micro_batch + 1) if strategy.micro_batch % size == 0)
        part = strategy.micro_batch // times
        yield (
            f"micro_batch = {part}, accumulated {'twice' if times == 2 else f'{times} times'} as often",
            "smaller matrices, which cards are slower at",
            {"micro_batch": part, "num_micro_batches": times * strategy.num_micro_batches},
        )
    if strategy.precision == "fp32":
        yield 'compute in half precision (precision = "amp")', "fp16 needs a scaler", {"precision": "amp"}
    if strategy.pp > 1 and strategy.schedule == "gpipe":
        yield 'hold fewer micro-batches (schedule = "1f1b")', "nothing: the same bubble", {"schedule": "1f1b"}
    if item == "logits" and not strategy.compiled:
        yield "fuse the loss (compiled = True)", "time to compile", {"compiled": True}
    if item == "logits" and strategy.tp > 1 and not strategy.loss_parallel:
        yield "cut the logits (loss_parallel = True)", "small messages at the loss", {"loss_parallel": True}
    if model.layers:
        cut: dict[str, object] = {"tp": 2 * strategy.tp, "sequence_parallel": True}
        yield f"tp = {2 * strategy.tp} with sequence parallelism", "twice the ranks; talks most", cut


def _for_tables(model: Preset, strategy: Strategy, item: str) -> Iterator[Remedy]:
    """In the order to try them in; bytes of a rank that holds the whole table or its share of it."""
    each = state_bytes(strategy.precision, strategy.optimizer, fp32_gradients=strategy.fp32_gradients)
    sharing = {"gradients": 2, "optimizer": 1, "parameters": 3}
    shards = {
        name: (strategy.dp_shard if strategy.zero == 3 else strategy.dp_replicate)
        if strategy.zero >= zero
        else 1
        for name, zero in sharing.items()
    }
    rows, ranks = model.table_parameters, strategy.dp
    sparse, row_wise, smaller, dealt = _TABLE_CHANGES
    if item == "gradients":
        saves = rows * each.gradients // shards[item]
        yield Remedy(item, sparse, "an optimizer that takes them", saves)
    if item == "optimizer":
        saves = rows * each.optimizer // shards[item]
        yield Remedy(item, row_wise, "another optimizer to tune", saves)
    if item == "parameters":
        saves = sum(rows * getattr(each, name) // shards[name] for name in STATES) // 2
        yield Remedy(item, smaller, "quality: measure it", saves)
        if ranks > 1 and strategy.zero == 0:
            yield Remedy(item, dealt, "two all-to-alls a step", rows * each.total * (ranks - 1) // ranks)
