"""FSDP on real ranks: precision, resharding, accumulation, norms, whole and sharded states, refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

import dtlab
from dtlab.collectives import traffic
from dtlab.errors import UserError
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel.ddp import no_sync
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.fsdp import fully_sharded
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.parallelize import parallelize, parallelize_stages
from dtlab.parallel.pipeline import pipeline
from dtlab.parallel.schedules import build_schedule
from dtlab.parallel.split import split
from dtlab.parallel.tensor_gpt import tensor_parallel
from dtlab.parallel.zero import ShardedOptimizer
from dtlab.train.full_state import gather_state, scatter_state
from dtlab.train.gradients import clip_by_norm, total_norm
from dtlab.train.safetensors_io import export_model, import_model

SIZES = {"vocab_size": 12, "sequence": 8, "dim": 8, "num_layers": 2, "num_heads": 2}


def run_all(functions: list[Any], folder: Path) -> dict[str, Any]:
    """One launch for many tests: starting ranks takes longer than what they do."""
    with dtlab.world():
        return {function.__name__: function(folder) for function in functions}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Name of a function -> what it returned on each of 2 ranks."""
    folder = tmp_path_factory.mktemp("fsdp")
    functions = [norms, precision, resharding, accumulation, states, exported, from_meta, refusals]
    results = dtlab.launch(run_all, 2, functions, folder, timeout=240, echo=False)
    return {fn.__name__: [result[fn.__name__] for result in results] for fn in functions}


def gpt(seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(**SIZES).double()  # type: ignore[arg-type]


def sharded(model: nn.Module, **options: Any) -> Any:
    return fully_sharded(model, build_mesh(ParallelDims(dp_shard=2)), **options)


def tokens_of(rank: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(12, (3, 9), generator=torch.Generator().manual_seed(rank))
    return tokens[:, :-1], tokens[:, 1:]


def norms(_: Path) -> dict[str, float]:
    rank = dist.get_rank()
    model = sharded(nn.Linear(1, 2, bias=False))
    (weight,) = model.parameters()
    local = torch.full_like(weight.to_local(), [3.0, 4.0][rank])
    weight.grad = DTensor.from_local(local, weight.device_mesh, weight.placements)
    found = {"shards": float(total_norm([weight]))}
    replica = nn.Parameter(torch.zeros(1))
    replica.grad = torch.full((1,), 12.0)
    found["and a replica"] = float(total_norm([weight, replica]))
    clip_by_norm([weight], 1.0, total_norm([weight]))
    found["clipped"] = float(weight.grad.to_local())
    whole = torch.tensor([[3.0], [4.0]])
    weight.grad = DTensor.from_local(whole, weight.device_mesh, [Replicate()])
    found["whole gradient"] = float(total_norm([weight]))
    found["is cut then"] = weight.grad.placements == (Shard(0),)
    return found


def test_the_norm_counts_shards_once_and_replicas_once_on_every_rank(ranks: Any) -> None:
    for rank, found in enumerate(ranks["norms"]):
        assert found["shards"] == found["whole gradient"] == pytest.approx(5.0, abs=1e-6)
        assert found["and a replica"] == pytest.approx(13.0, abs=1e-6)
        assert found["clipped"] == pytest.approx([0.6, 0.8][rank], abs=1e-6)
        assert found["is cut then"]


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.seen: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.weight.dtype
        return (self.weight * x).sum()


def precision(_: Path) -> dict[str, Any]:
    found = {}
    for name, reduce_dtype in (("default", None), ("in bfloat16", torch.bfloat16)):
        model = sharded(Scale(), param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
        model(torch.tensor([[256.0, 256.0], [1.0, 1.0]][dist.get_rank()])).backward()
        (weight,) = model.parameters()
        found[name] = (model.seen, weight.dtype, weight.grad.dtype, float(weight.grad.full_tensor()[0]))
    return found


def test_bfloat16_computes_while_parameters_and_sums_stay_in_float32(ranks: Any) -> None:
    for found in ranks["precision"]:
        seen, held, gradient, value = found["default"]
        assert (seen, held, gradient) == (torch.bfloat16, torch.float32, torch.float32)
        assert value == 128.5
        assert found["in bfloat16"][3] == 128.0, "257 has too many bits for bfloat16"


def resharding(_: Path) -> dict[str, int]:
    found = {}
    for name, reshard in (("cut again", True), ("kept", False)):
        model = sharded(gpt(), reshard_after_forward=reshard)
        for _step in range(2):
            with traffic() as sent:
                token_loss(model(tokens_of(0)[0]), tokens_of(0)[1]).total.backward()
        found[name] = sum(op.calls for kind, op in sent.by_op.items() if "all_gather" in kind)
    return found


def test_blocks_that_are_cut_again_are_gathered_twice_a_step(ranks: Any) -> None:
    for found in ranks["resharding"]:
        assert found == {"cut again": 1 + 2 * 2, "kept": 1 + 2}  # embedding and head are one group


def accumulation(_: Path) -> dict[str, Any]:
    model = sharded(gpt())
    for number in (0, 1):
        inputs, targets = tokens_of(2 * number + dist.get_rank())
        with traffic() as sent:
            if number == 0:
                with no_sync(model):
                    token_loss(model(inputs), targets).total.backward()
                reduced_early = sum(op.calls for kind, op in sent.by_op.items() if "reduce_scatter" in kind)
            else:
                token_loss(model(inputs), targets).total.backward()
    gradients = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    return {"early": reduced_early, "gradients": gradients}


def test_accumulated_micro_batches_are_reduced_once_and_give_the_gradient_of_all(ranks: Any) -> None:
    model = gpt()
    for number in range(4):
        inputs, targets = tokens_of(number)
        (token_loss(model(inputs), targets).total / 2).backward()
    for found in ranks["accumulation"]:
        assert found["early"] == 0
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found["gradients"][name], parameter.grad, rtol=0, atol=1e-12)


def states(_: Path) -> dict[str, Any]:
    model = sharded(gpt(dist.get_rank()))
    own = gather_state(model, full=False)["model"]
    whole = gather_state(model)
    zeroed = {"model": {name: torch.zeros_like(t) for name, t in whole.get("model", {}).items()}}
    errors = []
    for change in ({"model": {}}, {"model": {**zeroed["model"], "head.norm.weight": torch.zeros(3)}}):
        try:
            scatter_state(change, model)
        except UserError as error:
            errors.append(str(error))
    unchanged = gather_state(model)
    return {
        "rows": (own["embedding.token.weight"].shape[0], own["embedding.token.weight"].to_local().shape[0]),
        "whole": whole,
        "errors": errors,
        "unchanged": unchanged,
    }


def test_rank_0_alone_holds_the_whole_state_and_each_rank_its_part(ranks: Any) -> None:
    first, second = ranks["states"]
    assert second["whole"] == {}
    for name, tensor in gpt(0).state_dict().items():  # rank 0's weights, though rank 1 began with others
        assert torch.equal(first["whole"]["model"][name], tensor), name
    assert first["rows"] == second["rows"] == (12, 6)


def test_the_state_of_another_model_changes_nothing_on_any_rank(ranks: Any) -> None:
    for found in ranks["states"]:
        missing, shape = found["errors"]
        assert missing == "state is of another model: embedding.token.weight is missing in state"
        assert "head.norm.weight has shape [3] in state, the model's has [8]" in shape
    first = ranks["states"][0]
    for name, tensor in first["whole"]["model"].items():
        assert torch.equal(first["unchanged"]["model"][name], tensor)


def exported(folder: Path) -> dict[str, Any]:
    model = sharded(gpt())
    path = export_model(model, folder / "model.safetensors")
    dist.barrier()
    alone = gpt(5)
    import_model(alone, path)
    return {
        "equal": all(torch.equal(a, b) for a, b in zip(alone.parameters(), gpt().parameters(), strict=True))
    }


def test_a_sharded_model_is_written_once_as_one_process_has_it(ranks: Any) -> None:
    assert [found["equal"] for found in ranks["exported"]] == [True, True]


def from_meta(_: Path) -> dict[str, Any]:
    state = gather_state(gpt())
    with torch.device("meta"):
        model = GPT(**SIZES).double()  # type: ignore[arg-type]
    sharded(model).to_empty(device="cpu")
    scatter_state(state, model)
    return gather_state(model)


def test_a_model_that_was_cut_on_the_meta_device_takes_a_whole_state(ranks: Any) -> None:
    for name, tensor in gpt().state_dict().items():
        assert torch.equal(ranks["from_meta"][0]["model"][name], tensor), name


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    return token_loss(logits, targets).total


def refusals(_: Path) -> dict[str, str]:
    mesh = build_mesh(ParallelDims(dp_shard=2))
    copies, stages, tp = (
        build_mesh(ParallelDims(**{axis: 2}))
        for axis in ("dp_replicate", "pp", "tp")  # type: ignore[arg-type]
    )
    shared = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shared[1].weight = shared[0].weight
    unequal = nn.Linear(2, 1 + dist.get_rank())
    cases = {
        "sparse": lambda: fully_sharded(nn.Sequential(nn.Embedding(4, 2, sparse=True)), mesh),
        "dtype": lambda: fully_sharded(nn.Linear(2, 2), mesh, param_dtype=torch.int8),
        "reshard": lambda: fully_sharded(gpt(), mesh, reshard_after_forward=3),
        "block": lambda: fully_sharded(gpt(), mesh, blocks=["blocks.7"]),
        "shared": lambda: fully_sharded(shared, mesh, blocks=["0"]),
        "by hand": lambda: fully_sharded(tensor_parallel(gpt(), tp["tp"], engine="by_hand"), mesh),
        "unequal": lambda: fully_sharded(unequal, mesh),
        "zero": lambda: ShardedOptimizer(sharded(gpt()).parameters(), torch.optim.AdamW),
        "pipeline": lambda: parallelize(gpt(), stages),
        "nothing sharded": lambda: parallelize(gpt(), copies, param_dtype=torch.bfloat16),
        "no plan": lambda: parallelize(nn.Linear(2, 2), tp),
        "zero bubble": lambda: pipeline(
            parallelize_stages(split(gpt(), 2), mesh, [0, 1]), build_schedule("zero_bubble", 2, 2), summed
        ),
    }
    found = {}
    for name, case in cases.items():
        try:
            case()
            found[name] = "accepted"
        except UserError as error:
            found[name] = str(error)
    return found


def test_what_cannot_be_sharded_is_refused_by_name(ranks: Any) -> None:
    for found in ranks["refusals"]:
        assert found["sparse"].startswith("0.weight: FSDP has no sparse gradients")
        assert "param_dtype = torch.int8: choose a floating-point dtype" in found["dtype"]
        assert "reshard_after_forward = 3 does not divide dp_shard = 2" in found["reshard"]
        assert "has no submodule 'blocks.7'" in found["block"]
        assert found["shared"] == "1.weight is also a parameter of 0: leave 0 out of blocks"
        assert "engine='dtensor'" in found["by hand"]
        assert "rank 0 has parameter (1, 2) float32, rank 1 has parameter (2, 2) float32" in found["unequal"]
        assert "take AdamW itself" in found["zero"]
        assert found["pipeline"].startswith("pp = 2: split the model")
        assert found["nothing sharded"].startswith("param_dtype: nothing is sharded")
        # Its gradients came out wrong in silence, by hand and by torch.
        assert found["zero bubble"].startswith(
            "schedule = 'zero_bubble' takes the gradients of weights apart"
        )
        assert "dp_replicate instead of dp_shard" in found["zero bubble"]
        assert found["no plan"] == "tp = 2: there is no plan for Linear; take tp = 1"


def only_rank_0(call: str) -> None:
    with dtlab.world() as w:
        model = sharded(gpt())
        if w.is_main and call == "gather_state()":
            gather_state(model, enter_seconds=2)
        elif w.is_main:
            scatter_state({}, model, enter_seconds=2)


@pytest.mark.parametrize("call", ["gather_state()", "scatter_state()"])
def test_a_state_that_rank_0_alone_asks_for_names_the_missing_rank(call: str) -> None:
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(only_rank_0, 2, call, timeout=120, echo=False)
    assert f"all ranks must enter {call}, and rank 1 did not within 2 s" in str(caught.value)
