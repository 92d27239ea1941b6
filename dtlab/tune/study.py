"""The study of a search: Optuna's sampler and pruner over a journal file that survives a kill.

The searching process asks for trials and tells how they ended. Rank 0 of a trial opens the same journal,
reports each validation and asks whether to prune; the other ranks get its answer by a broadcast
(``dtlab.train.job``), so no rank decides alone.

Hyperband (Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization"): trials
are dealt to brackets; in each, only the best third goes on from one rung to the next, which is three times
as far. The sampler is the tree-structured Parzen estimator, which is Bayesian.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dtlab.errors import UserError, one_line
from dtlab.tune.space import Choice, Space

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

__all__ = ["StudyPlan", "mend_journal", "suggest"]

Search = Literal["bayes", "random", "grid"]
Pruner = Literal["hyperband", "none"]
JOURNAL = "study.journal"
_MOST_SEED = 2**31  # restarts move it on, and NumPy takes no more than 32 bits


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """Everything that two processes need to open one study.

    Attributes:
        folder: holds the journal.
        space: what is searched.
        search: bayes (TPE), random, or grid: every combination of choices.
        pruner: hyperband, or none: every trial to its own stop.
        maximize: whether a larger metric is better.
        rungs: reports of a run that is never pruned, which is the largest resource.
        seed: of the sampler.
        startup: random trials before the Bayesian ones.
    """

    folder: Path
    space: Space
    search: Search = "bayes"
    pruner: Pruner = "hyperband"
    maximize: bool = True
    rungs: int = 1
    seed: int = 0
    startup: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _MOST_SEED:
            raise UserError(f"seed = {self.seed}: give 0 to {_MOST_SEED:,}")

    def open(self, *, told: int = 0) -> Study:
        """The study, made or found again; ``told`` moves the sampler's seed on after a restart.

        Raises:
            UserError: optuna is not installed, or the journal is damaged or of a search the other way.
        """
        optuna = _optuna()
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            try:
                storage = JournalStorage(JournalFileBackend(str(self.folder / JOURNAL)))
            except OSError:
                raise
            except Exception as error:  # Optuna replays what stands there, and raises as it comes
                reason = one_line(f"{type(error).__name__}: {error}")
                raise _damaged(self.folder / JOURNAL, reason) from None
        seed = self.seed + told
        sampler: Any
        if self.search != "bayes":  # the points of a grid are given, in dtlab.tune.search
            sampler = optuna.samplers.RandomSampler(seed=seed)
        else:
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=self.startup)
        pruner: Any = optuna.pruners.NopPruner()
        if self.pruner == "hyperband":
            pruner = optuna.pruners.HyperbandPruner(
                min_resource=1, max_resource=max(1, self.rungs), reduction_factor=3
            )
        study = optuna.create_study(
            study_name="dtlab",
            storage=storage,
            sampler=sampler,
            pruner=pruner,
            direction="maximize" if self.maximize else "minimize",
            load_if_exists=True,
        )
        if study.direction.name != ("MAXIMIZE" if self.maximize else "MINIMIZE"):
            raise UserError(
                f"folder = {str(self.folder)!r}: holds a search for the "
                f"{study.direction.name.lower()[:3]}imum; name another folder"
            )
        return study


def mend_journal(plan: StudyPlan) -> None:
    """Cut off the line that a killed search did not end, and the lock that it left; nobody else is there.

    Raises:
        UserError: a line is no entry of a journal; the file is left as it is.
    """
    journal = plan.folder / JOURNAL
    if not journal.exists():
        return
    kept = journal.read_bytes()
    whole, _, torn = kept.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or not isinstance(entry.get("op_code"), int):
            raise _damaged(journal, f"line {number} is no entry of a journal")
    if torn and not torn.startswith(b"{"):
        raise _damaged(journal, "it ends with something else")
    os.truncate(journal, len(kept) - len(torn))
    for lock in plan.folder.glob(f"{JOURNAL}.lock*"):
        lock.unlink(missing_ok=True)


def _damaged(journal: Path, reason: str) -> UserError:
    return UserError(
        f"folder = {str(journal.parent)!r}: its {journal.name} is damaged ({reason}); move it away, or name "
        "another folder"
    )


class Judge:
    """The referee of one trial: reports to its study, and says when Hyperband prunes it. Lives on rank 0.

    What is reported is the best validation so far: a run keeps the weights of its best epoch, and one that
    has begun to overfit must not fall behind another that never was as good.

    Args:
        plan: of the study.
        trial_id: of the trial in the journal.
        samples_per_rung: samples of one unit of resource.
        most_samples: after which the trial must end; None for no limit.
    """

    def __init__(
        self, plan: StudyPlan, trial_id: int, samples_per_rung: int, most_samples: int | None = None
    ) -> None:
        self.plan, self.trial_id, self.samples_per_rung = plan, trial_id, samples_per_rung
        self.most_samples = most_samples
        self._trial: Trial | None = None
        self._best = math.nan

    def __call__(self, samples: int, value: float) -> str | None:
        if self._trial is None:
            self._take_up()
        assert self._trial is not None
        if math.isfinite(value):  # one that is not says that the trial is lost, and is reported as it is
            better = max if self.plan.maximize else min
            value = self._best = value if math.isnan(self._best) else better(self._best, value)
        rung = max(1, round(samples / self.samples_per_rung))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a resumed trial reports a rung again: the first value stays
            self._trial.report(value, rung)
        if self.most_samples is not None and samples >= self.most_samples:
            return f"budget: {samples:,} samples, all that the search had left"
        if not self._trial.should_prune():
            return None
        return f"pruned: {value:.4f} after {samples:,} samples is not among the best of its bracket"

    def _take_up(self) -> None:
        """Open the trial; one that an earlier start left knows what it reported then."""
        optuna = _optuna()
        study = self.plan.open()
        self._trial = optuna.trial.Trial(study, self.trial_id)
        mine = [each for each in study.get_trials(deepcopy=False) if each._trial_id == self.trial_id]
        known = [
            value for each in mine for value in each.intermediate_values.values() if math.isfinite(value)
        ]
        if known:
            self._best = max(known) if self.plan.maximize else min(known)


def suggest(trial: Trial, space: Space) -> dict[str, Any]:
    """A value for every setting of ``space``."""
    found: dict[str, Any] = {}
    for name, each in space.items():
        if isinstance(each, Choice):
            found[name] = trial.suggest_categorical(name, list(each.values))
        elif each.is_whole:
            found[name] = trial.suggest_int(name, int(each.low), int(each.high), log=each.log)
        else:
            found[name] = trial.suggest_float(name, each.low, each.high, log=each.log)
    return found


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("tune: optuna is not installed; pip install 'dtlab[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
