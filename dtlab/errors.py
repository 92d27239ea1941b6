"""The two kinds of message that dtlab addresses to its user."""


class UserError(ValueError):
    """Something the user gave is wrong.

    The message is one line that names the field, its value and the way out. The command line prints it
    as it is and ends with exit code 2; in a notebook it is an ordinary exception.
    """


class DtlabWarning(UserWarning):
    """Every warning of dtlab has this category, so that one filter reaches all of them."""
