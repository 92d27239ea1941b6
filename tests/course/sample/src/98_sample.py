# %% [markdown]
# # Counting messages
#
# Two clerks were paid for an afternoon to add up the same column. The office paid twice and got one sum.
# How many messages does it take to share the work?
#
# ## Goal

# %% tags=["remove-cell"]
from dtlab.course import Checks, exercise


@exercise(
    "98-messages",
    todo="return how many messages n ranks send when each sends one to every other",
    hints=("Each of the n ranks sends to n - 1 others.", "return n * (n - 1)"),
    references=("math.perm",),
)
def _check_messages(checks: Checks, answer, sizes) -> None:
    for n in sizes:
        checks.integer(f"messages of {n} ranks", answer(n), n * (n - 1), look="who sends to itself?")
    checks.equal("as a table", [answer(n) for n in sizes], [n * (n - 1) for n in sizes])


# %% tags=["hide-input"]
from dtlab.course import check, expect_failure, goal, hint, predict, recap, solved, time_budget
from dtlab.figures.style import new_figure, show
from dtlab.widgets.explorer import explorer

goal(["count the messages of an all-to-all"], minutes=5)

# %% [markdown]
# ## Predict

# %%
growth = predict("98-growth", "Twice the ranks: how many more messages?", ["twice", "about four times"])

# %% [markdown]
# ## Break it
# Sharing among nobody fails.

# %% tags=["lab-failure", "nbval-check-output"]
with expect_failure(
    ZeroDivisionError,
    match="division",
    within=5,
    explain={"modulo by zero": "there is no rank to give a share to"},
):
    share = 10 // 0

# %% [markdown]
# ## Look


# %%
def messages_figure(ranks=4):
    """Messages against ranks, as bars."""
    fig, ax = new_figure(
        f"{ranks} ranks send {ranks * (ranks - 1)} messages",
        alt=f"bars of n(n-1) for n from 2 to {ranks}",
        xlabel="ranks",
        ylabel="messages (count)",
    )
    ax.bar(range(2, ranks + 1), [n * (n - 1) for n in range(2, ranks + 1)], hatch="//", edgecolor="white")
    return fig


show(messages_figure(8))
explorer(messages_figure, ranks=(2, 8))

# %% [markdown]
# ## Build it


# %% tags=["exercise"]
def messages(n):
    """Messages that n ranks send when each sends one to every other."""
    ### BEGIN SOLUTION
    return n * (n - 1)
    ### END SOLUTION


# %% tags=["hint"]
hint("98-messages")

# %% [markdown]
# ## Check

# %% tags=["check"]
check("98-messages", messages, [1, 2, 4])

# %% tags=["exercise"]
### BEGIN SOLUTION
largest = 4 * 3
### END SOLUTION

# %% [markdown]
# ## The real thing

# %% tags=["nbval-check-output"]
import math

if solved("98-messages"):
    print(messages(4), "=", math.perm(4, 2))

# %% tags=["varies"]
with time_budget(5):
    sum(range(1000))

# %% [markdown]
# ## On a GPU

# %% tags=["gpu-optional"]
print("nothing changes")

# %% [markdown]
# ## The bill
# The second clerk costs as much as the first.

# %% tags=["solution"]
growth.reveal("b", because="n (n - 1) grows with the square of n.")

# %% [markdown]
# ## Recap

# %%
recap("98", ["n ranks", "n - 1 messages each", "n (n - 1) in all"])
