"""S0's "AMP and accumulation took memory from 92 % to 68 %", part by part (lessons 01 and 06). No torch.

The total is plausible; the credit in the course's source S0 goes to the wrong part. Autocast makes
activations smaller and adds half-precision copies of the weights; states stay fp32. Accumulation at the same
global batch divides activations by the number of micro-batches. So the larger saving comes from the smaller
micro-batch.

S0 names no model. BERT-large has the same bill under DDP on one of the 16 GB cards of S0's instance: 91 %
with 22 sequences of 128 tokens in fp32, and 68 % with AMP and 2 micro-batches of 11. Measured, at 512 tokens
and without DDP (Hugging Face's guide to training on one GPU): 14,949 MiB with a micro-batch of 4 in fp32,
13,939 with AMP (-7 %), 8,681 with a micro-batch of 1 accumulated 4 times (-42 %).
"""

from dataclasses import dataclass, replace

from dtlab.cost.presets import Preset, preset
from dtlab.cost.programs import TORCH
from dtlab.cost.rank_memory import rank_memory
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError


@dataclass(frozen=True)
class Credit:
    """Shares of a card's memory: at the start, with each change alone, with both; and what each is credited.

    The saving of both together is split by the mean over the two orders in which they can be made (Shapley).
    """

    before: float
    amp_alone: float
    accumulation_alone: float
    both: float

    @property
    def amp(self) -> float:
        """Share of the card that autocast saves; below 0 where the copies of the weights outweigh it."""
        return ((self.before - self.amp_alone) + (self.accumulation_alone - self.both)) / 2

    @property
    def accumulation(self) -> float:
        """Share of the card that the smaller micro-batch saves."""
        return ((self.before - self.accumulation_alone) + (self.amp_alone - self.both)) / 2

    def lines(self) -> list[str]:
        """The four states and the credit, one line each."""
        return [
            f"fp32, one micro-batch          {self.before:6.1%}",
            f"AMP alone                      {self.amp_alone:6.1%}",
            f"accumulation alone             {self.accumulation_alone:6.1%}",
            f"AMP and accumulation           {self.both:6.1%}",
            f"credit: AMP {self.amp:.1%}, accumulation {self.accumulation:.1%} of the card",
        ]


def amp_and_accumulation(
    model: str | Preset = "BERT-large",
    card_bytes: int = 16 * 2**30,
    *,
    micro_batch: int = 22,
    accumulate: int = 2,
    seq_len: int | None = 128,
    ddp: bool = True,
    context_gib: float = 1.3,
) -> Credit:
    """Memory of one card before and after AMP and accumulation at the same global batch, as shares of the
    card.

    Args:
        micro_batch: samples of one forward pass at the start; `accumulate` divides it.
        ddp: DDP keeps a copy of the gradients in its buckets.
        context_gib: CUDA context, as nvidia-smi counts it; 1.3 on a V100.

    Raises:
        UserError: `accumulate` does not divide `micro_batch`.

    By default S0's numbers come out. Of its 23 points, 4 are autocast's.

    >>> credit = amp_and_accumulation()
    >>> [round(100 * share) for share in (credit.before, credit.both, credit.amp, credit.accumulation)]
    [91, 68, 4, 20]
    """
    if accumulate < 1 or micro_batch % accumulate:
        raise UserError(
            f"accumulate = {accumulate!r} does not divide micro_batch = {micro_batch!r}: take a divisor"
        )
    found = model if isinstance(model, Preset) else preset(model)

    def share(amp: bool, times: int) -> float:
        strategy = Strategy(
            dp_replicate=2 if ddp else 1,
            precision="amp" if amp else "fp32",
            micro_batch=micro_batch // times,
            num_micro_batches=times,
        )
        program = replace(TORCH, ddp_buckets=ddp)
        (bill,) = rank_memory(found, strategy, program=program, seq_len=seq_len, context_gib=context_gib)
        return bill.total / card_bytes

    return Credit(share(False, 1), share(True, 1), share(False, accumulate), share(True, accumulate))
