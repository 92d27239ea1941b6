"""Parts of a model on each rank of a pipeline: blocks, embedding, head, and their parameters (lesson 09).

- Everything is counted by formula, divided by the tensor-parallel ranks: matrices are cut, norms are whole;
  embedding and head as the program says.
- A tied matrix is stored by both ends of a pipeline.
- Cut by "parameters", the heaviest stage is as light as can be (`balanced_cuts`). Cut by "compute", each
  stage takes blocks until it is past its share of the multiplications, where the embedding counts nothing.
  Cut by "layers", the first stages get one more where the stages do not divide the layers.

Answers are cached: a planner asks for the same model thousands of times.
"""

from dataclasses import dataclass
from functools import lru_cache

from dtlab.cost.pipeline import balanced_cuts
from dtlab.cost.presets import Preset
from dtlab.cost.programs import TORCH, Program


@dataclass(frozen=True)
class Stage:
    """What one rank of a pipeline holds. `num_parameters` is what is stored on one tensor-parallel rank."""

    rank: int
    layers: int
    first: bool
    last: bool
    num_parameters: float


@dataclass(frozen=True)
class Parts:
    """Parameters of embedding, one block, and head, on one tensor-parallel rank.

    `shared` is counted in both ends; `units` are the two largest units of FSDP, of which `unit` is the
    larger.
    """

    embedding: float
    layer: float
    head: float
    shared: float
    unit: float
    units: float


@lru_cache(maxsize=4096)
def parts(preset: Preset, tp: int = 1, program: Program = TORCH) -> Parts:
    """Parameters of the parts of a transformer; a model without equal blocks is one part.

    >>> from dtlab.cost.presets import LLAMA_7B
    >>> one = parts(LLAMA_7B)
    >>> one.embedding, one.layer, one.head
    (131072000.0, 202383360.0, 131076096.0)
    """
    if not preset.layers:
        whole_model = float(preset.parameters)
        return Parts(whole_model, 0.0, 0.0, 0.0, whole_model, whole_model)
    h = preset.hidden
    table = preset.vocab * h
    embedding: float
    head: float
    shared: float
    if preset.family == "bert":
        embedding, head, shared = table + (preset.seq_len + 2) * h + 2 * h, h * h + h, 0
        whole = 6 * h
    elif preset.family == "llama":
        embedding, head, shared = table, table + h, table if preset.tied else 0
        whole = 2 * h
    else:
        embedding, head, shared = table + preset.seq_len * h, table + h, table if preset.tied else 0
        whole = 2 * h
    layer, rest = divmod(preset.parameters + shared - embedding - head, preset.layers)  # whole numbers
    if rest and preset.family == "gpt":  # LayerNorm has biases: one more number for each of the head's norm
        head, whole = head + h, 6 * h
        layer = (preset.parameters + shared - embedding - head) // preset.layers
    if program.cuts_embedding:
        embedding -= table - table / tp
    if program.cuts_head:
        matrix = h * h if preset.family == "bert" else table
        head -= matrix - matrix / tp
    cut_layer = (layer - whole) / tp + whole
    shared = shared / tp if program.cuts_embedding and program.cuts_head else shared
    roots = [embedding + head - shared] if program.root_unit else [embedding, head]
    larger, other = sorted([*roots, *[cut_layer] * min(2, preset.layers)], reverse=True)[:2]
    return Parts(embedding, cut_layer, head, shared, larger, larger + other)


@lru_cache(maxsize=4096)
def stages(preset: Preset, pp: int = 1, tp: int = 1, program: Program = TORCH) -> tuple[Stage, ...]:
    """The ranks of a pipeline, first to last; one that holds everything at pp = 1.

    A rank with several stages (interleaved) holds as much as one with a single stage.

    >>> from dtlab.cost.presets import LLAMA_7B
    >>> [stage.layers for stage in stages(LLAMA_7B, 4)]
    [8, 8, 8, 8]
    """
    unit = parts(preset, tp, program)
    if pp == 1:
        total = unit.embedding + preset.layers * unit.layer + unit.head - unit.shared
        return (Stage(0, preset.layers, True, True, total),)
    if program.cut == "compute":
        layers = _layers_by_compute(preset, pp)
    elif program.cut == "layers":
        layers = [preset.layers // pp + (rank < preset.layers % pp) for rank in range(pp)]
    else:
        weights = [unit.embedding, *[unit.layer] * preset.layers, unit.head]
        layers = [end - start for start, end in balanced_cuts(weights, pp)]
        layers[0] -= 1
        layers[-1] -= 1
    return tuple(
        Stage(
            rank,
            count,
            rank == 0,
            rank == pp - 1,
            count * unit.layer + (unit.embedding if rank == 0 else 0) + (unit.head if rank == pp - 1 else 0),
        )
        for rank, count in enumerate(layers)
    )


@lru_cache(maxsize=4096)
def candidates(preset: Preset, pp: int, tp: int, program: Program) -> tuple[Stage, ...]:
    """Those stages of which one is the fullest: of equal ones the first and the last."""
    kinds: dict[tuple[int, bool, bool], list[Stage]] = {}
    for stage in stages(preset, pp, tp, program):
        kinds.setdefault((stage.layers, stage.first, stage.last), []).append(stage)
    return tuple(stage for same in kinds.values() for stage in dict.fromkeys((same[0], same[-1])))


def _layers_by_compute(preset: Preset, pp: int) -> list[int]:
    kv = preset.kv_heads or preset.heads
    h, matrices = preset.hidden, 3 if preset.family == "llama" else 2
    layer = 2 * h * h + 2 * h * h * kv // preset.heads + matrices * h * preset.ffn
    costs = [0, *[layer] * preset.layers, preset.vocab * h]
    share = sum(costs) / pp
    layers, done, rank = [0] * pp, 0, 0
    for at, cost in enumerate(costs):
        done += cost
        layers[rank] += 0 < at <= preset.layers
        if done > share * (rank + 1) and rank < pp - 1:
            rank += 1
    return layers
