# %% [markdown]
# # Launch, track, tune
#
# Five tuning jobs ran side by side, and the bill tripled. The model that won went live; the day after, a plain product description came back as the text of some advertisement. Only then
# did anybody look at the test set. The winner was overfitted, and which of the runs it had been could no longer be found out.
#
# What must be sent, stopped and written down, so that a search is worth its bill and its winner can be made again?
#
# (This is S3, a team that tuned a model of images and text. S0 is a recommender team that moved to SageMaker, S4 an engineer with eight new cards. S0 and S3 print a
# job for SageMaker, and neither can be sent today.)
#
# ## Goal

# %% tags=["hide-input"]
import hashlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import optuna
from safetensors.torch import save_file

optuna.logging.set_verbosity(optuna.logging.ERROR)

# %% tags=["hide-input"]
from dtlab import EarlyStopping, RankError, launch, world
from dtlab.cost import billing
from dtlab.cost.aws_model import problems
from dtlab.course import bill, check, expect_failure, goal, hint, predict, recap, running, solved
from dtlab.course.lessons.l15_request import JOBS, channel, fixed
from dtlab.course.overfitting import Fit, clicks
from dtlab.course.recorded import provenance, trials
from dtlab.course.repository import new_repository
from dtlab.errors import UserError
from dtlab.figures.job import container_figure
from dtlab.figures.style import show
from dtlab.figures.tuning import patience_figure, rungs_figure

# %% tags=["hide-input"]
from dtlab.sagemaker.account import role_policy
from dtlab.sagemaker.container import variables
from dtlab.sagemaker.distribution import translate
from dtlab.sagemaker.hosts import make_container, wait_for
from dtlab.sagemaker.job import TrainingJob
from dtlab.sagemaker.plan import make_plan
from dtlab.sagemaker.source import check_source
from dtlab.sagemaker.tables import Checkpoint, Compute, Output, Source
from dtlab.track.runs import compare, find_by_checkpoint
from dtlab.tune.rungs import brackets, halve
from dtlab.tune.space import Choice
from dtlab.tune.study import Judge, StudyPlan

# %% tags=["hide-input"]
goal(
    [
        "write the request of a training job, and have it checked without an account",
        "stop all ranks of a run at one epoch, and ship its best weights",
        "search settings for a ninth of what a grid costs",
        "find the run behind a model, with its commit and its data",
    ],
    minutes=55,
    needs=["05", "12", "14"],
)

# %% [markdown]
# ## Predict
# A grid of 27 runs: nine learning rates, three global batches. They were really made, by the code of `dtlab train`, and each was validated 27 times in nine epochs. (`python -m benchmarks.curves` makes them again, in a few minutes.)

# %% tags=["nbval-check-output"]
about = provenance()
optim = about["configuration"]["optim"]
print(f"{about['date']}, {about['ranks']} ranks, {about['training rows']:,} rows, {optim['name']}")

# %% [markdown]
# S3's grid had short trials: an hour each, to choose a rate for runs of twelve. Say ours are stopped after a third of an epoch, and the best is taken. Another grid trains all 27 to the end and takes the one that is best there. Commit to an answer before you go on.

# %%
ask = predict(
    "15-grid",
    "Which of the two finds the settings whose best validation is highest of all?",
    [
        "the short grid, for a twenty-seventh of the price",
        "the long grid",
        "both: the best rate is the best rate",
        "neither",
    ],
)

# %% [markdown]
# ## Break it: a configuration for version 2
# S0's job, word for word as far as it is printed, held against AWS's own model of `CreateTrainingJob`. The model is a file that comes with boto3. No account is needed, and nothing is sent.

# %% tags=["lab-failure", "nbval-check-output"]
mpi = {"enabled": True, "processes_per_host": 4, "custom_mpi_options": "-x NCCL_DEBUG=WARN"}
printed = {
    "TrainingJobName": "s0-recommender",
    "entry_point": "train.py",
    "distribution": {"mpi": mpi},
    "resource_config": {"instance_type": "ml.p3.8xlarge", "instance_count": 2},
}
said = problems(printed)
print("\n".join(line.split(", must be one of")[0] for line in said))
assert sum("resource_config" in line for line in said) == 1 and len(said) == 5

# %% [markdown]
# - "Missing required parameter": the service knows neither whose rights the job has nor where the model shall go.
# - "Unknown parameter": `entry_point` and `distribution` were arguments of version 2 of the SDK, which made something else of them. `resource_config` is neither the SDK's spelling nor the service's: it is `ResourceConfig` with `InstanceType` in it.
#
# (Version 3 of the SDK has no `sagemaker.pytorch` at all: `from sagemaker.pytorch import PyTorch` ends with ModuleNotFoundError.) The machine is the next thing:

# %% tags=["lab-failure"]
with expect_failure(
    UserError,
    match="no longer sold",
    within=5,
    explain={
        "ml.p3.8xlarge": "the type is in AWS's list of words, so the request alone would pass",
        "no longer sold": "the P3 family was retired; found here, before anything is uploaded",
        "when_retired = 'replace'": "dtlab takes the successor with as many cards, and says so",
    },
):
    TrainingJob(compute=Compute(instance_type="ml.p3.8xlarge", instance_count=2))

# %% [markdown]
# And the dictionaries? `translate` reads those of version 2 and has a line for each thing that is not as they say:

# %% tags=["nbval-check-output"]
parameters = {"partitions": 2, "pipeline": "interleaved"}
v2 = {
    "S0": {"mpi": mpi},
    "S3": {"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}},
    "torchrun, in version 2": {"torch_distributed": {"enabled": True}},
}
for source, distribution in v2.items():
    layout = translate(distribution)
    print(f"{source}: {layout.launcher}, stages: {layout.stages}")
    print("\n".join(f"  - {line}" for line in layout.changes))
assert translate(v2["S0"]).ranks_per_host == 4 and translate(v2["S3"]).schedule == "1f1b"

# %% [markdown]
# S0's text speaks of four GPU instances; his job has two hosts of four processes, which are eight ranks. S3's has no micro-batches, which is no pipeline (lesson 08), and no `mpi` table, so it would have started one process on each host.
#
# ## Break it: a wrong path
# The two paths that fail most often. First the script: the folder is `code`, and the script is named with its folder.

# %%
def new_folder():
    return Path(tempfile.mkdtemp())


def without(folder, function, *arguments):
    """Call the function; its error without the name of this run's temporary folder."""
    try:
        function(*arguments)
    except UserError as error:
        raise UserError(str(error).replace(str(folder), "...")) from None


READER = """import os, pathlib
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
print(len((base / "input/data/training/clicks.csv").read_text().split()), "rows")
"""
code = new_folder() / "code"
code.mkdir()
with (code / "train.py").open("w", encoding="utf-8") as file:
    file.write(READER)

# %% tags=["lab-failure"]
with expect_failure(
    UserError,
    match="the path starts inside",
    within=5,
    explain={
        "there is no .../code/code/train.py": "where the container would look, minutes later",
        "write 'train.py'": "the archive holds what is in the folder, without the folder itself",
    },
):
    without(code.parent, check_source, code, "code/train.py")

# %% [markdown]
# Then the data. The request has a channel named `train`; the script reads `training`. Such a job passes every check of the request and starts. Here is its container: the folders of `/opt/ml` and the files that SageMaker writes into them, on this machine, and a real first process.

# %% tags=["lab-failure", "nbval-check-output"]
data_folder = new_folder()
(data_folder / "clicks.csv").write_text("label,user\n1,7\n0,8\n", encoding="utf-8")


def container(channels, script):
    """One host with these channels runs the script; (exit code, the last line that it wrote)."""
    texts = {"lr": "0.001", "amp": "false"}
    base, kind = new_folder() / "algo-1", "ml.g5.12xlarge"
    host = make_container(
        base, "algo-1", ["algo-1"], instance_type=kind, hyperparameters=texts, channels=channels
    )
    host.start([sys.executable, str(script)], {"SAGEMAKER_BASE_DIR": str(base)})
    codes = wait_for([host], 20)
    return host, codes[0], host.last_lines(1).replace(str(base), "/opt/ml")


host, exit_code, line = container({"train": data_folder}, code / "train.py")
print(f"exit code {exit_code}: {line}")
assert exit_code == 1 and "/opt/ml/input/data/training" in line

# %% [markdown]
# A channel is a name that you choose, and it is part of two names: a folder and a variable. A script that takes the variable cannot miss the folder:

# %% tags=["nbval-check-output"]
told = variables(host.base, {}, cards=4)
for name in ("SM_CHANNELS", "SM_CHANNEL_TRAIN", "SM_HPS", "SM_HP_AMP", "SM_HOSTS", "SM_NUM_GPUS"):
    print(f"{name:17} {told[name].replace(str(host.base), '/opt/ml')}")
print("amp, if a script says bool(...):", bool(told["SM_HP_AMP"]))
assert bool(told["SM_HP_AMP"]) is True  # every text that is not empty

# %% [markdown]
# ### SM_NUM_GPUS
# S0: "SageMaker takes all GPU memory by default, so SM_NUM_GPUS must say how many GPUs to use." The container *sets* it: the cards of this host, 4 here. It limits no memory; PyTorch allocates what the script asks for. In dtlab's container a smaller number starts fewer ranks, and the other cards idle and are paid:

# %% tags=["nbval-check-output"]
job = TrainingJob(compute=Compute(instance_type="ml.g5.12xlarge"), environment={"SM_NUM_GPUS": "1"})
whole = replace(job, environment={})
print(f"SM_NUM_GPUS=1: {job.ranks_per_host} rank on {job.cards} cards; unset: {whole.ranks_per_host}")

# %% [markdown]
# ## Look: what lands where
# The request of a spot job on two hosts, and what becomes of each field in every container.

# %%
job = TrainingJob(
    name="s0-recommender",
    role="arn:aws:iam::111122223333:role/training",
    source=Source(folder=code),
    compute=Compute(instance_type="ml.g5.12xlarge", instance_count=2, spot=True, max_run_seconds=14_400),
    distribution=v2["S0"],
    channels={"train": "s3://bucket/clicks/"},
    hyperparameters={"optim.lr": 2e-3, "optim.max_epochs": 10},
    checkpoint=Checkpoint(s3_uri="s3://bucket/checkpoints/"),
    output=Output(s3_uri="s3://bucket/models/"),
)
plan = make_plan(job, name="s0-recommender-1")
show(container_figure(plan.request))

# %% [markdown]
# The number of ranks is nowhere in it: a host starts as many as it has cards, or as a variable says. Nor is your code: it is packed, uploaded and unpacked as one channel more.
#
# ## Break it: each rank stops alone
# S3's second repair is a class that is called with the metric: `es(val_acc)`, and `if es.early_stop: break`. (The arguments are those of two libraries at once; no library has it.) The run of this lesson is a DeepFM on 1,616 made-up clicks, which overfits in its third epoch. Each rank
# validates rows of its own.


# %%
class Stopping:
    """As S3 writes it, for a loss."""

    def __init__(self, patience):
        self.patience, self.best, self.bad, self.early_stop = patience, math.inf, 0, False

    def __call__(self, value):
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        self.early_stop = self.bad >= self.patience


data = clicks()


def each_for_itself(patience):
    with world() as w:
        fit, es = Fit(w, data), Stopping(patience)
        while fit.epochs < 20 and not es.early_stop:
            fit.epoch()
            loss, rows = fit.validate()
            es(loss / rows)
        return fit.epochs


# %% tags=["lab-failure"]
with expect_failure(
    RankError,
    match=r"rank 1 of 2 has left after .*, but rank 0 waits in",
    within=60,
    explain={
        "rank 1 of 2 has left": "three validations of its rows without a better one: it stopped",
        "but rank 0 waits in": "on its rows epoch 3 was the best; it is in the next one, which takes two",
        "restarts are off": "with them both would begin again, and stop apart again",
    },
    lines=14,
):
    launch(each_for_itself, 2, 3, timeout=50, echo=False)

# %% [markdown]
# At work the other ranks wait for their timeout, ten to thirty minutes on all hosts, and there is no model. On one card the same class works. It is the same fault as in lessons 12 to 14: a decision that belongs to all ranks was taken by each.
#
# ## Break it: patience ten
# S3's first setting was "ten epochs without improvement". Here is the best of the 27 recorded runs, with patience counted in looks. (A look is a validation; there are three in an epoch.)

# %% tags=["lab-failure", "nbval-check-output"]
recorded = {one.name: one for one in trials()}
curves = {name: one.auc for name, one in recorded.items()}
best = max(curves, key=lambda name: max(curves[name]))
print(f"{best}: best {max(curves[best]):.3f} at look {curves[best].index(max(curves[best])) + 1}")
shipped = {}
for patience in (10, 3):
    stop = EarlyStopping(patience)
    for look, auc in enumerate(curves[best], 1):
        if stop.update(auc, look):
            break
    shipped[patience] = auc
    print(f"patience {patience:2}: stops at look {look:2} and ships {auc:.3f}; best {stop.best:.3f}")
assert shipped[10] < shipped[3] < max(curves[best])

# %%
show(patience_figure(curves[best], (3, 10), best))

# %% [markdown]
# A smaller patience loses less: it ships 0.699 instead of 0.655. But both ship the weights of the *last* look, and the run was at 0.761. What was missing is one line: go back to the best. With it patience decides only what you pay.
#
# S3 adds that patience shall be a third to a half shorter on many cards, as "the validation trend lags". There is no basis for that. An epoch is an epoch on any number of ranks. Counted in optimizer steps, though, patience does change: with N times the global batch the same number of steps is N times the samples. So count it in samples.
#
# ## Break it: a grid of short trials, and one of long ones
# Back to the prediction. A look stands for ten minutes of one `ml.g5.12xlarge`, so that a trial of nine epochs takes four and a half hours and the whole grid costs about what S3's did.

# %% tags=["lab-failure", "nbval-check-output"]
usd = billing.cost("ml.g5.12xlarge", 600).usd  # of a look


def dollars(looks):
    """As billed: whole cents."""
    return f"${billing.cost('ml.g5.12xlarge', 600 * looks).cents / 100:,.2f}"


def winner(look):
    """The trial with the best validation at a look."""
    return max(curves, key=lambda name: curves[name][look - 1])


print(f"best of all: {best}, {max(curves[best]):.3f}")
for what, look in {"a third of an epoch each": 1, "nine epochs each": 27}.items():
    name = winner(look)
    told = f"{name} ({curves[name][look - 1]:.3f}; its best was {max(curves[name]):.3f})"
    print(f"{what}, {dollars(27 * look)}: {told}")
assert winner(1) == winner(27) != best

# %%
ask.reveal("d", because="A large rate is ahead early, and again when all have overfitted.")

# %% [markdown]
# Both grids pick the same wrong rate, twice the best one, and the long grid pays 27 times as much for it. The short one measures who starts fastest. The long one measures who has overfitted least, because it looks at the last weights. With the *best* look of each trial the long grid finds the best run, for \$861. (S3 paid over \$800 and found "none above 63 %".)
#
# A word on precision: the winner was chosen on 2,000 validation rows, as the best of 27 x 27 figures.

# %% tags=["nbval-check-output"]
second = sorted(curves, key=lambda name: -max(curves[name]))[1]
for name in (best, second):
    one = recorded[name]
    print(f"{name}: validation {one.kept_validation:.3f}, test {one.kept_test:.3f}")
assert recorded[best].kept_test < recorded[second].kept_test

# %% [markdown]
# On rows that no trial has seen, the second is ahead. Differences of a hundredth are noise here. What the search has found is a region of rates, and the test set, read once, says what a model from it is worth. S3 read it after the model had gone live.
#
# ## Break it: five at a time
# S3's automatic tuning ran five jobs in parallel. Five hosts for an hour cost what one host costs for five, so the bill did not triple because of "parallel". But a Bayesian search proposes a trial from the results of those before. What do five at a time know of each other? The same search, 16 times with other seeds, over the recorded table (TPE, as in `dtlab tune`):


# %%
def searched(seed, total, at_once):
    """The best AUC that a search of `total` trials finds, `at_once` of them running together."""
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=5)
    study, found = optuna.create_study(direction="maximize", sampler=sampler), []
    while len(found) < total:
        asked = [study.ask() for _ in range(min(at_once, total - len(found)))]
        points = [(one.suggest_int("rate", 0, 8), one.suggest_int("batch", 0, 2)) for one in asked]
        found += [max(trials()[9 * batch + rate].auc) for rate, batch in points]
        for one, value in zip(asked, found[-len(asked) :], strict=True):
            study.tell(one, value)
    return max(found)


# %%
with running("64 searches"):
    for total in (5, 15):
        for at_once in (1, 5):
            found = [searched(seed, total, at_once) for seed in range(16)]
            hits = sum(value == max(curves[best]) for value in found)
            mean = sum(found) / len(found)
            print(f"{total:2} trials, {at_once} at a time: best found {hits:2} times of 16, mean {mean:.3f}")

# %% [markdown]
# With five trials in all nothing is learned either way: the search begins with five random ones. With fifteen, one at a time takes five times as long and finds the best 9 times against 7, which is too close to call (60 searches gave 34 against 27). So: in parallel is a fair choice when you are in a hurry, but not with as many at a time as there are trials, as then "Bayesian" is another word for random. Why S3's bill tripled is not said; what we know is that each of his jobs ran to its end.
#
# ## Break it: five runs and no records
# Five runs with other settings each. One has patience ten and keeps its last weights. The files have the names that such files have.


# %%
FIVE = [
    dict(lr=2e-3, patience=1, goes_back=True),
    dict(lr=5e-3, dropout=0.2, patience=1, goes_back=True),
    dict(lr=1e-2, batch=128, patience=10, goes_back=False),
    dict(lr=5e-3, batch=128, patience=1, goes_back=True),
    dict(lr=1e-2, batch=128, dropout=0.2, patience=1, goes_back=True),
]
NAMES = ["model", "model_new", "model_final", "model_final2", "model_final_really"]


# %%
def train_five():
    """On a rank: weights and validation loss of the five runs."""
    with world() as w:
        done = []
        for settings in FIVE:
            given = {k: v for k, v in settings.items() if k not in ("patience", "goes_back")}
            fit, stop = Fit(w, data, **given), EarlyStopping(settings["patience"], mode="min")
            while fit.epochs < 20:
                fit.epoch()
                # The class of dtlab: the mean of what the ranks bring, one decision for all.
                if stop.update(fit.loss() / len(data.validation), fit.epochs):
                    break
                if stop.improved:
                    fit.keep()
            if settings["goes_back"]:
                fit.put_back()
            done.append((fit.weights(), fit.loss() / len(data.validation)))
        return done


# %% tags=["lab-failure", "nbval-check-output"]
with running("five runs"):
    five = launch(train_five, 2, timeout=90, echo=False)[0]
root = new_folder()
shop, live = root / "shop", root / "live" / "model.safetensors"
shop.mkdir()
live.parent.mkdir()
for name, (weights, _) in zip(NAMES, five, strict=True):
    save_file(weights, shop / f"{name}.safetensors")
shutil.copy(shop / "model_final.safetensors", live)
losses = [loss for _, loss in five]
sizes = {path.stat().st_size for path in shop.iterdir()}
print("five files of one size:", len(sizes) == 1)
print("the live model's loss is more than twice that of any other:", end=" ")
print(losses[2] > 2 * max(losses[:2] + losses[3:]))
assert losses[2] > 2 * max(losses[:2] + losses[3:]) and len(sizes) == 1

# %% [markdown]
# Customers have found the bad one. What made it?

# %% tags=["lab-failure"]
with expect_failure(
    UserError,
    match="no record.jsonl above it",
    within=5,
    explain={
        "no record.jsonl above it": "a run that dtlab made would have left its record here",
        "give the folder of your runs": "there is none. The bytes say which file, and no more",
    },
):
    without(root, find_by_checkpoint, live, shop)

# %% [markdown]
# The bytes of the live model are those of `model_final`. With which rate, patience, code, data? Five guesses, each a run to be made again, and none can be proven: a commit that was lost does not come back.
#
# ## Build it: the request
# `fixed(job)` gives what every request has: name, role, image, the first process, where the model goes. `channel(name, uri)` gives one channel. Which fields are missing for a `job` like this one?

# %% tags=["nbval-check-output"]
for name, value in JOBS["spot, two hosts"].items():
    print(f"{name:16} {value}")


# %% tags=["exercise"]
def training_request(job):
    """The CreateTrainingJob request of `job`.

    Beside fixed(job): HyperParameters (text, or JSON of what is no text), InputDataConfig, ResourceConfig
    (with 100 GB of volume), StoppingCondition, EnableManagedSpotTraining, Environment. On spot also
    a wait of twice the longest run, and CheckpointConfig at /opt/ml/checkpoints.
    """
    ### BEGIN SOLUTION
    values, seconds, hosts = job["hyperparameters"], 3600 * job["hours"], job["hosts"]
    request = fixed(job) | {
        "HyperParameters": {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()},
        "InputDataConfig": [channel(name, uri) for name, uri in job["channels"].items()],
        "ResourceConfig": {"InstanceType": job["instance"], "InstanceCount": hosts, "VolumeSizeInGB": 100},
        "StoppingCondition": {"MaxRuntimeInSeconds": seconds},
        "EnableManagedSpotTraining": job["spot"],
        "Environment": job["variables"],
    }
    if job["spot"]:
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = 2 * seconds
        request["CheckpointConfig"] = {"S3Uri": job["checkpoints"], "LocalPath": "/opt/ml/checkpoints"}
    return request
    ### END SOLUTION


# %% tags=["hint"]
hint("15-request")

# %% [markdown]
# ## Check: the request
# Two jobs, field by field; then both are held against AWS's model.

# %% tags=["check"]
check("15-request", training_request)

# %% [markdown]
# ## Build it: an agreed stop
# A `fit` has `epoch()`, `validate()` (the sum of the losses and the number of *this rank's* rows), `samples` (trained by all ranks so far), `keep()` and `put_back()` for the weights. `w.gather(x, dst=None)` gives every rank the list of what each brought.


# %% tags=["exercise"]
def train_to_best(w, fit, patience, most):
    """Train at most `most` epochs; stop when `patience` samples have passed without a better one.

    Better: a smaller mean loss over the validation rows of all ranks. Returns (epochs made, best
    epoch), counted from 1, and leaves `fit` with the weights of the best epoch.
    """
    ### BEGIN SOLUTION
    best, best_epoch, best_at, epochs = math.inf, 0, 0, 0
    while epochs < most:
        fit.epoch()
        epochs += 1
        parts = w.gather(fit.validate(), dst=None)
        loss = sum(total for total, _ in parts) / sum(rows for _, rows in parts)
        if loss < best:
            best, best_epoch, best_at = loss, epochs, fit.samples
            fit.keep()
        elif fit.samples - best_at >= patience:
            break
    fit.put_back()
    return epochs, best_epoch
    ### END SOLUTION


# %% tags=["hint"]
hint("15-stop")

# %% [markdown]
# ## Check: an agreed stop
# Two real ranks, one with three times the validation rows of the other.

# %% tags=["check"]
check("15-stop", train_to_best)


# %% [markdown]
# The run that hung, with your loop and a patience of three epochs:


# %%
def agreed():
    with world() as w:
        fit = Fit(w, data)
        epochs, best_epoch = train_to_best(w, fit, 3 * len(data.train), 20)
        return epochs, best_epoch, fit.loss()


# %% tags=["nbval-check-output"]
if solved("15-stop"):
    both = launch(agreed, 2, timeout=60, echo=False)
    print("both ranks at one epoch:", both[0][:2] == both[1][:2])
    print("stopped before 20 epochs:", both[0][0] < 20, "- with the weights of an earlier one:", end=" ")
    print(both[0][1] < both[0][0], "- the same on both:", both[0][2] == both[1][2])
    assert both[0] == both[1] and both[0][1] < both[0][0] < 20

# %% [markdown]
# No `all_agree` was needed: all ranks decided on the same numbers. (Each adds the same parts in the same order, so the sums are equal to the bit.)
#
# ## Build it: rungs
# Train all trials a little, keep the best third, train those three times as far, and so on: successive halving, the heart of Hyperband (Li et al. 2018). What may decide at a rung is the best look so far, since a run keeps the weights of its best look.


# %% tags=["exercise"]
def climb(curves, rungs, keep):
    """Which trials go on at each rung, and how many looks each is trained.

    `curves`: name -> validation AUC at look 1, 2, ... Of the trials that are left at a rung one in
    `keep` goes on, rounded down, and always one: those with the best look so far; of equals the
    first in `curves`. One whose curve is nan at the rung is worse than any other. Those that go
    on at the last rung are trained to the end of their curves.
    Returns (a list of names for each rung, best first; a dict, name -> looks).
    """
    ### BEGIN SOLUTION
    def score(name):
        lost = math.isnan(curves[name][rung - 1])
        return -math.inf if lost else max(v for v in curves[name][:rung] if not math.isnan(v))

    alive, survivors, looks = list(curves), [], {}
    for rung in rungs:
        going = sorted(alive, key=score, reverse=True)[: max(1, len(alive) // keep)]
        looks |= {name: rung for name in alive if name not in going}
        survivors.append(going)
        alive = going
    return survivors, looks | {name: len(curves[name]) for name in alive}
    ### END SOLUTION


# %% tags=["hint"]
hint("15-rungs")

# %% [markdown]
# ## Check: rungs

# %% tags=["check"]
check("15-rungs", climb)

# %% tags=["nbval-check-output"]
if solved("15-rungs"):
    survivors, looks = climb(curves, (1, 3, 9), 3)
    print(f"one trained to the end: {survivors[-1][0]}, best look {max(curves[survivors[-1][0]]):.3f}")
    spent, everything = sum(looks.values()), sum(map(len, curves.values()))
    print(f"{spent} looks of {everything}: {dollars(spent)} instead of {dollars(everything)}", end="; ")
    print(f"{1 - spent / everything:.0%} saved")
    assert survivors[-1] == [best] and spent == 81

# %% [markdown]
# ## Look: rungs and dollars

# %%
show(rungs_figure(curves, (1, 3, 9), 3, usd))

# %% [markdown]
# The 18 trials that ended at the first rung have cost \$1.18 each. Judged by the figure at the rung instead of the best so far, the same rungs would lose the best run: at look 9 it has overfitted more than another. And the rule is as good as its assumption, that who is among the best third early is among the best later. That is why Hyperband has other brackets, which begin with fewer trials and judge later:

# %% tags=["nbval-check-output"]
everything = 0
for rungs in brackets(27):
    steps = zip(rungs, [(0, 0), *rungs], strict=False)
    taken = sum(count * (far - before) for (count, far), (_, before) in steps)
    told = ", ".join(f"{count} to look {far}" for count, far in rungs)
    print(f"{rungs[0][0]:2} trials, {taken:3} looks: {told}")
    everything += taken
print(f"all four brackets: {everything} looks, {dollars(everything)}")

# %% [markdown]
# S3's rule 4 says "70 % less search time" and gives no measurement. It depends on what one compares. The first bracket saves 89 % of a grid to the end, all four brackets save half of it. And a grid can be stopped early as well:

# %% tags=["nbval-check-output"]
def patient(auc, patience=3):
    stop = EarlyStopping(patience)
    return next((look for look, value in enumerate(auc, 1) if stop.update(value, look)), len(auc))


stopped = sum(map(patient, curves.values()))
print(f"the grid, each trial with patience 3 and its best weights: {stopped} looks, {dollars(stopped)}")

# %% [markdown]
# Against that the first bracket saves 59 %. (S3's grid search on small models, 100 trials in an hour, was enough and would be still. What makes a grid wrong is the price of a trial.)
#
# ## Build it: the record
# What decides a result? The settings, the code, the data. Code is a commit, and whether the files differ from it. Data is a hash of what was read: the same for the same files, wherever they lie, and another when a byte, a name or a file changes.


# %% tags=["exercise"]
def record_of(settings, repository, data):
    """A dict of what decides a run: "settings", "commit", "dirty", "data_version".

    `repository`, `data`: folders, as Path. dirty: whether git status --porcelain says anything.
    data_version: a hash, as text, of every file below `data`: its path in there and its bytes.
    """
    ### BEGIN SOLUTION
    def git(*words):
        return subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True).stdout.strip()

    digest = hashlib.sha256()
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        inner = path.relative_to(data).as_posix()
        digest.update(f"{inner} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    state = {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    return {"settings": settings, **state, "data_version": digest.hexdigest()}
    ### END SOLUTION


def find_run(runs, weights):
    """The folder of `runs` whose model.safetensors has the bytes of the file `weights`; else None."""
    ### BEGIN SOLUTION
    wanted = weights.read_bytes()
    same = [run for run in runs if (run / "model.safetensors").read_bytes() == wanted]
    return same[0] if same else None
    ### END SOLUTION


# %% tags=["hint"]
hint("15-record")

# %% [markdown]
# ## Check: the record
# A real repository in which a file is edited and another added, and a data folder that is copied, renamed and changed.

# %% tags=["check"]
check("15-record", record_of, find_run)

# %% [markdown]
# The five runs once more, each with its record, written beside the weights:

# %% tags=["nbval-check-output"]
if solved("15-record"):
    repository, runs = new_repository(new_folder()), []
    for name, settings, (weights, _) in zip(NAMES, FIVE, five, strict=True):
        runs.append(new_folder())
        save_file(weights, runs[-1] / "model.safetensors")
        record = record_of(settings, repository, data_folder)
        (runs[-1] / "record.json").write_text(json.dumps(record), encoding="utf-8")
    found = json.loads((find_run(runs, live) / "record.json").read_text())
    print("the live model:", found["settings"])
    print("commit known:", len(found["commit"]) == 40, "- files as in the commit:", not found["dirty"])
    assert found["settings"] == FIVE[2] and not found["dirty"]

# %% [markdown]
# Patience ten and the last weights: now the cause has a name, and the run can be made again.
#
# ## The real thing
# **The request.** `dtlab.sagemaker` makes it from a job file, with the checks that AWS's model does not have. Its plan for the job of above:

# %% tags=["nbval-check-output"]
print("\n".join(plan.price_lines()))
print("\n".join(f"- {line}" for line in plan.notes))
if solved("15-request"):
    mine = training_request(JOBS["spot, two hosts"])
    print("fields of yours that dtlab's request has not:", sorted(set(mine) - set(plan.request)))
    print("fields of dtlab's that yours has not:", sorted(set(plan.request) - set(mine)))

# %% [markdown]
# Retries are for errors of the service, `VpcConfig` and encryption come from `[network]`. S4 had to set up rights, subnets and monitoring by hand; the smallest role for this job is a function of it:

# %% tags=["nbval-check-output"]
for statement in role_policy(job)["Statement"]:
    print(", ".join(statement["Action"]))
    print("    on", ", ".join(statement["Resource"]))

# %% [markdown]
# **The rungs.** `dtlab.tune.rungs.halve` is your `climb`. And `dtlab tune` runs Hyperband over trials on ranks: rank 0 asks the `Judge`, and a broadcast carries its answer, so no rank prunes alone. Here the same `Judge` hears the recorded curves, trial by trial. It does not wait until all 27 have come to a rung: it compares a trial with those that were there before it.


# %%
def judged():
    """Recorded trials under dtlab's Judge: looks trained, and the best of those that went to the end."""
    names = tuple(curves)
    plan = StudyPlan(folder=new_folder(), space={"trial": Choice(names)}, rungs=27)
    study, spent, ended = plan.open(), 0, []
    for name in names:
        study.enqueue_trial({"trial": name})
        trial = study.ask()
        trial.suggest_categorical("trial", names)
        judge = Judge(plan, trial._trial_id, samples_per_rung=1)
        look = next((at for at, auc in enumerate(curves[name], 1) if judge(at, auc)), 27)
        spent += look
        if look == 27:
            study.tell(trial, max(curves[name]))
            ended.append(name)
    return spent, max(ended, key=lambda name: max(curves[name]))


# %%
if solved("15-rungs"):
    assert climb(curves, (1, 3, 9), 3) == halve(curves, (1, 3, 9), 3)
    print("dtlab.tune.rungs.halve: the same survivors, the same looks")
    spent, name = judged()
    print(f"dtlab's Judge, trial after trial: {spent} looks, {dollars(spent)}, finds {name}")

# %% [markdown]
# It pays more than your rungs, as the first trials have nobody to be compared with and run on, and all brackets are used. It never waits, and needs no 27 hosts.
#
# **The record.** Every `dtlab train` writes `record.jsonl` as its first act: settings, commit, whether files differ, the version of the data, machine and versions; then what happens. Two real runs on two ranks, of which the second's model is copied away:


# %%
def two_runs(root):
    from dtlab.data.config import DataConfig
    from dtlab.train.config import ModelConfig, OptimConfig, RunConfig, TrainConfig
    from dtlab.train.job import run

    for name, lr in (("first", 5e-3), ("second", 1e-2)):
        place = RunConfig(folder=root / name, output=None, max_steps=10, refit=False)
        optim = OptimConfig(lr=lr, global_batch=64)
        rows = DataConfig(name="clicks", rows=1_000, root=str(root / "data"))
        run(TrainConfig(data=rows, model=ModelConfig(dim=4, hidden=(8,)), optim=optim, run=place))


# %% tags=["nbval-check-output"]
if solved("15-record"):
    root = new_folder()
    with running("two runs"):
        launch(two_runs, 2, root, timeout=90, echo=False)
    copied = shutil.copytree(root / "second" / "model", new_folder() / "live")
    found = find_by_checkpoint(copied, root)
    print("the run behind the copied model:", found.folder.name, "-", found.status)
    names = ("optim.lr", "optim.global_batch", "world_size", "data version")
    print("in its record:", [name for name in names if found.settings[name] is not None])
    settings, _ = compare(find_by_checkpoint(root / "first" / "model", root), found)
    print("settings that differ:", [(each.name, each.first, each.second) for each in settings])
    assert found.folder.name == "second"

# %% [markdown]
# | | |
# |---|---|
# | `dtlab runs` | a line for each run: settings, metric, samples, dollars, commit (with a `+` when files differed) |
# | `dtlab runs compare A B` | which settings differ, and which results |
# | `dtlab runs --checkpoint PATH` | the run behind a checkpoint or a model |
# | `dtlab runs mlflow RUN` | the record into MLflow, a local one or SageMaker's |
# | `dtlab tune examples/tune.toml --budget-usd 0.50` | Bayesian search with Hyperband over trials on ranks; every trial is a run with a record |
#
# S3 named SageMaker Experiments for this. AWS points from there to managed MLflow now; a file beside the weights needs neither.
#
# ## On SageMaker
# Nothing was sent so far, and nothing is sent without `--send`:
#
# ```
# dtlab sagemaker plan examples/jobs/s0.toml       # request, changes, price, role, alarms
# dtlab sagemaker rehearse examples/jobs/s0.toml   # its containers here, under a minute
# dtlab sagemaker submit examples/jobs/s0.toml --send
# dtlab sagemaker tune examples/jobs/s0.toml ...   # Bayesian, Hyperband or random
# ```
# The rehearsal is worth its minute. It plays two hosts of two ranks each: your code from the archive that would be uploaded, the folders and files of above, the request's command. It runs the job to its end; again, and stops it by SIGTERM as a spot host is; then goes on from the checkpoint, and compares the weights bit for bit. Both wrong paths of this lesson end there, for nothing. What it does not play: the image with its packages, NCCL, the network between hosts.
#
# What the SDK (version 3) would do otherwise, each seen in its code: a shell as first process, which passes no SIGTERM on; with MPI, the ranks of one host for all hosts; tuning jobs started without torchrun. `dtlab.sagemaker` has an answer for each, and `model_trainer(job, ...)` for those who want the SDK all the same. Is it here?

# %% tags=["gpu-optional"]
try:
    import sagemaker.pytorch
except ImportError as error:
    is_version_3 = "pytorch" in str(error)
    print(f"{error}:", "version 3 has none" if is_version_3 else "no SDK here, none needed")

# %% [markdown]
# On a GPU nothing changes in this lesson but the price of a look.
#
# ## The bill
# A grid of 27 to the end, which picks the wrong rate unless it goes back to the best look, against three rungs. A look stands for ten minutes.

# %%
bill(
    "27 trials, each to its end",
    "27 trials on three rungs",
    instance="ml.g5.12xlarge",
    fault_seconds=729 * 600,
    fix_seconds=81 * 600,
)

# %% [markdown]
# ## Recap

# %%
recap(
    "15",
    [
        "Check the request offline, rehearse the container: a wrong path costs nothing here.",
        "All ranks stop on the same number, and ship the best weights; patience counts samples.",
        "Judge trials early and by their best; write settings, commit and data down before step 1.",
    ],
)
