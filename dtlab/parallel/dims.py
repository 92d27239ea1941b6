"""How the ranks are shared out among the kinds of parallelism (lessons 07, 08 and 09).

``ParallelDims(dp_replicate, dp_shard, tp, pp)`` holds the four degrees; -1 means "the rest of the ranks".

- Ranks are numbered with ``tp`` changing fastest, then ``dp_shard``, ``dp_replicate`` and ``pp``: tensor
  parallelism talks most and should stay inside a host, a pipeline talks least.
- Whatever does not divide is refused here, by name and number, before any rank does any work.

The degrees and their order are those of torchtitan (arXiv 2410.06511, section 2). No torch in this file.
"""

from dataclasses import asdict, dataclass, replace
from math import prod
from typing import NamedTuple

from dtlab.errors import UserError
from dtlab.parallel.vocabulary import padded_vocab_size

__all__ = ["AXES", "ParallelDims", "Place"]

AXES = ("pp", "dp_replicate", "dp_shard", "tp")
"""The axes of the mesh, slowest first."""


class Place(NamedTuple):
    """Where a rank stands: its index along each axis."""

    pp: int
    dp_replicate: int
    dp_shard: int
    tp: int


@dataclass(frozen=True, kw_only=True)
class ParallelDims:
    """Degrees of parallelism, each a number of ranks.

    Attributes:
        dp_replicate: copies of the model, or of its shards (DDP, the outer part of HSDP).
        dp_shard: ranks among which parameters, gradients and optimizer state are cut (FSDP).
        tp: ranks among which every matrix is cut (tensor parallelism).
        pp: ranks among which the layers are cut (pipeline stages, or several stages a rank).

    At most one may be -1; ``of(world_size)`` fills it in and checks the product.

    Raises:
        UserError: a degree of 0 or below -1, two that are -1.

    >>> dims = ParallelDims(dp_replicate=-1, tp=2, pp=2).of(8)
    >>> dims.dp_replicate, dims.size, dims.place(5)
    (2, 8, Place(pp=1, dp_replicate=0, dp_shard=0, tp=1))
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for name, degree in asdict(self).items():
            if isinstance(degree, bool) or not isinstance(degree, int) or degree == 0 or degree < -1:
                raise UserError(f"{name} = {degree!r}: give a number of ranks, 1 or more, or -1 for the rest")
        rest = [name for name, degree in asdict(self).items() if degree == -1]
        if len(rest) > 1:
            raise UserError(f"{' and '.join(rest)} are -1: only one of them can be the rest of the ranks")

    def of(self, world_size: int) -> "ParallelDims":
        """These degrees for ``world_size`` ranks, with -1 filled in.

        Raises:
            UserError: the product is not the world size; the message has every degree.
        """
        if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
            raise UserError(f"world_size = {world_size!r}: give the number of ranks, 1 or more")
        degrees = {axis: getattr(self, axis) for axis in AXES}
        rest = next((axis for axis, degree in degrees.items() if degree == -1), None)
        given = prod(degree for degree in degrees.values() if degree != -1)
        if rest is not None and world_size % given == 0:
            return replace(self, **{rest: world_size // given})
        product = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if axis != rest)
        if rest is not None:
            raise UserError(
                f"{product} = {given} does not divide the {_ranks(world_size)}, so nothing is left for "
                f"{rest} = -1; change a degree or the number of ranks"
            )
        if given != world_size:
            raise UserError(
                f"{product} = {given}, but there are {world_size} ranks; change a degree, or give one "
                "of them -1 for the rest"
            )
        return self

    @property
    def size(self) -> int:
        """Ranks in all. UserError while a degree is still -1."""
        return prod(self.shape)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The degrees in the order of ``AXES``. UserError while one is still -1."""
        degrees = (self.pp, self.dp_replicate, self.dp_shard, self.tp)
        if -1 in degrees:
            raise UserError(f"{AXES[degrees.index(-1)]} = -1: call .of(world_size) first")
        return degrees

    @property
    def dp(self) -> int:
        """Ranks that see different samples: dp_replicate x dp_shard."""
        return self.shape[1] * self.shape[2]

    def place(self, rank: int) -> Place:
        """Where ``rank`` stands on each axis."""
        if not 0 <= rank < self.size:
            raise UserError(f"rank = {rank}: there are {self.size} ranks, 0 to {self.size - 1}")
        indices = []
        for degree in reversed(self.shape):
            rank, index = divmod(rank, degree)
            indices.append(index)
        return Place(*reversed(indices))

    def groups(self, axis: str) -> list[list[int]]:
        """The ranks that differ in ``axis`` alone, group by group: those that talk to each other there.

        >>> ParallelDims(dp_replicate=2, tp=2).groups("dp_replicate")
        [[0, 2], [1, 3]]
        """
        if axis not in AXES:
            raise UserError(f"axis = {axis!r}: choose from {', '.join(AXES)}")
        found: dict[Place, list[int]] = {}
        for rank in range(self.size):
            found.setdefault(self.place(rank)._replace(**{axis: 0}), []).append(rank)
        return list(found.values())

    def check_model(
        self,
        *,
        num_layers: int | None = None,
        num_heads: int | None = None,
        hidden: int | None = None,
        vocab_size: int | None = None,
        stages_per_rank: int = 1,
    ) -> None:
        """Refuse a model that these degrees cannot cut. Give what the model has; None is not checked.

        Args:
            num_layers: blocks; every pipeline stage gets one at least.
            num_heads: attention heads; ``tp`` divides them.
            hidden: width of the MLP; ``tp`` divides it.
            vocab_size: rows of the embedding; ``tp`` divides them (see ``padded_vocab_size``).
            stages_per_rank: pipeline stages that a rank holds (2 or more for interleaved schedules).

        Raises:
            UserError: names the degree, the size of the model and a way out.
        """
        _, _, _, tp = self.shape
        for name, size in (("num_heads", num_heads), ("hidden", hidden)):
            if size is not None and size % tp:
                fitting = ", ".join(str(degree) for degree in range(1, size + 1) if size % degree == 0)
                raise UserError(f"tp = {tp} does not divide {name} = {size}; degrees that do: {fitting}")
        if vocab_size is not None and vocab_size % tp:
            raise UserError(
                f"tp = {tp} does not divide vocab_size = {vocab_size}; pad it to "
                f"{padded_vocab_size(vocab_size, tp=tp)} with padded_vocab_size({vocab_size}, tp={tp})"
            )
        stages = self.pp * stages_per_rank
        if num_layers is not None and num_layers < stages:
            each = f" x {stages_per_rank} stages a rank = {stages}" if stages_per_rank > 1 else ""
            raise UserError(
                f"pp = {self.pp}{each} stages, but num_layers = {num_layers}: a stage would have no layer; "
                f"take {stages} layers or more, or fewer stages"
            )

    def describe(self) -> str:
        """The rank grid as text: a line for each pipeline rank, a bracket for each tensor-parallel group.

        >>> print(ParallelDims(dp_replicate=2, tp=2, pp=2).describe())
        8 ranks = pp 2 x dp_replicate 2 x dp_shard 1 x tp 2
        pp 0: [0 1] [2 3]
        pp 1: [4 5] [6 7]
        """
        product = " x ".join(f"{axis} {degree}" for axis, degree in zip(AXES, self.shape, strict=True))
        width = len(str(self.size - 1))
        lines = [f"{_ranks(self.size)} = {product}"]
        groups = self.groups("tp")
        for stage in range(self.pp):
            row = groups[stage * self.dp : (stage + 1) * self.dp]
            cells = ("[" + " ".join(f"{rank:{width}}" for rank in group) + "]" for group in row)
            lines.append(f"pp {stage}: {' '.join(cells)}")
        return "\n".join(lines)


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"
