"""Messages of one step: tensor, pipeline and data parallel, and the bytes of the update (lesson 09).

Ranks are laid out with tensor parallelism innermost and the pipeline outermost, as in `ParallelDims`: a
data-parallel group has ``cards / t`` members on each machine, whose t groups share its adapters.
"""

from dataclasses import dataclass

from dtlab.cost.collective_time import Link
from dtlab.cost.machines import Machine
from dtlab.cost.memory import state_bytes
from dtlab.cost.strategy import Strategy
from dtlab.cost.work import Work


@dataclass(frozen=True)
class Sync:
    """Seconds of the messages of one rank; `update_bytes` are what the optimizer reads and writes.

    - `tensor_per_sample`: tensor-parallel messages of a micro-batch, for each of its samples;
    - `stage_fixed`, `stage_per_sample`: one message between pipeline stages;
    - `gradients`: DDP and ZeRO-1/2, once a step; `replicas`: of HSDP, once a step;
    - `gather`, `scatter`: FSDP, for each micro-batch.
    """

    tensor_per_sample: float = 0.0
    stage_fixed: float = 0.0
    stage_per_sample: float = 0.0
    gradients: float = 0.0
    replicas: float = 0.0
    gather: float = 0.0
    scatter: float = 0.0
    update_bytes: float = 0.0


Key = tuple[object, ...]


def layout_key(s: Strategy) -> Key:
    """What of a strategy decides its messages and the bytes of the update."""
    return (
        s.tp, s.pp, s.dp_replicate, s.dp_shard, s.zero, s.precision, s.compiled, s.optimizer,
        s.fp32_gradients, s.fp32_reduce, s.reshard_after_forward,
    )  # fmt: skip


class SyncCosts:
    """The messages of a model on one kind of machine, for any strategy."""

    def __init__(self, work: Work, on: Machine) -> None:
        self.work, self.machine = work, on
        self._known: dict[Key, Sync] = {}

    def of(self, s: Strategy) -> Sync:
        """The messages of that layout."""
        key = layout_key(s)
        if key not in self._known:
            self._known[key] = self._of(s)
        return self._known[key]

    def _of(self, s: Strategy) -> Sync:
        work, states = self.work, state_bytes(s.precision, s.optimizer, fp32_gradients=s.fp32_gradients)
        held = work.parameters / (s.tp * s.pp)
        element = 4 if s.precision == "fp32" else 2
        activation = work.seq_len * work.hidden * element
        updated = held / (s.dp if s.zero else 1)
        stage = self._stage_link(s)
        gradients = replicas = gather = scatter = 0.0
        if s.zero == 3:
            weight = element if s.precision != "amp" else 2
            whole = weight * held
            reduced = (4 if s.fp32_reduce else weight) * held
            gathers = 2 if s.reshard_after_forward else 1
            gather = gathers * self._seconds("all_gather", s, s.dp_shard, whole)
            scatter = self._seconds("reduce_scatter", s, s.dp_shard, reduced)
            replicas = self._seconds("all_reduce", s, s.dp_replicate, reduced / s.dp_shard, every=s.dp_shard)
        else:
            gradients = self._seconds("all_reduce", s, s.dp, states.gradients * held)
        return Sync(
            tensor_per_sample=self._tensor(s, activation),
            stage_fixed=stage.alpha_seconds if s.pp > 1 else 0.0,
            stage_per_sample=activation / s.tp / stage.bytes_per_second if s.pp > 1 else 0.0,
            gradients=gradients,
            replicas=replicas,
            gather=gather,
            scatter=scatter,
            # Gradient, moments and master copy read, moments and both copies of the weights written.
            update_bytes=updated * (states.gradients + 2 * states.optimizer + states.parameters),
        )

    def _tensor(self, s: Strategy, activation: float) -> float:
        inside = self.machine.network.inside
        if s.tp == 1 or inside is None:
            return 0.0
        # Latencies are inside the launch time of a layer: its messages are queued like its kernels.
        return self.work.layers / s.pp * 8 * activation * (s.tp - 1) / s.tp / inside.bytes_per_second

    def _seconds(
        self, collective: str, s: Strategy, ranks: int, num_bytes: float, *, every: int = 1
    ) -> float:
        """A collective among `ranks` data-parallel ranks, `every` apart; groups of a machine run at once."""
        if ranks == 1:
            return 0.0
        cards = self.machine.cards
        here = max(1, min(ranks, cards // (s.tp * every)))
        nodes = -(-ranks // here)
        link = self.machine.network.link(min(s.world_size, nodes * cards), nodes)
        if nodes > 1:  # the groups of a machine share its adapters
            used = min(cards, s.world_size)
            link = Link(
                alpha_seconds=link.alpha_seconds, bytes_per_second=link.bytes_per_second * here / used
            )
        return link.seconds(collective, ranks, num_bytes)

    def _stage_link(self, s: Strategy) -> Link:
        """Between two stages: on one machine where both fit, else this rank's share of the network."""
        network, cards = self.machine.network, self.machine.cards
        if network.inside is not None and s.world_size // s.pp < cards:
            return network.inside
        share = network.wire_bytes_per_second / max(1, cards)
        return Link(alpha_seconds=network.link(2, 2).alpha_seconds, bytes_per_second=share)
