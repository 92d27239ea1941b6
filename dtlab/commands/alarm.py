"""``dtlab alarm``: AWS's own alarms on spending, printed as checked requests or created."""

from __future__ import annotations

import json as json_module
from typing import Literal


def alarm(
    *,
    email: str,
    usd: float = 50.0,
    account: str | None = None,
    scope: Literal["sagemaker", "all"] = "sagemaker",
    name: str = "dtlab",
    create: bool = False,
) -> int:
    """A monthly AWS budget and a billing alarm: print the requests, or create them.

    Both are hours late. What stops a run at an amount is --stopping.max-usd of dtlab train.

    Parameters
    ----------
    email
        Who is told; has to confirm the first mail of the topic.
    usd
        Dollars in a calendar month.
    account
        Twelve digits; asked of AWS with --create, else 000000000000 stands in the printed requests.
    scope
        Charges of SageMaker, or of all services.
    name
        Begins the names of the budget, the topic and the alarm.
    create
        Send the requests with the AWS credentials in use.
    """
    from dtlab.cost.alarms import alarm_requests, create_alarms, own_account

    if create and account is None:
        account = own_account()
    requests = alarm_requests(email, account or "0" * 12, usd, scope, name)
    if create:
        print("\n".join(create_alarms(requests)))
        return 0
    print(json_module.dumps({f"{s}.{operation}": body for s, operation, body in requests}, indent=2))
    return 0
