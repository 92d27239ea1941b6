"""A run on text without a word about its batch takes a step in seconds, not in hours."""

import pytest

from dtlab import cli
from dtlab.train.config import TrainConfig


@pytest.fixture
def configured(monkeypatch):
    """The configuration that words of the command line lead to; nothing is run."""
    seen = []
    monkeypatch.setattr(cli, "guarded", lambda call: seen.append(call) or 0)

    def run(*words):
        assert cli.main(["train", *words]) == 0
        bound = {}
        call = seen.pop()
        for cell in call.__closure__:
            if hasattr(cell.cell_contents, "kwargs"):
                bound = cell.cell_contents.kwargs
        return bound.get("config", TrainConfig())

    return run


def test_gpt_without_a_batch_takes_32_windows_by_8_and_says_so_in_its_configuration(configured):
    config = configured("--model", "gpt", "--tp", "2", "--pp", "2")
    assert (config.optim.global_batch, config.optim.micro_batch, config.run.log_every) == (32, 8, 5)
    assert config.to_dict()["optim"]["global_batch"] == 32


def test_gpt_with_a_batch_keeps_it(configured):
    config = configured("--data.name", "text", "--optim.global-batch", "64", "--run.log-every", "7")
    assert (config.optim.global_batch, config.optim.micro_batch, config.run.log_every) == (64, None, 7)


def test_a_file_without_a_batch_has_those_of_text_and_one_with_a_batch_keeps_it(configured, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[data]\nname = "text"\n')
    assert configured(str(file)).optim.global_batch == 32
    file.write_text('[data]\nname = "text"\n[optim]\nglobal_batch = 16\n')
    assert configured(str(file)).optim.global_batch == 16
    assert configured(str(file), "--optim.global-batch", "12").optim.global_batch == 12


def test_a_table_keeps_its_batch(configured):
    optim = configured("--optim.lr", "1e-3").optim
    assert (optim.global_batch, optim.micro_batch) == (4096, None)


def test_a_dict_of_settings_for_text_has_the_same_defaults_as_the_command():
    config = TrainConfig.from_dict({"data": {"name": "text"}, "parallel": {"micro_batches": 4}})
    assert (config.optim.global_batch, config.optim.micro_batch, config.run.log_every) == (32, None, 5)
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_the_help_of_train_names_its_short_flags(capsys):
    assert cli.main(["train", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--model gpt" in told
    assert "--data text" in told
