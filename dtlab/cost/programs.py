"""What a training program does with memory, apart from the strategy (lesson 09). No torch.

Two programs that train one model on the same ranks differ by what they hold beside states and activations:
copies of gradients in DDP's buckets, copies of logits in fp32, gathered inputs, and tensors that the
communication stream has not let go of. Each field of `Program` is one such habit, read from the program's
source. Two numbers were chosen with measured runs in sight, and `python -m benchmarks.accuracy` says how far
the predictions are without the model they are scored on: `layers_ahead` and `lead_share`.
"""

from dataclasses import dataclass
from typing import Literal

Cut = Literal["parameters", "compute", "layers"]


@dataclass(frozen=True, kw_only=True)
class Program:
    """Habits of a training program.

    Attributes:
        name: what it is called.
        logit_bytes: bytes of one logit at the loss: 12 for a cast to fp32, the log-probabilities and their
            gradient. `Strategy.compiled` makes it 8: the cast is fused.
        ddp_buckets: DDP keeps a copy of the gradients in its buckets (a program that gives the gradients away
            after each backward pass, or without `gradient_as_bucket_view`).
        gathers_again: with sequence parallelism the inputs of column-parallel matrices are gathered again in
            the backward pass (Megatron); torch's own plans keep them gathered.
        layers_ahead: layers by which the host runs ahead of the card while the outputs of row-parallel
            matrices, two a layer and whole on every rank, are held for the communication stream (torch before
            2.8, unless `TORCH_NCCL_AVOID_RECORD_STREAMS` is set). 0: they are not held. A stream takes about
            1,024 launches before the host waits, and a layer's forward pass makes some 32.
        lead_share: how much of that lead there is in a pipeline, where backward passes lie between, and in a
            step of one micro-batch, which starts from rest.
        cut: a pipeline is cut by "parameters", by "layers" (equal numbers, the first stages one more), or by
            "compute": each stage gets blocks until it is past its share of the multiplications.
        cuts_embedding, cuts_head: tensor parallelism cuts these two; otherwise each rank holds them whole.
        root_unit: embedding and head are one unit of FSDP, gathered together.
        pipeline_keeps: between the micro-batches of a pipeline FSDP keeps weights gathered and gradients
            whole (`torch.distributed.pipelining` turns resharding and sync off until the last backward pass).
        source: where this was read.
    """

    name: str
    logit_bytes: int = 12
    ddp_buckets: bool = False
    gathers_again: bool = False
    layers_ahead: int = 0
    lead_share: float = 0.5
    cut: Cut = "parameters"
    cuts_embedding: bool = True
    cuts_head: bool = True
    root_unit: bool = True
    pipeline_keeps: bool = True
    source: str = ""


TORCH = Program(name="torch", source="torch 2.13, dtlab.parallel")
MEGATRON = Program(
    name="Megatron",
    gathers_again=True,
    source="Korthikanti et al., arXiv 2205.05198, section 4.2.2",
)
NANOTRON = Program(
    name="nanotron",
    ddp_buckets=True,
    gathers_again=True,
    layers_ahead=32,
    cut="compute",
    source="huggingface/nanotron: models/base.py (build_model), models/llama.py (get_block_compute_costs, "
    "cast_to_fp32), parallel/tensor_parallel/functional.py, optim/gradient_accumulator.py",
)
KEMPNER_FORGE = Program(
    name="KempnerForge",
    logit_bytes=8,
    cut="layers",
    cuts_embedding=False,
    source="KempnerInstitute/KempnerForge: distributed/parallel.py, tensor_parallel.py, pipeline_parallel.py",
)
