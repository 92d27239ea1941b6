"""A number in quotes in a configuration file is refused by name; a missing id column can be left out."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtlab.cli import main
from dtlab.commands.config_file import read_config_file
from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset
from dtlab.errors import UserError


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[optim]\nlr = "2e-3"', "optim.lr = '2e-3' is text: give a number, without quotes"),
        ('[optim]\nmicro_batch = "8"', "optim.micro_batch = '8' is text: give a whole number"),
        ('[run]\nrefit = "false"', "run.refit = 'false' is text: give true or false"),
        ('[model]\nhidden = [64, "32"]', "model.hidden = [64, '32'] is text: give a whole number"),
    ],
)
def test_text_for_a_number_is_refused_by_name(text, named, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(text)
    assert main(["train", str(tmp_path / "run.toml")]) == 2
    assert named in capsys.readouterr().err


def test_text_where_text_belongs_is_taken(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[data]\nname = "clicks"\ncategorical = ["a"]\n[run]\noutput = "runs"\n')
    assert read_config_file(str(file))["run"] == {"output": "runs"}


def test_a_missing_id_column_is_answered_with_row_numbers(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "bought": [0, 1]}), tmp_path / "t.parquet")
    config = DataConfig(
        name="parquet", path=str(tmp_path / "t.parquet"), label="bought", numeric=("a",), id="row_id"
    )
    with pytest.raises(UserError, match=r"'row_id'.*or leave out data\.id: row numbers are then the ids"):
        load_dataset(config)
