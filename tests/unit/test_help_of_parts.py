"""What help shows of the public parts: no addresses, and a loop that runs and goes on."""

import inspect
import textwrap

import pytest
import torch

import dtlab
from dtlab.data.config import DataConfig
from dtlab.models.deepfm import DeepFM


@pytest.mark.parametrize("name", ["Trainer", "find_batch"])
def test_a_default_that_is_a_function_is_shown_by_name(name):
    shown = str(inspect.signature(getattr(dtlab, name)))
    assert "= binary_cross_entropy," in shown
    assert " at 0x" not in shown


def test_the_loop_in_the_docstring_of_checkpointer_runs_and_goes_on(tmp_path):
    text = dtlab.Checkpointer.__doc__.partition("validation::\n")[2]
    loop = textwrap.dedent(text)
    dataset = dtlab.load_dataset(DataConfig(name="clicks", rows=600, root=str(tmp_path / "data")))
    validated = []

    def attempt(max_epochs):
        features = dataset.features
        model = DeepFM(features.cardinalities, features.num_dense, dim=2, hidden=(4,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        sampler = dtlab.GlobalBatchSampler(len(dataset.train), 128)
        values = {
            "dtlab": dtlab, "dataset": dataset, "model": model, "optimizer": optimizer,
            "loader": dtlab.Loader(dataset.train, sampler), "trainer": dtlab.Trainer(model, optimizer),
            "folder": tmp_path / "saved", "max_epochs": max_epochs,
            "validate": lambda _model: validated.append(1) or 0.5,
        }  # fmt: skip
        exec(loop, values)
        return values["stop"], values["trainer"].samples

    stop, samples = attempt(1)
    assert (stop.epoch, samples) == (1, len(dataset.train))
    stop, samples = attempt(9)  # the value does not get better: it stops after two more
    assert (stop.epoch, samples, len(validated)) == (3, 3 * len(dataset.train), 3)
    stop, samples = attempt(9)
    assert (stop.epoch, len(validated)) == (3, 3)
