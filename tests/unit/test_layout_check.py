"""A layout that does not fit is one line with exit code 2, before ranks start and data are read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtlab.cli import main
from dtlab.commands.short_flags import written_out
from dtlab.errors import UserError
from dtlab.parallel.dims import ParallelDims
from dtlab.train.config import ModelConfig, OptimConfig, TrainConfig
from dtlab.train.config_parallel import ParallelConfig
from dtlab.train.layout_check import check_layout, micro_batches

GPT = "--model gpt --model.dim 12 --model.num-layers 3 --model.num-heads 6 --optim.global-batch 8 "
REFUSED = {
    GPT + "--tp 2 --nproc 3": "pp 1 x dp_shard 1 x tp 2 = 2 does not divide the 3 ranks",
    GPT + "--tp 2 --dp-replicate 1 --nproc 4": "= 2, but there are 4 ranks",
    GPT + "--tp 4": "tp = 4 does not divide num_heads = 6; degrees that do: 1, 2",
    GPT + "--tp 3": "tp = 3 does not divide vocab_size = 256; degrees that do: 1, 2",
    GPT + "--pp 4": "4 stages, but num_layers = 3",
    GPT + "--pp 2 --parallel.schedule interleaved": "2 stages a rank = 4 stages, but num_layers = 3",
    GPT + "--pp 2 --parallel.micro-batches 3": "= 8: 3 micro-batches do not divide it; take 6 or 9",
    GPT + "--pp 2 --nproc 6": "global_batch = 8: 3 pipelines x 4 micro-batches do not divide it; take 12",
    GPT + "--pp -1 --dp-shard -1 --nproc 4": "parallel.dp_shard and parallel.pp are -1: only one",
    GPT + "--tp 0": "parallel.tp = 0: give a number of ranks, 1 or more, or -1",
    GPT + "--parallel.sequence-parallel": "sequence_parallel = True: needs tp above 1",
    GPT + "--tp 2 --pp 2 --parallel.sequence-parallel": "pp = 2; take pp = 1",
    GPT + "--tp 2 --model.sequence 33 --parallel.sequence-parallel": "model.sequence = 33; change one",
    GPT + "--tp 2 --parallel.engine by_hand --parallel.sequence-parallel": "'by_hand' has it not",
    GPT + "--tp 2 --dp-shard 2 --parallel.engine by_hand": "cannot be cut once more by dp_shard = 2",
    GPT + "--tp 2 --parallel.zero1": "parallel.zero1 = True: deals out the state of whole models",
    GPT + "--tp 2 --run.engine by_hand": "run.engine = 'by_hand': averages whole models",
    GPT + "--dp-shard 2 --precision.name fp16": "precision.name = 'fp16': ranks with parts",
    GPT + "--dp-shard 2 --precision.compile": "precision.compile = True: is for whole models",
    GPT + "--dp-shard 2 --pp 2 --parallel.schedule zero_bubble": "schedule = 'zero_bubble': takes the grad",
    GPT + "--parallel.micro-batches 4": "micro_batches = 4: needs pp above 1; leave it out, or give pp",
    GPT + "--tp 2 --parallel.schedule gpipe": "schedule = 'gpipe': needs pp above 1",
    GPT + "--pp 2 --parallel.engine by_hand": "engine = 'by_hand': needs tp above 1",
    GPT + "--pp 2 --parallel.micro-batches 1000000000": "1,000,000,000 micro-batches of a step, a pipeline",
    GPT + "--nproc 1 --tp 2": "does not divide the 1 rank, so",
    GPT + "--tp 2 --parallel.tp 3": "--tp: is given as --parallel.tp too; leave one of them out",
    "--model gpt --model.dim 10 --tp 2": "model.num_heads = 4: does not divide model.dim = 10",
    "--data clicks --tp 2": "tp = 2: data.name = 'clicks' trains a DeepFM",
    "--data clicks --dp-shard 2": "dp_shard = 2: data.name = 'clicks' trains a DeepFM",
    "--pp 2": "pp = 2: data.name = 'flights' trains a DeepFM",
    "--model gpt --data flights": "model = 'gpt': data.name = 'flights' is a table; leave --model out",
    "--model gtp": "model = 'gtp': choose deepfm or gpt",
    "--model": "--model: needs a value, for example --model gpt",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_layout_that_does_not_fit_is_refused_in_one_line(
    words: str, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("ranks were started")

    monkeypatch.setattr("dtlab.ranks.launcher.launch", never)
    assert main(["train", *words.split(), "--run.output", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert captured.out == ""
    assert REFUSED[words] in line
    assert list(tmp_path.iterdir()) == []


def test_the_ladder_refuses_a_layout(capsys: Any) -> None:
    assert main(["ladder", "--parallel.tp", "2"]) == 2
    assert "parallel: the ladder measures data parallelism alone" in capsys.readouterr().err


def test_the_number_of_ranks_is_the_product_of_the_degrees(monkeypatch: Any) -> None:
    def launched(_run: Any, ranks: int, config: TrainConfig, **_: Any) -> None:
        raise UserError(f"{ranks} ranks, {config.data.name}, {check_layout(config, ranks).shape}")

    monkeypatch.setattr("dtlab.ranks.launcher.launch", launched)
    with pytest.raises(UserError, match=r"4 ranks, text, \(2, 1, 1, 2\)"):
        train("--model", "gpt", "--tp", "2", "--pp", "2")
    with pytest.raises(UserError, match=r"1 ranks, flights, \(1, 1, 1, 1\)"):
        train()


def train(*words: str) -> None:
    from dtlab.cli import app
    from dtlab.commands.short_flags import written_out as out

    app.config = ()
    command, bound, _ = app.parse_args(
        out(["train", *words], lambda: None), print_error=False, exit_on_error=False
    )
    command(*bound.args, **bound.kwargs)


def test_a_model_reads_the_data_that_the_file_names() -> None:
    assert written_out(["train", "a.toml", "--model=gpt"], lambda: None)[-2:] == ["--data.name", "text"]
    assert written_out(["train", "a.toml", "--model", "deepfm"], lambda: "parquet") == ["train", "a.toml"]
    with pytest.raises(UserError, match=r"data\.name = 'text' is text"):
        written_out(["train", "a.toml", "--model", "deepfm"], lambda: "text")


@pytest.mark.parametrize(
    ("batch", "micro_batch", "dims", "expected"),
    [
        (32, 8, ParallelDims(pp=2, tp=2), 4),
        (32, 8, ParallelDims(pp=2, dp_replicate=2), 2),
        (32, 12, ParallelDims(pp=2), 4),  # 3 would do, and a multiple of pp fits every schedule
        (32, 32, ParallelDims(pp=4), 4),
        (64, None, ParallelDims(pp=4), 8),
        (2, None, ParallelDims(pp=2), 2),
    ],
)
def test_accumulation_becomes_micro_batches(
    batch: int, micro_batch: int | None, dims: ParallelDims, expected: int
) -> None:
    config = TrainConfig(optim=OptimConfig(global_batch=batch, micro_batch=micro_batch))
    assert micro_batches(config, dims) == expected


def test_every_fitting_layout_of_eight_ranks_is_taken() -> None:
    config = TrainConfig(model=ModelConfig(num_layers=8, num_heads=8), optim=OptimConfig(global_batch=256))
    config = replace(config, data=replace(config.data, name="text"))
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4, 8):
            if tp * pp <= 8:
                parallel = ParallelConfig(tp=tp, pp=pp, dp_shard=-1)
                dims = check_layout(replace(config, parallel=parallel), 8)
                assert dims.shape == (pp, 1, 8 // (tp * pp), tp)
