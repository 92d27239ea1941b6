"""Which machines a plan may use: types with a price and a model, and how many of them (lesson 14)."""

from dtlab.cost import billing, catalogue
from dtlab.cost.catalogue import Instance
from dtlab.cost.plan_job import Space
from dtlab.cost.prices import Price
from dtlab.errors import UserError


def machines_of(space: Space) -> tuple[list[tuple[Instance, Price]], list[str]]:
    """The types to try with their prices, and a line for each that cannot be.

    Raises:
        UserError: a type that was named cannot be planned, or no type is left.
    """
    fraction = None if space.spot is None else space.spot.fraction
    found: dict[str, tuple[Instance, Price]] = {}
    left_out = []
    for one, is_named in _chosen(space):
        try:
            if "rainium" in one.gpu:
                raise UserError(f"instance = {one.name!r}: no model of {one.gpu}; name a type with GPUs")
            if not one.gpus:
                raise UserError(f"instance = {one.name!r} has no GPU: name a type with GPUs")
            hour = billing.cost(one, 3600, kind=space.kind, region=space.region, spot_fraction=fraction)
            _ = one.gpu_memory_bytes
        except UserError as error:
            if is_named:
                raise
            left_out.append(str(error))
        else:
            found[one.name] = one, hour.price
    if not found:
        raise UserError(f"region = {space.region!r}: no instance has a price; see dtlab instances --region")
    return list(found.values()), left_out


def _chosen(space: Space) -> list[tuple[Instance, bool]]:
    """Types, and whether each was named itself: a family, or no name, stands for what can be had of it."""
    if not space.instances:
        catalogue.check_region(space.region)
        return [(one, False) for one in catalogue.instances(include_retired=False) if one.gpus]
    chosen = []
    for name in space.instances:
        bare = str(name).strip().lower().removeprefix("ml.")
        family = [one for one in catalogue.instances() if one.gpus and one.name.partition(".")[0] == bare]
        chosen += [(one, False) for one in family] or [(catalogue.instance(name), True)]
    return chosen


def counts_of(space: Space, found: Instance) -> list[int]:
    """Numbers of machines of a type: those of the space, else 1, 2, 3, 4, 6, 8, ..., within `max_gpus`."""
    most = space.max_gpus // found.gpus
    ladder = space.counts or sorted({size << k for size in (1, 3) for k in range(15)})
    return [count for count in ladder if count <= most]
