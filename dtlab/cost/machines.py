"""Machines of one kind as a step model sees them: the card's peaks and the network (lesson 09)."""

from dataclasses import dataclass
from functools import cache

from dtlab.cost.calibration import Gpu, gpu
from dtlab.cost.catalogue import instance
from dtlab.cost.networks import Network, network
from dtlab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Machine:
    """`cards` cards of one kind in each machine, as many machines as a run needs."""

    name: str
    gpu: Gpu
    network: Network

    @property
    def cards(self) -> int:
        return self.network.cards

    def nodes(self, ranks: int) -> int:
        """Machines that `ranks` need.

        >>> machine("ml.p4d.24xlarge").nodes(9)
        2
        """
        return -(-ranks // self.cards)


@cache
def machine(name: str) -> Machine:
    """The machine of that type of the catalogue, or the named cluster "HF H100 cluster".

    >>> machine("ml.g5.12xlarge").gpu.name
    'A10G'

    Raises:
        UserError: an unknown type, one without a GPU, a card without peaks.
    """
    links = network(name)
    if links.name == "HF H100 cluster":
        return Machine(name=links.name, gpu=gpu("H100"), network=links)
    found = instance(name)
    if "rainium" in found.gpu:
        raise UserError(f"instance = {found.name!r}: {found.gpu} has no calibration; name a type with GPUs")
    return Machine(name=links.name, gpu=gpu(found.gpu), network=links)
