"""How far predicted memory was from measured runs of its kind, to print beside a prediction. No torch.

The figures are those of `python -m benchmarks.accuracy`; a test holds them against it. Predicted is what is
allocated at the peak; the tables show what was reserved, or what nvidia-smi saw.
"""

from dataclasses import dataclass

from dtlab.cost.strategy import Strategy


@dataclass(frozen=True)
class MeasuredError:
    """Mean |error| and mean error of the predictions for `rows` measured runs; below 0 is too low."""

    kind: str
    mape: float
    bias: float
    rows: int
    source: str

    def line(self) -> str:
        """One line for people.

        >>> measured_error(Strategy(tp=2)).line()
        'off by 5 % on average (+2 %) on 171 runs of nanotron on H100, 1 to 8 ranks of tensor parallelism'
        """
        size = f"off by {100 * self.mape:.0f} % on average ({100 * self.bias:+.0f} %)"
        return f"{size} on {self.rows} runs of {self.source}"


PLAIN = MeasuredError(
    "without pipeline", 0.049, 0.018, 171, "nanotron on H100, 1 to 8 ranks of tensor parallelism"
)
PIPELINE = MeasuredError("with pipeline", 0.101, 0.024, 538, "nanotron on H100, pipelines of 2 to 32 stages")
FSDP = MeasuredError(
    "FSDP", 0.096, -0.096, 10, "torchtitan on H100, full recomputation; it reports reserved memory"
)


def measured_error(strategy: Strategy) -> MeasuredError:
    """The error measured for runs like this one: FSDP, a pipeline, or neither.

    >>> measured_error(Strategy(pp=4, num_micro_batches=8)).kind
    'with pipeline'
    """
    if strategy.zero == 3:
        return FSDP
    return PIPELINE if strategy.pp > 1 else PLAIN
