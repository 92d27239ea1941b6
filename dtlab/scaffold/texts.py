"""The files of a new project that are no Python; ``$name`` and ``$job`` stand for its name."""

from __future__ import annotations

__all__ = ["TEXTS"]

README = """# $name

Your Parquet, your model, any number of ranks; made by `dtlab new`. It runs as it is, on
`data/example.parquet`.

```
python code/train.py                             # one process
torchrun --nproc-per-node 2 code/train.py        # two ranks, here
pytest                                           # two ranks against one process
dtlab train code/config.toml --data.path data    # the same data through dtlab's DeepFM, to compare
```

Make it yours, in this order:

1. Put your Parquet into `data/` (a file or several), delete `example.parquet`, and name its columns in
   `code/config.toml`. The test trains on a table of `code/make_data.py`: give it your columns too.
2. Replace `Model` in `code/model.py`. It gets categories [B, C] and numbers [B, D], and gives a logit [B]
   for each row.
3. Run `pytest`, then `torchrun`. A run that is stopped goes on with the same command; a new one needs a new
   `run.folder`, or `runs/first` removed.
4. In `job.toml` put your bucket and role, then:

```
dtlab sagemaker rehearse job.toml     # two hosts of two ranks on this machine: whole, stopped, gone on with
dtlab sagemaker plan job.toml         # the request and its price; sends nothing
dtlab sagemaker submit job.toml       # --send asks, uploads code/ and creates the job
```

`runs/first/model.safetensors` holds the weights of the best epoch. On several hosts, the same line on each:

```
torchrun --nnodes 2 --node-rank 0 --nproc-per-node 4 --master-addr HOST0 --master-port 29500 code/train.py
```
"""

CONFIG = """# What code/train.py trains, and how. All fields: dtlab train --help

[data]
name = "parquet"                # its folder is data/ beside code/; in a job, the channel train
label = "bought"                # 0/1 or true/false, no nulls
id = "order_id"                 # unique whole numbers; without it the row number is the id
categorical = ["shop", "weekday"]
numeric = ["price"]
validation_fraction = 0.15      # by a hash of the id; split = "column" names a column that says which
test_fraction = 0.15

[optim]
lr = 1e-2
global_batch = 256              # over all ranks together
max_epochs = 5
patience = 2                    # epochs without a better validation AUC

[checkpoint]
every_seconds = 300.0
"""

JOB = """# A SageMaker training job. Replace role, bucket and budget; dtlab sagemaker plan checks the rest.

name = "$job"
role = "arn:aws:iam::111122223333:role/REPLACE-ME"
budget_usd = 20

[source]
folder = "code"
entry_script = "train.py"

[compute]
instance_type = "ml.g6.12xlarge"
instance_count = 2
spot = true
max_run_seconds = 3600
max_wait_seconds = 7200

[checkpoint]
s3_uri = "s3://REPLACE-ME/$job/checkpoints/"
every_seconds = 900

[output]
s3_uri = "s3://REPLACE-ME/$job/models/"

[channels]
train = "s3://REPLACE-ME/$job/data/"

[hyperparameters]
config = "config.toml"

[metrics]
"test:auc" = 'auc=([0-9.]+)'

[rehearsal]                     # on this machine, with the data of this folder
[rehearsal.channels]
train = "data"
[rehearsal.hyperparameters]
"optim.global_batch" = 16       # the stop must find it still training
"optim.max_epochs" = 3
"checkpoint.every_steps" = 20
"""

# Of the job: what dtlab needs beside the torch of SageMaker's image.
REQUIREMENTS = """cloudpickle>=3.1
cyclopts>=4.0
numpy>=2.0
psutil>=6.0
pyarrow>=18.0
safetensors>=0.5
torchmetrics>=1.6
"""

PYTEST = """[pytest]
pythonpath = code
testpaths = tests
"""

IGNORED = """runs/
data/
__pycache__/
"""

TEXTS = {
    "README.md": README,
    "code/config.toml": CONFIG,
    "code/requirements.txt": REQUIREMENTS,
    "job.toml": JOB,
    "pytest.ini": PYTEST,
    ".gitignore": IGNORED,
}
