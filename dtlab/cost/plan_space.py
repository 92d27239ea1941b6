"""The ways to train a model on a number of ranks, as `Strategy` values with the effort of each (lesson 14).

The global batch is kept: `dp x micro_batch x num_micro_batches` is always the job's. Left out, and why:

- tensor parallelism beyond a machine: measured runs lose 43 % of their speed at that step;
- a pipeline with fewer micro-batches than stages: more than half of it would idle;
- selective recomputation where attention is fused: it would drop what is not kept;
- micro-batches other than powers of two and the whole share of a rank.
"""

from typing import Any

from dtlab.cost.plan_job import Job, Space
from dtlab.cost.plan_layout import Layout, layout_strategies
from dtlab.cost.strategy import Recompute, Strategy
from dtlab.errors import UserError

# What full recomputation adds to the hardware's work: the forward pass again, a third of the three parts.
RECOMPUTED: dict[Recompute, float] = {"none": 1.0, "selective": 1.0, "full": 4 / 3}
_DEFAULTS: dict[str, Any] = dict(Strategy().__dict__)
_MOST_ACCUMULATED = 64  # of models without layers, whose micro-batches need no such cuts

Option = tuple[float, Strategy]


def options(job: Job, space: Space, world: int, cards: int) -> list[Option]:
    """(effort, strategy) of all ways on `world` ranks with `cards` ranks a machine, least effort first.

    Effort is the least time of a step over that of the bare computation on ideal ranks: recomputation and
    the bubble of the pipeline.

    >>> from dtlab.cost.presets import LLAMA_7B
    >>> job = Job(model=LLAMA_7B, samples=1e6, global_batch=64)
    >>> found = options(job, Space(precisions=("bf16-mixed",)), world=8, cards=8)
    >>> len(found), found[0][0], {s.tp for _, s in found} == {1, 2, 4, 8}
    (212, 1.0, True)
    """
    if space.layout is not None:
        return _of_layout(job, space, space.layout, world, cards)
    found: list[Option] = []
    for tp in _degrees(space.tp, cards, job, "tp"):
        for pp in _degrees(space.pp, max(1, job.model.layers), job, "pp"):
            ranks, rest = divmod(world, tp * pp)
            if rest or not ranks or job.global_batch % ranks:
                continue
            share = job.global_batch // ranks
            for micro_batch in _micro_batches(job, space, share):
                count = share // micro_batch
                if pp > 1 and count < pp:
                    continue
                bubble = (count + pp - 1) / count
                for layout in _layouts(space, ranks, cards // tp):
                    for recompute in _recomputes(job, space):
                        for precision in space.precisions or job.usual_precisions:
                            strategy = _made(
                                tp=tp, pp=pp, micro_batch=micro_batch, num_micro_batches=count,
                                recompute=recompute, precision=precision, optimizer=job.optimizer,
                                sequence_parallel=tp > 1, **layout,
                            )  # fmt: skip
                            found.append((bubble * RECOMPUTED[recompute], strategy))
    found.sort(key=lambda option: option[0])
    return found


def _of_layout(job: Job, space: Space, layout: Layout, world: int, cards: int) -> list[Option]:
    """The ways of a layout that is given; few, so that none is counted out by its effort."""
    return [
        (1.0, _made(recompute=recompute, precision=precision, optimizer=job.optimizer, **fields))
        for fields in layout_strategies(layout, job.global_batch, world, cards)
        for recompute in _recomputes(job, space)
        for precision in space.precisions or job.usual_precisions
    ]


def check_tp(space: Space, most_cards: int) -> None:
    """Refuse tensor parallelism that no machine of the space can hold.

    >>> check_tp(Space(tp=(16,)), most_cards=8)
    Traceback (most recent call last):
    dtlab.errors.UserError: tp = 16: no machine here has more than 8 GPUs, and tensor parallelism ...
    """
    for tp in space.tp if space.layout is None else (space.layout.tp,):
        if tp > most_cards:
            raise UserError(
                f"tp = {tp}: no machine here has more than {most_cards} GPUs, and tensor parallelism across "
                f"machines lost 43 % of the speed in measured runs; take {most_cards} or less, and pp or FSDP"
            )


def _made(**given: Any) -> Strategy:
    """A `Strategy` without its checks: everything here is right by construction, and there are many."""
    made = object.__new__(Strategy)
    made.__dict__.update(_DEFAULTS)
    made.__dict__.update(given)
    return made


def _degrees(given: tuple[int, ...], most: int, job: Job, name: str) -> list[int]:
    model = job.model
    if not model.layers:
        return [1] if not given or 1 in given else []
    wanted = given or tuple(1 << k for k in range(most.bit_length()))
    if name == "pp":
        return [pp for pp in wanted if pp <= most]
    sizes = [size for size in (model.heads, model.kv_heads, model.ffn) if size]
    return [tp for tp in wanted if tp <= most and not any(size % tp for size in sizes)]


def _micro_batches(job: Job, space: Space, share: int) -> list[int]:
    if space.micro_batches:
        return [size for size in space.micro_batches if share % size == 0]
    least = 1 if job.model.layers else max(1, share // _MOST_ACCUMULATED)
    powers = [1 << k for k in range(share.bit_length()) if share % (1 << k) == 0]
    return sorted({size for size in [*powers, share] if size >= least})


def _layouts(space: Space, ranks: int, inside: int) -> list[dict[str, Any]]:
    """Data parallelism over `ranks`, of which `inside` at most share a machine."""
    if ranks == 1:
        return [{}]
    found: list[dict[str, Any]] = [{"dp_replicate": ranks, "zero": zero} for zero in space.zeros if zero < 3]
    if 3 in space.zeros:
        found.append({"dp_shard": ranks, "zero": 3})
        if 1 < inside < ranks and ranks % inside == 0:
            found.append({"dp_replicate": ranks // inside, "dp_shard": inside, "zero": 3})
    return found


def _recomputes(job: Job, space: Space) -> list[Recompute]:
    if not job.model.layers:
        return ["none"]
    fused = job.model.family in ("gpt", "llama")
    return [kind for kind in space.recomputes if not (kind == "selective" and fused)]
