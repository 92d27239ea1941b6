"""A machine type: its cards, memory, network, and the prices known for it."""

import difflib
from dataclasses import dataclass
from typing import Literal

from dtlab.cost.prices import Price, SpotRange
from dtlab.cost.units import GB, GIB
from dtlab.errors import UserError

DEFAULT_REGION = "us-east-1"
Service = Literal["sagemaker", "ec2"]


@dataclass(frozen=True)
class Instance:
    """A machine type. Memory is in GiB as the API reports it; `prices` has a `Price` per service and region.
    `spot` is a snapshot in the package's table, `own_spots` come from a price file of your own.

    >>> from dtlab.cost.catalogue import instance
    >>> instance("ml.g5.12xlarge").gpus
    4
    >>> instance("g5.12xlarge").price("sagemaker").usd
    7.09
    """

    name: str
    gpus: int = 0
    gpu: str = ""
    gpu_memory_gib: float | None = None
    vcpus: int = 0
    memory_gib: float | None = None
    network_gbps: float | None = None
    interconnect: str = ""
    interconnect_gb_per_second: float | None = None
    nvme_gb: float = 0.0
    efa: bool = False
    status: str = "current"
    on_sagemaker: bool = True
    successors: tuple[str, ...] = ()
    prices: tuple[tuple[Service, Price], ...] = ()
    spot: SpotRange | None = None
    own_spots: tuple[SpotRange, ...] = ()
    note: str = ""

    @property
    def sagemaker_name(self) -> str:
        return f"ml.{self.name}"

    @property
    def retired(self) -> bool:
        return self.status.lower() == "retired"

    @property
    def gpu_memory_bytes(self) -> int:
        """Memory of one card in bytes; an error where no source states it."""
        if self.gpu_memory_gib is None:
            raise UserError(f"instance={self.name!r} has no GPU, or no source for the memory of its cards")
        return round(self.gpu_memory_gib * GIB)

    @property
    def gpu_memory_gb(self) -> float:
        """Memory of one card in GB (1e9 bytes)."""
        return self.gpu_memory_bytes / GB

    def spot_in(self, region: str = DEFAULT_REGION) -> SpotRange | None:
        """EC2 spot prices there: those of a price file of your own first; None where none are known.

        >>> from dtlab.cost.catalogue import instance
        >>> instance("p3.2xlarge").spot_in().median, instance("p3.2xlarge").spot_in("eu-west-1")
        (0.3714, None)
        """
        known = [*self.own_spots, *([] if self.spot is None else [self.spot])]
        return next((found for found in known if found.region == region), None)

    def price(self, service: Service = "sagemaker", region: str = DEFAULT_REGION) -> Price:
        """The hourly price of the whole machine, all its cards included.

        A source that does not state its region is offered for us-east-1 and keeps "unstated" as its region.

        Raises:
            UserError: no price is known for this service and region; the message says where one is.
        """
        known = [price for offered, price in self.prices if offered == service]
        for price in known:
            if price.region == region or (price.region == "unstated" and region == DEFAULT_REGION):
                return price
        label = {"sagemaker": "SageMaker", "ec2": "EC2"}.get(service)
        if label is None:
            raise UserError(f"service={service!r} is unknown: use 'sagemaker' or 'ec2'")
        if service == "sagemaker" and not self.on_sagemaker:
            raise UserError(
                f"instance={self.name!r} is not a SageMaker type: use kind='ec2', or another type"
            )
        if known:
            regions = sorted({price.region for price in known})
            raise UserError(
                f"region={region!r} has no {label} price for {self.name}: known in {', '.join(regions)}"
                f"{did_you_mean(region, regions)}"
            )
        others = sorted({offered for offered, _ in self.prices} - {service})
        hint = f"known for {', '.join(others)}" if others else f"status: {self.status}"
        raise UserError(
            f"instance={self.name!r} has no {label} price in any source ({hint}): name another type"
        )


def did_you_mean(name: str, known: list[str]) -> str:
    """` (did you mean ...?)` with the closest of the known names, or nothing.

    >>> did_you_mean("us-esat-1", ["us-east-1", "us-west-2"])
    ' (did you mean us-east-1?)'
    """
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
