"""How a model is trained on many ranks: what the planner's sums depend on (lesson 09). No torch.

`Strategy` says how many ranks share what, how a step is cut into micro-batches, and in which numbers it
computes. Degrees are named as in `dtlab.parallel.dims.ParallelDims`. Shape and size of the model are a
`Preset`, which `transformer` and `recommender` in `dtlab.cost.builders` make too.

- A step of one data-parallel rank is `num_micro_batches` micro-batches of `micro_batch` samples: gradient
  accumulation, or what a pipeline is filled with. All ranks together take `global_batch` samples.
- What cannot be is refused where it is built, in one line that names the field, its value and the way out.
"""

from dataclasses import dataclass
from typing import Literal

from dtlab.cost.memory import Optimizer, Precision
from dtlab.cost.pipeline import ScheduleName
from dtlab.cost.presets import Preset
from dtlab.errors import UserError

Recompute = Literal["none", "selective", "full"]
Zero = Literal[0, 1, 2, 3]

_COUNTS = ("dp_replicate", "dp_shard", "tp", "pp", "micro_batch", "num_micro_batches", "stages_per_rank")
_WORDS: dict[str, tuple[object, ...]] = {
    "zero": (0, 1, 2, 3),
    "schedule": ("gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"),
    "recompute": ("none", "selective", "full"),
    "precision": ("fp32", "amp", "bf16-mixed", "bf16"),
    "optimizer": ("sgd", "momentum", "adam"),
}
_SWITCHES = (
    "fp32_gradients", "fp32_reduce", "sequence_parallel", "loss_parallel", "sync_every_micro_batch",
    "reshard_after_forward", "compiled",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to train a model on `world_size` ranks.

    Attributes:
        dp_replicate: copies of the model, or of its shards (DDP; the outer part of HSDP).
        dp_shard: ranks among which parameters, gradients and optimizer state are cut (FSDP): needs `zero=3`.
        tp: ranks among which every matrix is cut (tensor parallelism).
        pp: ranks among which the layers are cut (pipeline).
        zero: what data-parallel ranks share out: 0 nothing (DDP), 1 the optimizer's state, 2 gradients too
            (both over `dp_replicate`), 3 weights too (FSDP over `dp_shard`).
        micro_batch: samples (sequences, images, rows) of one forward pass of a rank.
        num_micro_batches: micro-batches of one step on each data-parallel rank.
        schedule: of the pipeline; without meaning at pp = 1.
        stages_per_rank: virtual stages: 2 or more with "interleaved", 2 with "zbv".
        recompute: "selective" drops the matrix of attention scores and what follows from it (fused attention
            never keeps them); "full" keeps the input of each layer and computes the rest again.
        precision: as in `dtlab.cost.memory.state_bytes`.
        optimizer: "sgd", "momentum" or "adam" (also AdamW).
        fp32_gradients: gradients beside bf16 weights are summed in fp32: 18 bytes a parameter with Adam,
            16 with bf16 gradients.
        fp32_reduce: FSDP adds gradients of ranks in fp32 (its `reduce_dtype`), so that those that wait for
            the last micro-batch are fp32 too.
        sequence_parallel: outside the matrices each tensor-parallel rank keeps its part of the sequence.
        loss_parallel: each tensor-parallel rank keeps its part of the logits; otherwise all of them.
        sync_every_micro_batch: FSDP shares gradients out after every micro-batch. False is accumulation
            without sync: fewer messages, and a whole gradient on every rank.
        reshard_after_forward: FSDP drops gathered weights after the forward pass.
        compiled: `torch.compile` fuses the loss, so less is kept of each logit.

    Raises:
        UserError: a value out of range, or two that exclude each other.

    >>> strategy = Strategy(dp_shard=8, zero=3, tp=2, micro_batch=2, num_micro_batches=4)
    >>> strategy.world_size, strategy.dp, strategy.global_batch
    (16, 8, 64)
    >>> Strategy(dp_shard=8)
    Traceback (most recent call last):
    dtlab.errors.UserError: dp_shard = 8 and zero = 0: FSDP cuts everything, so take zero = 3, or ...
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    zero: Zero = 0
    micro_batch: int = 1
    num_micro_batches: int = 1
    schedule: ScheduleName = "1f1b"
    stages_per_rank: int = 1
    recompute: Recompute = "none"
    precision: Precision = "bf16-mixed"
    optimizer: Optimizer = "adam"
    fp32_gradients: bool = False
    fp32_reduce: bool = True
    sequence_parallel: bool = False
    loss_parallel: bool = True
    sync_every_micro_batch: bool = True
    reshard_after_forward: bool = True
    compiled: bool = False

    def __post_init__(self) -> None:
        given = self.__dict__
        for name in _COUNTS:
            value = given[name]
            if type(value) is not int or value < 1:
                raise UserError(f"{name} = {value!r}: give a whole number of 1 or more")
        for name, known in _WORDS.items():
            if given[name] not in known or given[name] is False or given[name] is True:
                words = ", ".join(map(repr, known))
                raise UserError(f"{name} = {given[name]!r} is unknown: use one of {words}")
        for name in _SWITCHES:
            if given[name] is not True and given[name] is not False:
                raise UserError(f"{name} = {given[name]!r}: use True or False")
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        if self.dp_shard > 1 and self.zero != 3:
            raise UserError(
                f"dp_shard = {self.dp_shard} and zero = {self.zero}: FSDP cuts everything, so take zero = 3, "
                f"or dp_replicate = {self.dp_shard} to share out less"
            )
        if self.zero == 3 and self.dp_shard == 1 and self.dp_replicate > 1:
            raise UserError(
                f"zero = 3 with dp_shard = 1: nothing is cut; take dp_shard = {self.dp_replicate} in place "
                f"of dp_replicate = {self.dp_replicate}"
            )
        if self.fp32_gradients and self.precision == "bf16":
            raise UserError(
                "fp32_gradients = True with precision = 'bf16': gradients summed in fp32 go with 'bf16-mixed'"
            )
        needed = {"interleaved": "2 or more", "zbv": "2"}.get(self.schedule, "1")
        several = self.stages_per_rank > 1
        if self.pp == 1 and several:
            raise UserError(f"stages_per_rank = {self.stages_per_rank} with pp = 1: there is no pipeline")
        if self.pp > 1 and (several != (needed != "1") or (needed == "2" and self.stages_per_rank != 2)):
            raise UserError(
                f"stages_per_rank = {self.stages_per_rank} with schedule = {self.schedule!r}: give {needed}"
            )

    @property
    def dp(self) -> int:
        """Data-parallel ranks: those that see other samples."""
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.dp_replicate * self.dp_shard * self.tp * self.pp

    @property
    def global_batch(self) -> int:
        """Samples of one optimizer step on all ranks together."""
        return self.dp * self.micro_batch * self.num_micro_batches

    def check(self, preset: Preset) -> None:
        """Refuse what this model cannot be cut into.

        Raises:
            UserError: tp does not divide heads, key-value heads or FFN; more stages than parts; tp or pp of
                a model without equal layers.

        >>> from dtlab.cost.presets import LLAMA_70B
        >>> Strategy(tp=16).check(LLAMA_70B)
        Traceback (most recent call last):
        dtlab.errors.UserError: tp = 16 does not divide the 8 kv_heads of Llama 70B: ...
        """
        if not preset.layers and (self.tp > 1 or self.pp > 1):
            name, degree = ("tp", self.tp) if self.tp > 1 else ("pp", self.pp)
            raise UserError(f"{name} = {degree}: {preset.name} has no equal layers to cut; take {name} = 1")
        for name in ("heads", "kv_heads", "ffn"):
            size = getattr(preset, name)
            if size % self.tp:
                raise UserError(
                    f"tp = {self.tp} does not divide the {size} {name} of {preset.name}: take a divisor"
                )
        stages = self.pp * self.stages_per_rank
        if stages > preset.layers + 2 and stages > 1:
            raise UserError(
                f"pp = {self.pp} with stages_per_rank = {self.stages_per_rank}: {stages} stages are more "
                f"than the {preset.layers} layers, embedding and head of {preset.name}"
            )
