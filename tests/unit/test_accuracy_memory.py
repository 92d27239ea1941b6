"""Published runs are predicted within the stated bounds; columns are read, defaulted as said, or refused."""

import json
from pathlib import Path

import pytest

from benchmarks import accuracy
from benchmarks.measured_memory import Run, read_runs
from dtlab.cost.memory_error import FSDP, PIPELINE, PLAIN
from dtlab.cost.programs import KEMPNER_FORGE, NANOTRON, TORCH
from dtlab.errors import UserError

NANO = "model,n_gpus,nodes,dp,tp,pp,zero,mbs,grad_accum,gbs_seqs,gpu_mem_gib,exclude_reason\n"
TABLE = (
    "series,model,params,seq_len,precision,n_gpus,tp,pp,dp,sharding,micro_batch,grad_accum,global_batch,"
    "act_ckpt,peak_mem_gb,notes\n"
)


@pytest.fixture(scope="module")
def published() -> list[Run]:
    return read_runs(accuracy.RUNS)[0]


def one(path: Path, header: str, line: str) -> Run:
    path.write_text(header + line + "\n")
    (run,), left_out = read_runs(path)
    assert left_out == []
    return run


def test_peak_memory_of_published_runs_is_within_the_targets(published: list[Run]) -> None:
    plain = [run for run in published if accuracy.without_pipeline(run)]
    piped = [run for run in published if accuracy.with_pipeline(run)]
    assert (len(plain), len(piped)) == (171, 538)
    assert accuracy.mape(plain) < 0.08  # type: ignore[operator]
    assert accuracy.mape(piped) < 0.14  # type: ignore[operator]
    assert abs(accuracy.mean(run.error for run in plain)) < 0.03  # type: ignore[arg-type]
    assert accuracy.unsafe_share(plain + piped, 0.8) < 0.02  # type: ignore[operator]


def test_the_errors_beside_predictions_are_the_measured_ones(published: list[Run]) -> None:
    others = [run for run in read_runs(accuracy.OTHER_RUNS)[0] if run.name == "torchtitan"]
    for stated, runs in (
        (PLAIN, [run for run in published if accuracy.without_pipeline(run)]),
        (PIPELINE, [run for run in published if accuracy.with_pipeline(run)]),
        (FSDP, others),
    ):
        assert stated.rows == len(runs)
        assert accuracy.mape(runs) == pytest.approx(stated.mape, abs=0.0006)
        assert accuracy.mean(run.error for run in runs) == pytest.approx(stated.bias, abs=0.0006)


def test_at_tp_8_it_is_no_worse_than_over_all(published: list[Run]) -> None:
    at_8 = [run for run in published if accuracy.without_pipeline(run) and run.strategy.tp == 8]
    assert accuracy.mape(at_8) < 0.08  # type: ignore[operator]


def test_each_model_is_within_the_targets_without_having_been_seen(published: list[Run]) -> None:
    plain, piped = accuracy.held_out(published)
    assert plain < 0.08  # type: ignore[operator]
    assert piped < 0.14  # type: ignore[operator]


def test_other_programs_on_other_cards() -> None:
    runs, left_out = read_runs(accuracy.OTHER_RUNS)
    assert left_out == []
    assert accuracy.mape(run for run in runs if run.name == "torch") < 0.03  # type: ignore[operator]
    assert accuracy.mape(run for run in runs if run.name == "torchtitan") < 0.12  # type: ignore[operator]


def test_the_unsharded_gradient_is_what_is_missing_without_it(tmp_path: Path) -> None:
    line = "KempnerForge,Llama 7B,6.74B,4096,BF16,8,1,1,8,FSDP2 8,2,4,,full,40,"
    run = one(tmp_path / "runs.csv", TABLE, line)
    assert run.program == KEMPNER_FORGE
    assert (run.strategy.precision, run.strategy.sync_every_micro_batch) == ("bf16", False)
    n = run.model.parameters
    states = 6 * n / 8 + 4 * n
    assert states < run.predicted_bytes() < 1.5 * states
    synced = one(tmp_path / "runs.csv", TABLE, line.replace("FSDP2 8,2,4", "FSDP2 8,2,1"))
    assert run.predicted_bytes() - synced.predicted_bytes() > 3 * n


def test_a_pipeline_of_forge_keeps_weights_and_a_whole_head(tmp_path: Path) -> None:
    line = "KempnerForge,29B,,4096,BF16,32,4,2,4,FSDP2 4,1,8,,full,100,"
    run = one(tmp_path / "runs.csv", TABLE, line)
    assert not run.program.cuts_head
    assert not run.strategy.sequence_parallel
    assert run.predicted_bytes() > (4 + 2) * run.model.parameters / 8


def test_nanotrons_rows_are_rank_0_with_its_habits(tmp_path: Path) -> None:
    run = one(tmp_path / "runs.csv", NANO, "8B,16,2,4,2,2,1,4,16,256,50.0,")
    assert run.program == NANOTRON
    assert run.rank_0
    strategy = run.strategy
    assert (strategy.fp32_gradients, strategy.sequence_parallel, strategy.zero) == (True, True, 1)
    assert (strategy.dp_replicate, strategy.micro_batch, strategy.num_micro_batches) == (4, 4, 16)
    assert run.measured_bytes == 50 * 2**30


def test_blank_columns_take_the_stated_defaults(tmp_path: Path) -> None:
    run = one(tmp_path / "runs.csv", TABLE, "somebody's,Llama 7B,,,,8,2,,,,4,,64,,40,")
    strategy = run.strategy
    assert run.program == TORCH
    assert (strategy.tp, strategy.pp, strategy.dp_replicate, strategy.zero) == (2, 1, 4, 0)
    assert (strategy.num_micro_batches, strategy.recompute, strategy.precision) == (4, "none", "bf16-mixed")
    assert run.seq_len == 4096


@pytest.mark.parametrize(
    ("line", "precision", "fp32_gradients", "zero"),
    [
        ("x,Llama 7B,,,BF16,8,1,1,8,FSDP2 8,1,1,,no,40,", "amp", False, 3),
        ("x,Llama 7B,,,pure BF16,8,1,1,8,FSDP2 8,1,1,,no,40,", "bf16", False, 3),
        ("x,Llama 7B,,,BF16 + fp32 grad accumulation,8,1,1,8,ZeRO-1,1,1,,no,40,", "bf16-mixed", True, 1),
        ("x,Llama 7B,,,FP32,8,1,1,8,DDP,1,1,,no,40,", "fp32", False, 0),
        ("x,Llama 7B,,,FP16 AMP,8,1,1,8,DDP,1,1,,no,40,", "amp", False, 0),
    ],
)
def test_numbers_by_the_words_of_the_table(
    tmp_path: Path, line: str, precision: str, fp32_gradients: bool, zero: int
) -> None:
    strategy = one(tmp_path / "runs.csv", TABLE, line).strategy
    assert (strategy.precision, strategy.fp32_gradients, strategy.zero) == (precision, fp32_gradients, zero)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x,Falcon 40B,,,BF16,8,1,1,8,DDP,1,1,,no,40,", "model = 'Falcon 40B': its shape is not known"),
        ("x,Llama 7B,9.9B,,BF16,8,1,1,8,DDP,1,1,,no,40,", "params = '9.9B'"),
        ("x,Llama 7B,,,BF16,8,3,1,2,DDP,1,1,,no,40,", "n_gpus = 8 is not dp 2 x tp 3"),
        ("x,Llama 7B,,,BF16,8,1,1,8,DDP,,1,,no,40,", "mbs (micro_batch) is blank"),
        ("x,Llama 7B,,,BF16,8,1,1,8,DDP,1,1,,no,,", "is blank: nothing to compare"),
        ("x,Llama 7B,,,BF16,8,1,1,8,DDP,1,1,,no,many,", "peak_mem_gb = 'many'"),
        ("x,Llama 7B,,,BF16,8,1,1,8,magic,1,1,,no,40,", "sharding = 'magic' is unknown"),
        ("x,Llama 7B,,,INT4,8,1,1,8,DDP,1,1,,no,40,", "precision = 'INT4' is unknown"),
        ("x,Llama 7B,,,BF16,8,1,1,8,DDP,1,1,,some,40,", "act_ckpt = 'some'"),
        ("x,Llama 7B,,,BF16,8,1,1,8,DDP,x,1,,no,40,", "micro_batch = 'x'"),
        ("x,Llama 7B,,,BF16,8,1,1,8,DDP,3,,64,no,40,", "global_batch = 64 is no multiple"),
        ("x,Llama 7B,,,BF16,8,1,1,8,ZeRO-3 offload,1,1,,no,40,", "'offload': is not predicted"),
        ("x,Mixtral MoE 7B,,,BF16,8,1,1,8,DDP,1,1,,no,40,", "mixtures of experts"),
        (",,,,BF16,8,1,1,8,DDP,1,1,,no,40,", "model is blank"),
    ],
)
def test_what_is_not_known_is_left_out_by_name(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "runs.csv").write_text(TABLE + line + "\n")
    runs, (left_out,) = read_runs(tmp_path / "runs.csv")
    assert runs == []
    assert left_out.startswith("line 2: ")
    assert reason in left_out


def test_a_shape_can_be_given_by_columns_or_in_the_name(tmp_path: Path) -> None:
    named = one(tmp_path / "runs.csv", TABLE, '"x","mine (L12 h768 ffn2048 V50257)",,,,1,1,1,1,,1,1,,no,40,')
    assert (named.model.layers, named.model.vocab) == (12, 50257)
    columns = TABLE.replace("notes", "notes,layers,hidden,ffn,heads,vocab,tied")
    given = one(tmp_path / "runs.csv", columns, "x,mine,,,,1,1,1,1,,1,1,,no,40,,12,768,2048,12,50257,yes")
    assert given.model.parameters == named.model.parameters - 768 * 50257


def test_one_call_prints_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rows = tmp_path / "runs.csv", tmp_path / "rows.csv"
    table.write_text(TABLE + "x,Llama 7B,,,BF16,8,1,1,8,FSDP2 8,1,1,,full,40,\nx,?,,,,,,,,,,,,,1,\n")
    arguments = ["--runs", str(table), "--rows", str(rows), "--json"]
    monkeypatch.setattr("sys.argv", ["accuracy", *arguments])
    accuracy.main(arguments)
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert figures["memory_rows"] == figures["memory_rows_left_out"] == 1
    assert figures["memory_mape_pp"] is None
    assert "line 3" in printed.err
    assert len(rows.read_text().splitlines()) == 2


def test_no_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give a CSV file"):
        read_runs(tmp_path / "missing.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="no column 'model'"):
        read_runs(tmp_path / "other.csv")


def test_a_row_that_cannot_be_scheduled_is_left_out_and_the_rest_is_scored(tmp_path: Path) -> None:
    columns = TABLE.replace("notes", "notes,schedule,stages_per_rank")
    rows = [
        "x,Llama 7B,,,BF16,8,1,8,1,DDP,1,10,,no,40,,interleaved,2",
        "x,Llama 7B,,,BF16,8,1,8,1,DDP,1,19,,no,40,,interleaved,2",
        "x,Llama 7B,,,BF16,8,1,8,1,DDP,1,16,,no,40,,interleaved,2",
    ]
    (tmp_path / "runs.csv").write_text(columns + "\n".join(rows) + "\n")
    runs, left_out = read_runs(tmp_path / "runs.csv")
    assert [run.line for run in runs] == [2, 4]
    assert "rounds" in left_out[0]


@pytest.mark.parametrize(
    ("sharding", "replicate", "shard"),
    [
        ("FSDP2 4", 2, 4),
        ("FSDP2", 1, 8),
        ("dp_shard=4", 2, 4),
        ("FSDP 8 x TP 1", 1, 8),
        ("FULL_SHARD (FSDP)", 1, 8),
    ],
)
def test_shards_by_the_words_of_the_table(tmp_path: Path, sharding: str, replicate: int, shard: int) -> None:
    run = one(tmp_path / "runs.csv", TABLE, f"x,Llama 7B,,,BF16,8,1,1,8,{sharding},1,1,,full,40,")
    assert (run.strategy.dp_replicate, run.strategy.dp_shard) == (replicate, shard)


def test_forge_computes_in_bf16_whatever_its_sums_are_in(tmp_path: Path) -> None:
    for words in ("BF16", "bf16 params, fp32 reduce", "BF16 (fp32 grad reduction)"):
        line = f'KempnerForge,7B dense,,4096,"{words}",8,1,1,8,FSDP2 8,2,4,,full,40,'
        assert one(tmp_path / "runs.csv", TABLE, line).strategy.precision == "bf16"
    line = "KempnerForge,7B dense,,4096,fp32 master,8,1,1,8,FSDP2 8,2,4,,full,40,"
    assert one(tmp_path / "runs.csv", TABLE, line).strategy.precision == "amp"
