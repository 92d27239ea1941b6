"""The command line: parse, call, print. Bad input is one line and exit code 2, a failed run exit code 1.

Commands are loaded when they are named, so that ``dtlab --help`` answers at once.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import get_args

from cyclopts import UNSET, App, Argument, ArgumentCollection, CycloptsError, Token
from cyclopts.config import Dict

from dtlab import __version__
from dtlab.commands.ending import EndedBySignal, Ending
from dtlab.errors import UserError, one_line
from dtlab.ranks.variables import refuse_unreadable

app = App(
    name="dtlab",
    version=__version__,
    help="Distributed PyTorch training: run it, break it, price it. Lessons are in notebooks/.",
)
app.command(
    "dtlab.commands.training:train",
    name="train",
    help="Train a model on one or more ranks.\n\n"
    "Short flags where no file is named: --model gpt, the same as --data text, trains a small GPT on text; "
    "--data flights or --data clicks a DeepFM on a table.",
)
app.command(
    "dtlab.commands.training:predict", name="predict", help="Score a Parquet file with a trained model."
)
app.command(
    "dtlab.commands.training:prepare", name="prepare", help="Prepare a data set before its first use."
)
app.command(
    "dtlab.commands.machine:doctor", name="doctor", help="Check this machine, with the fix for each fault."
)
app.command(
    "dtlab.commands.ladder:ladder", name="ladder", help="Climb towards more hosts; stop where a rung fails."
)
app.command(
    "dtlab.commands.money:app", name="cost", help="Price of a run: instance, hours; or fit your own runs."
)
app.command(
    "dtlab.commands.money:instances", name="instances", help="List the known instances with their prices."
)
app.command(
    "dtlab.commands.plan:plan",
    name="plan",
    help="Which machines, how many, and how to cut the model.",
    help_format="plaintext",  # no Markdown to parse: its help answers sooner
)
app.command(
    "dtlab.commands.prices:app", name="prices", help="Which prices are in use; refresh them from AWS."
)
app.command(
    "dtlab.commands.alarm:alarm", name="alarm", help="AWS's own alarms on spending, as checked requests."
)
app.command(
    "dtlab.commands.sagemaker:app",
    name="sagemaker",
    help="A training job on SageMaker: plan and rehearse it.",
)
app.command(
    "dtlab.commands.tune:tune", name="tune", help="Search learning rate, batch and more, within a budget."
)
app.command(
    "dtlab.commands.pipeline:app",
    name="pipeline",
    help="From raw rows to a packaged model, skipping what is done.",
)
app.command(
    "dtlab.commands.runs:app", name="runs", help="List runs, compare two, find the one behind a checkpoint."
)
app.command("dtlab.commands.new:new", name="new", help="Make a project of your own: data, model, job, test.")
app.command("dtlab.course.__main__:app", name="course", help="Build, verify and run the lessons.")


def main(tokens: Sequence[str] | None = None) -> int:
    """Run ``dtlab`` with ``tokens`` (default: the command line) and return the exit code."""
    ending = Ending()
    try:
        ending.begin()
        code = _run(list(sys.argv[1:] if tokens is None else tokens))
        ending.is_over = True
        return code
    except EndedBySignal as stop:
        ending.is_over = True
        return stop.say()
    except Exception:
        ending.is_over = True
        if ending.number is None:
            raise
        return EndedBySignal(ending.number).say()  # what the signal broke, told in other words
    finally:
        ending.close(process_ends=tokens is None)


def _run(words: list[str]) -> int:
    words = _with_joined_answers(words)
    try:
        refuse_unreadable(os.environ)
        words = _written_out(words)
        file = _config_file(words)
        app.config = (*([] if file is None else [file]), _text_defaults, _plain_words)
        command, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
        if file is None and bound.arguments.get("config_file") is not None:
            raise UserError(_misplaced(words, str(bound.arguments["config_file"])))
    except (CycloptsError, UserError, ValueError, TypeError) as error:
        # Under a launcher every rank reads the same words: one of them says what is wrong.
        return _refuse(_with_way_out(error, words), same_on_all_ranks=True)
    except SystemExit as stop:  # --help and --version print and leave
        return int(stop.code or 0)
    return guarded(lambda: command(*bound.args, **bound.kwargs))


def _with_way_out(error: Exception, words: list[str]) -> Exception:
    """``error`` with what the word that nothing knows was meant to be."""
    from cyclopts.exceptions import UnknownOptionError, UnusedCliTokensError

    if isinstance(error, UnknownOptionError) and error.token.source == "cli":
        from dtlab.commands.near_flags import meant_flag

        word = (error.token.keyword or error.token.value).partition("=")[0]
        known = [name for argument in error.argument_collection for name in argument.names]
        meant = meant_flag(word, known)
        return UserError(f"Unknown option: {word}." + (f" Did you mean {meant}?" if meant else ""))
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        from dtlab.commands.near_flags import once_for_each

        first = error.unused_tokens[0]
        fix = once_for_each(words, first, _list_flags())
        return error if fix is None else UserError(f"{first!r}: no flag takes it; {fix}")
    return error


def _misplaced(words: list[str], name: str) -> str:
    """What to say of a word that was taken for the configuration file, and does not stand where it stands."""
    from dtlab.commands.near_flags import once_for_each

    fix = once_for_each(words, name, _list_flags())
    line = f"config file = {name!r}: must come right after {words[0]!r}"
    return f"{line}; if it is meant as a value, {fix or 'put its flag before it'}"


def _list_flags() -> set[str]:
    """The flags of a run that may be given several times."""
    from dtlab.train.config import TrainConfig

    tables = vars(TrainConfig())
    return {
        f"--{table}.{name.replace('_', '-')}"
        for table, values in tables.items()
        for name, value in vars(values).items()
        if isinstance(value, tuple)
    }


def guarded(call) -> int:
    """Run ``call`` and turn what the user can mend into a line and an exit code."""
    try:
        result = call()
    except UserError as error:
        return _refuse(error)
    except EndedBySignal:
        raise  # also from the lines below: it may come at any time
    except KeyboardInterrupt:
        print("dtlab: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    except OSError as error:  # a full disk, a folder without rights, a name that is too long
        return _refuse(error)
    except Exception as error:
        from dtlab.ranks.report import RankError, RankStarterError  # imported late: it brings torch

        if not isinstance(error, RankError | RankStarterError):
            raise
        # Every rank refused the same bad input.
        if isinstance(error, RankError) and error.exception_type == "UserError":
            return _refuse(UserError(error.message))
        print("\n  ".join([f"dtlab: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0


def _refuse(error: Exception, *, same_on_all_ranks: bool = False) -> int:
    from dtlab.ranks.agent_errors import tell_agent_after_rank_0

    line = one_line(str(error), most=10_000)
    told = tell_agent_after_rank_0(line)
    if not told and same_on_all_ranks and os.environ.get("RANK", "0") != "0":
        return 2
    print(f"dtlab: {line}", file=sys.stderr)
    return 2


def _written_out(words: list[str]) -> list[str]:
    """``dtlab train --model gpt`` as ``dtlab train --data.name text``."""
    if words[:1] != ["train"]:
        return words
    from dtlab.commands.config_file import read_config_file
    from dtlab.commands.short_flags import written_out

    def name_in_file() -> str | None:
        has_file = len(words) > 1 and not words[1].startswith("-")
        return read_config_file(words[1]).get("data", {}).get("name") if has_file else None

    return written_out(words, name_in_file)


def _config_file(words: list[str]) -> Dict | None:
    """The values of ``dtlab train FILE`` or ``dtlab ladder FILE``, to stand under the flags."""
    if len(words) < 2 or words[0] not in ("train", "ladder") or words[1].startswith("-"):
        return None
    from dtlab.commands.config_file import read_config_file

    return Dict({words[0]: read_config_file(words[1])}, source=words[1])


def _text_defaults(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give a run on text its own defaults, where neither flags nor file say otherwise."""
    by_field = {_field(argument): argument for argument in arguments}
    names = by_field["data.name"].tokens if "data.name" in by_field else []
    if "optim.global_batch" not in by_field or not names or names[-1].value != "text":
        return
    from dtlab.train.config_text import text_defaults

    for field, value in text_defaults(lambda name: bool(by_field[name].tokens)).items():
        argument = by_field[field]
        argument.append(Token(keyword=argument.name, value=str(value), source="defaults of text"))


def _plain_words(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse what cyclopts would take for something else, from flags and file alike.

    Nothing, as in ``--run.folder "$UNSET"``: it would be the working directory. A null byte, which no name
    has. 1.5 where a whole number belongs: it would be rounded.
    """
    for argument in arguments:
        for token in argument.tokens:
            if token.value == "" and token.implicit_value is UNSET:
                raise UserError(f"{_field(argument)} = '': is empty; give a value, or leave it out")
            if "\0" in token.value:
                raise UserError(f"{_field(argument)} = {token.value!r}: has a null byte; leave it out")
        if not _holds_whole_numbers(argument.hint):
            continue
        for token in argument.tokens:
            try:
                number = float(token.value)
            except ValueError:
                continue  # cyclopts says so better
            if 2**63 <= abs(number) < math.inf:
                raise UserError(
                    f"{_field(argument)} = {token.value}: has more than 64 bits; give a smaller one"
                )
            if "." in token.value and not number.is_integer():
                raise UserError(f"{_field(argument)} = {token.value}: give a whole number")


def _field(argument: Argument) -> str:
    return argument.name.lstrip("-").replace("-", "_")


def _with_joined_answers(words: list[str]) -> list[str]:
    """``--run.refit false`` as ``--run.refit=false``: a flag for yes or no takes no second word.

    >>> _with_joined_answers(["train", "--run.refit", "False", "--optim.lr", "1"])
    ['train', '--run.refit=False', '--optim.lr', '1']
    """
    joined: list[str] = []
    for word in words:
        is_answer = word.lower() in ("true", "false", "yes", "no")
        if is_answer and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _holds_whole_numbers(hint: object) -> bool:
    inner = get_args(hint)
    return hint is int or (bool(inner) and all(h in (int, type(None), ...) for h in inner) and int in inner)


if __name__ == "__main__":
    sys.exit(main())
