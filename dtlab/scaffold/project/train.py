"""Train model.py on the Parquet in data/, as config.toml says, on any number of ranks:

    python code/train.py                                # one process
    torchrun --nproc-per-node 2 code/train.py           # two ranks

Stopped (Ctrl-C, SIGTERM, a host that is gone), it goes on with the same command: bit for bit on as many
ranks.
"""

import os
from dataclasses import replace
from pathlib import Path

import torch
from model import Model

import dtlab
from dtlab.sagemaker.rank_script import put_back
from dtlab.sagemaker.script import STOPPED, folder_of, refuse, train_config
from dtlab.settings_file import read_settings
from dtlab.train.budget import Budget
from dtlab.train.layout_parts import BestWeights, ModelPart
from dtlab.train.safetensors_io import export_model
from dtlab.train.signals import StopSignals
from dtlab.train.watch import Watch

PROJECT = Path(__file__).resolve().parents[1]


def settings() -> dtlab.TrainConfig:
    """config.toml; in a SageMaker job its hyper-parameters and the container's folders come on top."""
    if "SM_HPS" in os.environ:
        return train_config(os.environ)
    config = dtlab.TrainConfig.from_dict(
        read_settings(Path(__file__).with_name("config.toml"), "config", "config.toml")
    )
    data = replace(config.data, path=config.data.path or str(PROJECT / "data"), root=str(PROJECT / "runs"))
    return replace(
        config, data=data, run=replace(config.run, folder=config.run.folder or PROJECT / "runs/first")
    )


def train(config: dtlab.TrainConfig, model_file: Path) -> dict[str, float] | str:
    """Train until validation stops improving; test metrics, or the name of the signal that ended it."""
    folder, optim = config.run.folder, config.optim
    with StopSignals() as signals, dtlab.world(seed=config.run.seed) as w:
        data = dtlab.load_dataset(config.data)
        torch.manual_seed(config.run.seed)  # the same first weights on every rank
        model = Model(data.cardinalities, data.num_dense).to(w.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=optim.lr, weight_decay=optim.weight_decay)
        trainer = dtlab.Trainer(model, optimizer, clip=optim.clip, show_progress=False)
        sampler = dtlab.GlobalBatchSampler(len(data.train), optim.global_batch, seed=config.run.seed)
        table = data.train.to(w.device)
        loader = dtlab.Loader(table, sampler)
        trainer.settle(table.take(torch.arange(2)))  # before a checkpoint is loaded: it goes on bit for bit

        stop = dtlab.EarlyStopping(patience=optim.patience * len(data.train), mode="max")
        best, progress = BestWeights(ModelPart(model)), {"validated": 0, "enough": False}
        parts = {"progress": progress, "stop": stop, "best": best, "model": model, "optimizer": optimizer}
        parts |= {"loader": loader, "trainer": trainer, "generators": dtlab.Generators()}
        with dtlab.Checkpointer(folder / "checkpoints") as checkpoints:

            def save(reason: str) -> None:
                trainer.tally.fold()
                checkpoints.save(parts, trainer.steps_done, samples=trainer.samples, reason=reason)

            found = checkpoints.load(parts)
            if found is not None and w.is_main:
                w.log.info("goes on from %s", found)
            limits = config.stopping
            budget = Budget(
                limits.max_seconds, limits.max_usd, instance=config.run.instance, count=w.num_nodes
            )
            watch = Watch(trainer, config, signals, budget, save)
            while not progress["enough"] and not watch.boundary():  # all ranks alike
                if sampler.epoch == progress["validated"]:
                    watch.begin()
                    if not trainer.train_epoch(loader, watch=watch).finished:
                        break
                metrics = trainer.evaluate(data.validation)
                progress["validated"] = sampler.epoch
                progress["enough"] = stop.update(metrics.auc, trainer.samples)
                progress["enough"] |= sampler.epoch >= optim.max_epochs
                if stop.improved:
                    best.keep()
                if w.is_main:
                    w.log.info("epoch %d: validation auc %.4f", sampler.epoch, metrics.auc)
            watch.saves("end" if progress["enough"] else "stop")
        if not progress["enough"]:
            return signals.received or "budget"
        best.put_back()
        metrics = trainer.evaluate(data.test)
        export_model(model, model_file)
        return {"auc": metrics.auc, "log_loss": metrics.log_loss, "samples": float(trainer.samples)}


def main() -> int:
    put_back(os.environ)
    try:
        result = train(settings(), model_file_of_run())
    except dtlab.UserError as error:
        return refuse(error)
    if isinstance(result, str):
        return STOPPED.get(result, 0)
    if os.environ.get("RANK", "0") == "0":
        for name, value in result.items():
            print(f"{name}={value:.6g}", flush=True)  # what [metrics] of job.toml looks for
    return 0


def model_file_of_run() -> Path:
    """Where the finished weights go: SageMaker packs /opt/ml/model."""
    folder = folder_of(os.environ, "model") if "SM_HPS" in os.environ else PROJECT / "runs/first"
    return folder / "model.safetensors"


if __name__ == "__main__":
    raise SystemExit(main())
