"""Peak bytes of every rank of a strategy, item by item (lesson 09). No torch.

With T = micro_batch x seq_len tokens, h hidden, f FFN width, a heads, k key-value heads, V vocabulary, e
bytes an element, t tensor-parallel ranks, N parameters of the rank:

- states: N times bytes a parameter (`state_bytes`), each divided by the ranks that share it out: optimizer
  from ZeRO-1 on, gradients from ZeRO-2, parameters with ZeRO-3 / FSDP (Rajbhandari et al., arXiv 1910.02054).
  FSDP without sync after every micro-batch keeps **whole** gradients, in fp32: 4N bytes however many ranks.
  Torch's pipelines do so, and keep weights gathered too.
- activations: in `layer_bytes`, times the blocks of the stage and the micro-batches in flight.
- logits: 12*T*V/t on the last stage (8 compiled): a cast to fp32, log-probabilities and their gradient.
- buffers: what is neither state nor saved: gathered weights of two FSDP units, copies in DDP's buckets,
  gathered activations of tensor parallelism, outputs that wait for the communication stream, and the
  gradients of one layer's activations.

The peak is at the loss, or in the backward pass where there are no logits. What is predicted is what torch
has allocated; `context_gib` comes on top for what nvidia-smi shows. How far measured runs lie from it is
printed by `python -m benchmarks.accuracy`.
"""

from dtlab.cost.activations import activation_bytes
from dtlab.cost.layer_bytes import LayerBytes, layer_bytes
from dtlab.cost.memory import MemoryBill, StateBytes, state_bytes
from dtlab.cost.pipeline import live_activations
from dtlab.cost.presets import Preset, preset
from dtlab.cost.programs import TORCH, Program
from dtlab.cost.stages import Stage, candidates, parts, stages
from dtlab.cost.strategy import Strategy
from dtlab.cost.units import GIB

ITEMS = ("parameters", "gradients", "optimizer", "cast copies", "activations", "logits", "buffers")
_STATES: dict[tuple[str, str, bool], StateBytes] = {}


def rank_memory(
    model: str | Preset,
    strategy: Strategy,
    *,
    program: Program = TORCH,
    seq_len: int | None = None,
    context_gib: float = 0.0,
) -> list[MemoryBill]:
    """What each rank of a pipeline needs; one bill without pipeline, since all other ranks are alike.

    Args:
        program: habits of the training program; this package's and torch's own by default.
        seq_len: tokens of a sequence; the preset's own by default.
        context_gib: CUDA context, to compare with nvidia-smi: about 1.3 on a V100, 1 on an A100 or H100.

    Raises:
        UserError: an unknown preset, or one that cannot be cut like this (`Strategy.check`).

    >>> one = Strategy(dp_shard=8, zero=3, micro_batch=1)
    >>> (bill,) = rank_memory("Llama 7B", one)
    >>> bill.largest, round(bill.total / 1e9, 1)
    ('activations', 36.5)
    >>> bills = rank_memory("Llama 7B", Strategy(pp=4, num_micro_batches=8, recompute="full"))
    >>> [round(bill.total / 1e9, 1) for bill in bills]
    [30.1, 27.7, 27.4, 30.8]
    """
    found = model if isinstance(model, Preset) else preset(model)
    strategy.check(found)
    layer = layer_bytes(found, strategy, program, seq_len) if found.layers else None
    unknown = (f"activations: {found.note}",) if found.family == "unstated" else ()
    bills = []
    for stage in stages(found, strategy.pp, strategy.tp, program):
        sizes = _items(found, strategy, program, stage, layer)
        items = {name: round(size) for name, size in zip(ITEMS, sizes, strict=True)}
        kept = ("parameters", "gradients", "optimizer", "activations")
        items = {name: size for name, size in items.items() if size or (name in kept and not unknown)}
        if context_gib:
            items["context"] = round(context_gib * GIB)
        bills.append(MemoryBill(items, unknown))
    return bills


def fullest(bills: list[MemoryBill]) -> tuple[int, MemoryBill]:
    """The stage that needs most, and its bill: on it depends whether the strategy fits.

    >>> stage, bill = fullest(rank_memory("Llama 7B", Strategy(pp=4, num_micro_batches=8)))
    >>> stage, bill.verdict(80 * 2**30)
    (0, 'fits')
    """
    stage = max(range(len(bills)), key=lambda at: bills[at].total)
    return stage, bills[stage]


def peak_bytes(
    model: Preset, strategy: Strategy, program: Program = TORCH, seq_len: int | None = None
) -> float:
    """Bytes of the fullest rank, without bills: some 10 microseconds, for a planner that tries thousands.

    The strategy is taken as checked (`Strategy.check`).

    >>> from dtlab.cost.presets import LLAMA_7B
    >>> strategy = Strategy(pp=4, num_micro_batches=8)
    >>> peak_bytes(LLAMA_7B, strategy) == max(bill.total for bill in rank_memory("Llama 7B", strategy))
    True
    """
    layer = layer_bytes(model, strategy, program, seq_len) if model.layers else None
    if strategy.pp == 1:
        return sum(_items(model, strategy, program, stages(model, 1, strategy.tp, program)[0], layer))
    return max(
        sum(_items(model, strategy, program, stage, layer))
        for stage in candidates(model, strategy.pp, strategy.tp, program)
    )


def _items(
    model: Preset, strategy: Strategy, program: Program, stage: Stage, layer: LayerBytes | None
) -> tuple[float, float, float, float, float, float, float]:
    """The bytes of one rank in the order of `ITEMS`."""
    n, zero, m = stage.num_parameters, strategy.zero, strategy.num_micro_batches
    key = (strategy.precision, strategy.optimizer, strategy.fp32_gradients)
    each = _STATES.get(key)
    if each is None:
        each = _STATES[key] = state_bytes(key[0], key[1], fp32_gradients=key[2])
    computes_in = 4 if strategy.precision == "fp32" else 2
    shards = strategy.dp_shard if zero == 3 else strategy.dp_replicate
    parameters = n * each.parameters / (shards if zero == 3 else 1)
    optimizer = n * each.optimizer / (shards if zero else 1)
    keeps = zero == 3 and m > 1 and strategy.pp > 1 and program.pipeline_keeps
    whole_gradients = keeps or (zero == 3 and m > 1 and not strategy.sync_every_micro_batch)
    if whole_gradients:
        gradients = n * (4 if strategy.fp32_reduce or computes_in == 4 else computes_in)
    else:
        gradients = n * each.gradients / (shards if zero >= 2 else 1)
    copies = buffers = in_backward = 0.0
    if zero == 3:
        unit = parts(model, strategy.tp, program)
        if shards > 1 or computes_in != each.parameters:
            resharded = strategy.reshard_after_forward and not keeps
            buffers = computes_in * (min(unit.units, n) if resharded else n)
        if not whole_gradients:
            in_backward = min(unit.unit, n) * (computes_in + (4 if strategy.fp32_reduce else computes_in))
    else:
        if strategy.precision == "amp":
            # Looking up an embedding is not cast by autocast: a table keeps its fp32 rows and gets no copy.
            copies = 2 * (n - model.table_parameters)
        if program.ddp_buckets and strategy.dp_replicate > 1 and zero < 2:
            buffers = n * (4 if each.parameters == 4 else 2)
        if strategy.fp32_gradients and each.parameters == 2 and m > 1:
            in_backward = 2 * n  # bf16, before they are added to those in fp32
    if layer is None:
        kept = _flat_activations(model, strategy)
        return parameters, gradients, optimizer, copies, kept, 0.0, buffers + in_backward
    live = _in_flight(strategy, stage.rank)
    blocks = stage.layers * live / strategy.stages_per_rank
    activations = layer.kept * blocks
    if layer.once:  # never more than keeping everything, which a stage of no or one block comes to
        activations = min(activations + layer.once, layer.once * blocks)
    if strategy.pp > 1 and not stage.last:
        activations += layer.stream * live  # what was sent to the next stage
    logits = 0.0
    if stage.last:
        activations += 2 * layer.stream  # input and output of the last norm
        logits = layer.logits * (program.logit_bytes if not strategy.compiled else 8)
        logits += 4 * layer.logits * (live - 1) if strategy.pp > 1 else 0.0
    buffers += layer.gradients
    if in_backward > logits:
        buffers += in_backward - logits
    if strategy.tp > 1:
        buffers += 3 * layer.whole if strategy.sequence_parallel else layer.whole
        if program.layers_ahead and strategy.sequence_parallel:
            buffers += layer.whole * _waiting_outputs(strategy, program, stage)
    return parameters, gradients, optimizer, copies, activations, logits, buffers


def _in_flight(strategy: Strategy, rank: int) -> int:
    """Micro-batches whose activations a rank holds, in units of one of its stages."""
    if strategy.pp == 1:
        return 1
    if strategy.schedule == "1f1b":
        return min(strategy.num_micro_batches, strategy.pp - rank)
    return live_activations(
        strategy.schedule, strategy.pp, strategy.num_micro_batches, rank, strategy.stages_per_rank
    )


def _waiting_outputs(strategy: Strategy, program: Program, stage: Stage) -> float:
    """Whole outputs of row-parallel matrices, two a layer, that the communication stream still holds."""
    if strategy.pp > 1:
        return 2 * program.layers_ahead * program.lead_share
    reached = 2 * min(program.layers_ahead, stage.layers)
    return reached * (program.lead_share if strategy.num_micro_batches == 1 else 1)


def _flat_activations(model: Preset, strategy: Strategy) -> float:
    element = 4 if strategy.precision == "fp32" else 2
    if model.family == "unstated":
        return 0.0
    if model.family == "counted":
        return float(strategy.micro_batch * model.sample_bytes * element // 4)
    return float(activation_bytes(model, strategy.micro_batch, element_bytes=2 if element == 2 else 4))
