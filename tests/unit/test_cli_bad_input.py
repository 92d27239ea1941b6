"""Bad input at the command line: one line that names field, value and way out, and exit code 2."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dtlab.cli import guarded, main


def refused(capsys, *words: str) -> str:
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, lines
    assert "Traceback" not in lines[0]
    return lines[0]


def config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return str(path)


def test_misspelt_key_in_the_file_offers_the_near_name(capsys, tmp_path):
    line = refused(capsys, "train", config(tmp_path, "[optim]\nlrr = 0.1\n"))
    assert "unknown key 'lrr' in [optim]; did you mean optim.lr?" in line


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[optim]\nlr = " + "[" * 3000 + "]" * 3000, ["run.toml", "nested too deep"]),
        ("[optim]\nlr = " + "{a=" * 3000 + "1" + "}" * 3000, ["run.toml", "nested too deep"]),
        ("[optim.lr" + ".a" * 3000 + "]\n", ["run.toml", "nested too deep"]),
        ("[optim.lr.a]\nb = 1\n", ["run.toml", "optim.lr", "plain values"]),
        ("[model]\nhidden = [[64], [32]]\n", ["run.toml", "model.hidden", "plain values"]),
        ("[optim]\nglobal_batch = " + "9" * 5001, ["run.toml", "optim.global_batch", "64 bits"]),
        ("[optim]\nglobal_batch = 0x" + "f" * 5001, ["run.toml", "optim.global_batch", "64 bits"]),
        ("[model]\nhidden = [64, " + "9" * 5001 + "]", ["run.toml", "model.hidden", "64 bits"]),
        ("[optim]\nglobal-bach = 5\n", ["global-bach", "optim.global_batch"]),
        ("[run]\nxyzzy = 5\n", ["unknown key 'xyzzy'", "seed"]),
    ],
)
@pytest.mark.parametrize("command", ["train", "ladder"])
def test_file_that_would_end_in_a_traceback_or_in_a_line_without_its_field(
    capsys, tmp_path, text, named, command
):
    line = refused(capsys, command, config(tmp_path, text))
    assert all(word in line for word in named), line
    assert len(line) < 600


@pytest.mark.parametrize("command", ["train", "ladder"])
def test_named_pipe_is_refused_and_not_waited_for(capsys, tmp_path, command):
    os.mkfifo(tmp_path / "pipe.toml")
    assert "no regular file" in refused(capsys, command, str(tmp_path / "pipe.toml"))


@pytest.mark.parametrize("command", ["train", "ladder"])
def test_misspelt_file_offers_the_nearest_one(capsys, tmp_path, command):
    path = config(tmp_path, "")
    line = refused(capsys, command, path.replace("run.toml", "runn.toml"))
    assert f"did you mean {path!r}?" in line


def test_key_with_a_hyphen_is_the_key_with_an_underscore(capsys, tmp_path):
    line = refused(capsys, "train", config(tmp_path, "[optim]\nglobal-batch = 0\n"))
    assert "optim.global_batch" in line


@pytest.mark.parametrize("text", ["[optimm]\nlr = 0.1\n", "[optimm]\n", "optimm = 3\n"])
def test_misspelt_table_offers_the_near_name_even_when_empty(capsys, tmp_path, text):
    line = refused(capsys, "train", config(tmp_path, text))
    assert "optimm" in line
    assert "optim" in line.replace("optimm", "")


def test_key_where_a_table_belongs(capsys, tmp_path):
    assert "[optim]" in refused(capsys, "train", config(tmp_path, "optim = 3\n"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--optim.lr", "-1"], ["optim.lr", "-1"]),
        (["--optim.lr", "nan"], ["optim.lr", "nan"]),
        (["--optim.lr", "inf"], ["optim.lr", "inf"]),
        (["--optim.global-batch", "0"], ["optim.global_batch", "0"]),
        (["--optim.max-epochs", "0"], ["optim.max_epochs", "0"]),
        (["--model.dropout", "1"], ["model.dropout", "1"]),
        (["--model.hidden", "64", "--model.hidden", "0"], ["model.hidden", "0"]),
        (["--run.seed", "-3"], ["run.seed", "-3"]),
        (["--data.test-fraction", "1.5"], ["data.test_fraction", "1.5"]),
        (["--run.engine", "horovod"], ["engine", "horovod", "by_hand"]),
        (["--nproc", "1.5"], ["nproc", "1.5", "whole"]),
        (["--optim.global-batch", "1.5"], ["optim.global_batch", "1.5", "whole"]),
        (["--run.max-steps=2.5"], ["run.max_steps", "2.5", "whole"]),
        (["--data.seed", "-1"], ["data.seed", "-1"]),
        (["--nproc", "two"], ["nproc", "two"]),
        (["--optim.lrr", "1"], ["--optim.lrr", "--optim.lr"]),
        (["--optim.lr", "1e38"], ["optim.lr", "1e+38", "1e30"]),
        (["--optim.global-batch", "9" * 25], ["optim.global_batch", "64 bits"]),
        (["--model.num-layers", "9" * 12], ["model.num_layers", "10,000"]),
        (["--schedule.step-every", "nan"], ["schedule.step_every", "nan"]),
        (["--schedule.step-every", "inf"], ["schedule.step_every", "inf"]),
        (["--schedule.warmup", "1e300", "--schedule.unit=epoch"], ["schedule.warmup", "1e+300"]),
        (["--checkpoint.spot-notice", "yes"], ["checkpoint.spot_notice", "yes", "ec2"]),
        (["--run.refit", "maybe"], ["maybe", "put its flag before it"]),
        (["--model.hidden", "64", "32"], ["32", "once for each value"]),
    ],
)
def test_value_that_the_configuration_refuses(capsys, words, named):
    line = refused(capsys, "train", *words)
    assert all(word in line for word in named), line


@pytest.mark.parametrize("field", ["run.folder", "run.output", "data.root", "data.path", "data.categorical"])
def test_empty_value_is_not_the_working_directory(capsys, tmp_path, field):
    flag = f"--{field}"
    for words in ([flag, ""], [f"{flag}="]):
        line = refused(capsys, "train", *words)
        assert field in line
        assert "empty" in line
    table, key = field.split(".")
    assert field in refused(capsys, "train", config(tmp_path, f"[{table}]\n{key} = ''\n"))


def test_null_byte_in_a_name_is_refused_before_the_run(capsys, tmp_path):
    line = refused(capsys, "train", config(tmp_path, '[run]\nfolder = "a\\u0000b"\n'))
    assert "run.folder" in line
    assert "null byte" in line


@pytest.mark.parametrize("answer", ["false", "False", "no"])
def test_yes_or_no_may_stand_as_a_word_of_its_own(capsys, answer):
    assert "nproc" in refused(capsys, "train", "--run.refit", answer, "--nproc", "0")


def test_value_in_the_file_that_the_configuration_refuses(capsys, tmp_path):
    line = refused(capsys, "train", config(tmp_path, "[optim]\nlr = -0.5\n"))
    assert "optim.lr" in line
    assert "-0.5" in line


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[optim]\nglobal_batch = 1.5\n", ["optim.global_batch", "1.5"]),
        ("[model]\nhidden = [64, 1.7]\n", ["model.hidden", "1.7"]),
        ("\ufeff[optim]\nglobal_batch = 0\n", ["optim.global_batch", "0"]),  # an editor's byte order mark
    ],
)
def test_whole_number_in_the_file_is_not_rounded(capsys, tmp_path, text, named):
    line = refused(capsys, "train", config(tmp_path, text))
    assert all(word in line for word in named), line


def test_whole_number_may_be_written_with_a_point(capsys, tmp_path):
    line = refused(
        capsys, "train", config(tmp_path, "[optim]\nglobal_batch = 64.0\nlr = 0.5\n"), "--nproc", "0"
    )
    assert "nproc" in line


@pytest.mark.parametrize(("flag", "value"), [("hours", "1e27"), ("count", "9" * 30), ("count", "1.5")])
def test_price_of_a_use_that_cannot_be(capsys, flag, value):
    assert flag in refused(capsys, "cost", "ml.g5.12xlarge", f"--{flag}", value)


def test_fault_of_the_system_is_one_line(capsys):
    def fails():
        raise OSError(28, "No space left on device", "/somewhere/file")

    assert guarded(fails) == 2
    assert "No space left" in capsys.readouterr().err

    def closed():
        raise BrokenPipeError

    assert guarded(closed) == 1


def test_text_where_the_file_needs_a_number(capsys, tmp_path):
    assert "abc" in refused(capsys, "train", config(tmp_path, '[optim]\nlr = "abc"\n'))


def test_file_that_is_not_toml(capsys, tmp_path):
    assert "not valid TOML" in refused(capsys, "train", config(tmp_path, "[optim\n"))


def test_missing_file_is_named(capsys):
    assert "nowhere.toml" in refused(capsys, "train", "nowhere.toml")


def test_flag_wins_over_the_file(tmp_path, capsys):
    path = config(tmp_path, "[optim]\nlr = -0.5\n")  # refused, unless the flag replaces it
    line = refused(capsys, "train", path, "--optim.lr", "0.1", "--nproc", "0")
    assert "nproc" in line
    assert "optim.lr" not in line


@pytest.mark.parametrize("nproc", ["0", "-1"])
def test_no_ranks_are_refused(capsys, nproc):
    line = refused(capsys, "train", "--nproc", nproc)
    assert "nproc" in line
    assert nproc in line


def test_port_in_use_is_named(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(capsys, "train", "--nproc", "2", "--port", str(port))
    assert str(port) in line
    assert "port" in line


SAGEMAKER = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
ONE = [
    ({"RANK": "0", "WORLD_SIZE": "1"}, "WORLD_SIZE=1"),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NNODES": "1"}, "SLURM_NTASKS=1"),
    (SAGEMAKER, "SM_HOSTS="),
    ({**SAGEMAKER, "SM_NUM_GPUS": "4"}, "SM_HOSTS="),
    ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, "OMPI_COMM_WORLD_SIZE=1"),
]
SEVERAL = [
    {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"},
    {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-1"},
    {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-1", "SM_NUM_GPUS": "4"},
]


def set_environment(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("variables", "named"), ONE)
def test_environment_of_one_process_does_not_stop_a_launch_of_ranks(capsys, monkeypatch, variables, named):
    set_environment(monkeypatch, variables)
    with socket.socket() as taken:  # the launch begins, and ends at the port
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["train", "--nproc", "2", "--port", str(taken.getsockname()[1])]) == 2
    ignored, refusal = capsys.readouterr().err.strip().splitlines()
    assert named in ignored
    assert "ignored" in ignored
    assert "port" in refusal


@pytest.mark.parametrize("variables", SEVERAL)
def test_ranks_within_a_world_of_several_processes_are_refused(capsys, monkeypatch, variables):
    set_environment(monkeypatch, variables)
    line = refused(capsys, "train", "--nproc", "2")
    assert "nproc" in line or "torchrun" in line


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("train", LONG),
        ("train", "--report", LONG),
        ("prepare", "--name", "clicks", "--rows", "100", "--root", LONG),
        ("predict", LONG, LONG),
    ],
)
def test_name_that_no_file_can_have_is_one_line(capsys, words):
    assert "too long" in refused(capsys, *words)


def test_scores_of_a_file_whose_name_is_too_long_name_that_file(capsys):
    assert "parquet = 'xxx" in refused(capsys, "predict", "somewhere", LONG)


@pytest.mark.parametrize("words", [("train",), ("doctor",), ("predict", "a", "b")])
def test_word_that_torch_does_not_know_is_refused_before_torch_is_imported(capsys, monkeypatch, words):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "BOGUS")
    line = refused(capsys, *words)
    assert "TORCH_DISTRIBUTED_DEBUG='BOGUS'" in line
    assert "OFF, INFO or DETAIL" in line


def test_more_hash_buckets_than_a_table_can_have_are_refused(capsys):
    line = refused(capsys, "train", "--data.hash-buckets", str(10**22))
    assert "data.hash_buckets" in line


def test_column_named_twice(capsys):
    both = ["--data.categorical", "user", "--data.hashed", "user"]
    assert "user" in refused(capsys, "train", "--data.name", "parquet", *both)


def test_misspelt_command_offers_the_near_name(capsys):
    line = refused(capsys, "trian")
    assert "train" in line


def test_report_in_a_place_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    line = refused(capsys, "train", "--report", str(tmp_path / "file" / "report.json"))
    assert "report" in line
    line = refused(capsys, "train", "--report", str(tmp_path))
    assert "is a folder" in line


def test_config_file_after_the_flags_is_refused_not_ignored(capsys, tmp_path):
    line = refused(capsys, "train", "--nproc", "1", config(tmp_path, "[optim]\nlr = 0.1\n"))
    assert "right after" in line


def test_help_answers_without_torch():
    code = (
        "import sys; from dtlab.cli import main; code = main(['--help']); "
        "sys.exit(code or 3 * ('torch' in sys.modules or 'numpy' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
