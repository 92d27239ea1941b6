"""Pipelines on real ranks: equal to one process, by hand and by torch, in the order that was promised."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

import dtlab
from dtlab.errors import UserError
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel.actions import Schedule
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.pipeline import pipeline
from dtlab.parallel.schedules import SCHEDULES, build_schedule
from dtlab.parallel.simulate import simulate
from dtlab.parallel.split import split
from dtlab.parallel.tied import TiedCopies

VOCAB, LENGTH, LAYERS, STEPS, BATCH = 11, 6, 6, 4, 8
RUNS = [(name, engine, 4) for name in SCHEDULES for engine in ("by_hand", "torch")]
Run = tuple[str, str, int]
"""Schedule, engine, micro-batches."""


def launch(function: Any, nproc: int, *args: Any) -> list[Any]:
    return list(dtlab.launch(function, nproc, *args, timeout=180, echo=False))


def gpt(seed: int) -> GPT:
    torch.manual_seed(seed)
    return GPT(VOCAB, LENGTH, dim=8, num_layers=LAYERS, num_heads=2).double()


def batch(step: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCAB, (size, LENGTH + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[0, : step + 1] = -100  # unequal numbers of tokens in the micro-batches
    return tokens[:, :-1], targets


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return token_loss(logits, targets).total


def train_on_stages(
    name: str, engine: str, micro_batches: int, size: int = BATCH, seed_by_rank: bool = False
) -> dict[str, Any]:
    w = dtlab.world()
    schedule = build_schedule(name, w.size, micro_batches)
    model = gpt(seed=w.rank if seed_by_rank else 0)
    pipe = pipeline(split(model, schedule.num_stages), schedule, loss, engine=engine)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        tokens, targets = batch(step, size)
        optimizer.zero_grad()
        losses.append(float(pipe.step(tokens, targets, int((targets != -100).sum()))))
        optimizer.step()
    tokens, targets = batch(99, size)
    timeline = pipe.timeline()
    evaluated = [float(pipe.evaluate(tokens, targets))]
    if engine == "torch" and name != "zbv":
        whole = pipe._engine.evaluate(tokens, targets, size)  # what a GPU uses; 0 off the last stage
        evaluated.append(float(dtlab.mean(whole)) * w.size)
    return {
        "losses": losses,
        "evaluated": evaluated,
        "state": {name: p.detach() for stage in pipe.stages.values() for name, p in stage.named_parameters()},
        "timeline": [[span.action for span in spans] for spans in timeline.ranks],
        "peak_live": timeline.peak_live,
        "bubble": timeline.bubble_share,
        "counted_elsewhere": pipe.tied,
    }


def train_all(runs: list[Run]) -> dict[Run, Any]:
    with dtlab.world():
        return {run: train_on_stages(*run) for run in runs}


def train_in_one_process(size: int = BATCH) -> dict[str, Any]:
    model = gpt(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        tokens, targets = batch(step, size)
        optimizer.zero_grad()
        value = loss(model(tokens), targets) / (targets != -100).sum()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    tokens, targets = batch(99, size)
    return {
        "losses": losses,
        "evaluated": float(loss(model(tokens), targets).detach() / size),
        "state": {name: p.detach() for name, p in model.named_parameters()},
    }


def assert_equal_to_one_process(results: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    seen = set()
    for result in results:
        assert result["losses"] == pytest.approx(expected["losses"], abs=1e-10), "known to every rank"
        wanted = [expected["evaluated"]] * len(result["evaluated"])
        assert result["evaluated"] == pytest.approx(wanted, abs=1e-10)
        for name, tensor in result["state"].items():
            known = expected["state"].get(name)
            if name == "head.output.weight":
                known = expected["state"]["embedding.token.weight"]
            torch.testing.assert_close(tensor, known, rtol=0, atol=1e-10, msg=name)
            seen.add(name)
    assert seen >= set(expected["state"]), "every parameter lives on some rank"


@pytest.fixture(scope="module")
def one_process() -> dict[str, Any]:
    return train_in_one_process()


def run_all(functions: list[Any]) -> dict[str, Any]:
    """One launch for many tests: starting ranks takes longer than what they do."""
    with dtlab.world():
        return {function.__name__: function() for function in functions}


@pytest.fixture(scope="module")
def ranks() -> dict[int, dict[str, list[Any]]]:
    """Number of ranks -> name of a function -> what it returned on each rank."""
    found = {}
    for size, functions in (
        (2, [train_two, uneven_and_few, orders_of_torch, tied_steps, refusals]),
        (4, [train_four, orders_of_torch, tied_gradients_of_two_replicas, train_on_replicas_of_stages]),
    ):
        results = launch(run_all, size, functions)
        found[size] = {fn.__name__: [result[fn.__name__] for result in results] for fn in functions}
    return found


def train_two() -> dict[Run, Any]:
    return train_all(RUNS)


def train_four() -> dict[Run, Any]:
    by_torch = [(name, "torch", 8) for name in SCHEDULES]
    few = [("1f1b", "by_hand", 2), ("gpipe", "by_hand", 1), ("gpipe", "torch", 2)]
    return train_all([("1f1b", "by_hand", 8), *by_torch, *few])


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_two_ranks_train_as_one_process_with_every_schedule_and_engine(
    run: Run, ranks: Any, one_process: dict[str, Any]
) -> None:
    assert_equal_to_one_process([result[run] for result in ranks[2]["train_two"]], one_process)


def test_four_ranks_train_as_one_process_also_with_fewer_micro_batches_than_ranks(
    ranks: Any, one_process: dict[str, Any]
) -> None:
    for run in ranks[4]["train_four"][0]:
        assert_equal_to_one_process([result[run] for result in ranks[4]["train_four"]], one_process)


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_both_engines_execute_the_order_of_our_schedule_and_hold_what_was_simulated(
    run: Run, ranks: Any
) -> None:
    schedule = build_schedule(run[0], 2, run[2])
    for result in ranks[2]["train_two"]:
        assert result[run]["timeline"] == [list(actions) for actions in schedule.ranks]
        assert result[run]["peak_live"] == simulate(schedule).peak_live
        assert 0 <= result[run]["bubble"] < 1


def test_torch_executes_our_order_on_four_ranks(ranks: Any) -> None:
    for run, result in ranks[4]["train_four"][0].items():
        schedule = build_schedule(run[0], 4, run[2])
        assert result["timeline"] == [list(actions) for actions in schedule.ranks], run
        assert result["peak_live"] == simulate(schedule).peak_live


def orders_of_torch() -> dict[tuple[str, int, int], list[list[str]]]:
    """What torch's multi-stage classes list, without empty slots and without what does not compute."""
    classes = {
        "interleaved": (pipelining.ScheduleInterleaved1F1B, (2, 3)),
        "zero_bubble": (pipelining.ScheduleInterleavedZeroBubble, (1, 2)),
        "zbv": (pipelining.ScheduleZBVZeroBubble, (2,)),
    }
    listed = {}
    with dtlab.world() as w:
        for name, (kind, chunks) in classes.items():
            for v in chunks:
                numbers = range(w.rank, v * w.size, w.size)
                for m in range(1, 17):
                    if name != "zbv" and m % max(1, m // w.size):
                        continue
                    stages = [
                        pipelining.PipelineStage(nn.Identity(), number, v * w.size, torch.device("cpu"))
                        for number in numbers
                    ]
                    order = kind(stages, m).pipeline_order
                    listed[name, v, m] = [
                        [str(a) for a in order[rank] if a is not None and a.computation_type.value in "FBIW"]
                        for rank in range(w.size)
                    ]
    return listed


@pytest.mark.parametrize("size", [2, 4])
def test_our_orders_are_those_that_torch_lists_for_several_stages_a_rank(size: int, ranks: Any) -> None:
    listed = ranks[size]["orders_of_torch"][0]
    assert len(listed) > 40
    for (name, v, m), order in listed.items():
        ours = build_schedule(name, size, m, v)
        assert [[str(action) for action in actions] for actions in ours.ranks] == order, (name, v, m)


def uneven_and_few() -> dict[str, Any]:
    with dtlab.world():
        return {
            "uneven": train_on_stages("1f1b", "by_hand", 3, size=7),
            "fewer micro-batches than ranks": train_on_stages("1f1b", "by_hand", 1, size=7),
            "interleaved": train_on_stages("interleaved", "by_hand", 3, size=7),
            "other weights on each rank": train_on_stages("1f1b", "by_hand", 2, size=7, seed_by_rank=True),
        }


def test_unequal_and_few_micro_batches_are_exact_by_hand(ranks: Any) -> None:
    expected = train_in_one_process(size=7)
    results = ranks[2]["uneven_and_few"]
    for run in ("uneven", "fewer micro-batches than ranks", "interleaved"):
        assert_equal_to_one_process([result[run] for result in results], expected)
    assert len(set(results[0]["uneven"]["losses"])) == STEPS
    # Tied copies start from the first rank's values and stay equal to the last bit.
    first, last = (result["other weights on each rank"] for result in results)
    assert torch.equal(first["state"]["embedding.token.weight"], last["state"]["head.output.weight"])
    assert (first["counted_elsewhere"], last["counted_elsewhere"]) == ([], [(1, "head.output.weight")])


def tied_step(sum_them: bool, steps: int = 1) -> Tensor:
    """One SGD step of a tied model on two stages, over some calls; this rank's copy of the matrix."""
    torch.manual_seed(0)
    model = GPT(8, LENGTH, dim=4, num_layers=2, num_heads=1)
    parts = split(model, 2)
    assert parts.tied
    pipe = pipeline(parts if sum_them else parts.stages, build_schedule("1f1b", 2, 2), loss)
    tokens, targets = batch(0)
    for part, wanted in zip((tokens % 8).chunk(steps), (targets % 8).chunk(steps), strict=True):
        pipe.step(part, wanted, BATCH)
    torch.optim.SGD(pipe.parameters(), lr=0.1).step()
    return next(p.detach() for p in pipe.parameters() if p.shape == (8, 4))


def tied_steps() -> list[Tensor]:
    with dtlab.world():
        return [tied_step(sum_them=True), tied_step(sum_them=False), tied_step(sum_them=True, steps=2)]


def test_tied_copies_stay_one_to_the_last_bit_and_drift_apart_without_the_sum(ranks: Any) -> None:
    torch.manual_seed(0)
    model = GPT(8, LENGTH, dim=4, num_layers=2, num_heads=1)
    tokens, targets = batch(0)
    (loss(model(tokens % 8), targets % 8) / BATCH).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    (first, first_alone, first_in_two), (last, last_alone, last_in_two) = ranks[2]["tied_steps"]
    assert torch.equal(first, last)
    assert torch.equal(first_in_two, last_in_two)
    torch.testing.assert_close(first_in_two, first, rtol=0, atol=1e-6)  # accumulated over two calls
    torch.testing.assert_close(first, model.head.output.weight.detach(), rtol=0, atol=1e-6)
    assert (first_alone - last_alone).abs().max() > 1e-3


def tied_gradients_of_two_replicas() -> float:
    with dtlab.world() as w:
        dims = ParallelDims(dp_replicate=2, pp=2)
        mesh, place = build_mesh(dims), dims.place(w.rank)
        stages = [nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)]
        tied = (((0, "weight"), (1, "weight")),)
        schedule = build_schedule("gpipe", 2, 1)
        group = mesh["pp"].get_group()
        copies = TiedCopies(tied, {place.pp: stages[place.pp]}, schedule, place.pp, group)
        weight = stages[place.pp].weight
        weight.grad = torch.tensor([[w.rank + 1.0]])
        copies.sum_gradients([None])
        dist.all_reduce(weight.grad, group=mesh["dp_replicate"].get_group())
        return float(weight.grad) / dims.dp


def test_tied_gradients_are_summed_over_the_stages_before_the_mean_over_replicas(ranks: Any) -> None:
    assert ranks[4]["tied_gradients_of_two_replicas"] == [5.0] * 4  # ((1 + 3) + (2 + 4)) / 2


def train_on_replicas_of_stages() -> dict[str, Any]:
    with dtlab.world() as w:
        dims = ParallelDims(dp_replicate=-1, pp=2).of(w.size)
        mesh, place = build_mesh(dims), dims.place(w.rank)
        group, replicas = mesh["pp"].get_group(), mesh["dp_replicate"].get_group()
        pipe = pipeline(split(gpt(0), 2), build_schedule("1f1b", 2, 2), loss, group=group)
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.01)
        losses = []
        for step in range(STEPS):
            tokens, targets = batch(step)
            count = int((targets != -100).sum())
            mine = slice(place.dp_replicate, None, dims.dp)
            optimizer.zero_grad()
            value = pipe.step(tokens[mine], targets[mine], count)
            dist.all_reduce(value, group=replicas)
            for parameter in pipe.parameters():
                dist.all_reduce(parameter.grad, group=replicas)
            optimizer.step()
            losses.append(float(value))
        tokens, targets = batch(99)
        state = {n: p.detach() for stage in pipe.stages.values() for n, p in stage.named_parameters()}
        return {"losses": losses, "evaluated": [float(pipe.evaluate(tokens, targets))], "state": state}


def test_two_replicas_of_two_stages_train_as_one_process(ranks: Any, one_process: dict[str, Any]) -> None:
    assert_equal_to_one_process(ranks[4]["train_on_replicas_of_stages"], one_process)


def stage_that_fails() -> None:
    with dtlab.world() as w:
        parts = (nn.Linear(2, 2), nn.Linear(3, 2))  # the second one takes another width
        pipe = pipeline(parts, build_schedule("1f1b", w.size, 2), nn.MSELoss(reduction="sum"))
        pipe.step(torch.ones(2, 2), torch.ones(2, 2))


def test_a_stage_that_fails_ends_all_ranks_and_is_named() -> None:
    with pytest.raises(dtlab.RankError, match=r"rank 1 of 2 failed: RuntimeError: .*cannot be multiplied"):
        launch(stage_that_fails, 2)


def refusals() -> dict[str, str]:
    found = {}
    with dtlab.world() as w:
        parts = split(gpt(0), w.size)
        tokens, targets = batch(0)
        mine = Schedule.of("mine", 1, [["0F0", "0B0"], ["1F0", "1B0"]])
        attempts = {
            "uneven": lambda: pipeline(parts, build_schedule("gpipe", w.size, 3), loss, engine="torch").step(
                tokens, targets
            ),
            "few": lambda: pipeline(parts, build_schedule("1f1b", w.size, 1), loss, engine="torch"),
            "own": lambda: pipeline(parts, mine, loss, engine="torch"),
            "ranks": lambda: pipeline(parts, build_schedule("gpipe", 4, 4), loss),
            "stages": lambda: pipeline(parts, build_schedule("interleaved", 2, 4), loss),
            "small": lambda: pipeline(parts, build_schedule("gpipe", 2, 9), loss).step(tokens, targets),
            "targets": lambda: pipeline(parts, build_schedule("gpipe", 2, 2), loss).step(tokens, targets[1:]),
            "engine": lambda: pipeline(parts, build_schedule("gpipe", 2, 2), loss, engine="jax"),  # type: ignore[arg-type]
            "illegal": lambda: pipeline(parts, Schedule.of("bad", 1, [["0B0", "0F0"], []]), loss),
        }
        for name, attempt in attempts.items():
            try:
                attempt()
            except UserError as error:
                found[name] = str(error)
    return found


def test_what_a_pipeline_cannot_run_is_refused_with_its_numbers_before_anything_is_sent(ranks: Any) -> None:
    for told in ranks[2]["refusals"]:
        assert "batch of 8 samples, 3 micro-batches" in told["uneven"]
        assert "num_micro_batches = 1 is below the 2 ranks" in told["few"]
        assert "schedule 'mine' is none of torch's" in told["own"]
        assert "the schedule is for 4 ranks, the group has 2" in told["ranks"]
        assert "model_parts has 2 stages, the schedule runs 4" in told["stages"]
        assert "batch of 8 samples cannot be cut into 9" in told["small"]
        assert "8 inputs, 7 targets" in told["targets"]
        assert "engine = 'jax'" in told["engine"]
        assert "rank 0 runs 0B0 before 0F0" in told["illegal"]


def test_a_pipeline_of_one_rank_needs_no_process_group() -> None:
    expected = train_in_one_process()
    assert_equal_to_one_process([train_on_stages("1f1b", "by_hand", 4)], expected)
    schedule = build_schedule("1f1b", 1, 4)
    with pytest.raises(UserError, match="engine = 'torch': no process group"):
        pipeline(split(gpt(0), 1), schedule, loss, engine="torch")


def test_a_clock_of_ones_own_times_the_actions() -> None:
    ticks = iter(range(100))
    schedule = build_schedule("1f1b", 1, 4)
    pipe = pipeline(split(gpt(0), 1), schedule, loss, clock=lambda: float(next(ticks)))
    pipe.step(*batch(0))
    assert [span.start for span in pipe.timeline().ranks[0]] == [float(2 * place) for place in range(8)]
