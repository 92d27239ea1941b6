"""Alarms of an AWS account as requests: a monthly budget and a billing alarm, $50 unless said (lesson 14).

They are late: AWS brings a budget up to date up to three times a day, 8 to 12 hours apart. Two
ml.g4dn.12xlarge spend $78 to $117 in that time. The hard stop of a run is `stopping.max_usd`.

Nothing is sent here. `dtlab alarm` prints the requests, and creates them with `--create`.

- `budgets.create_budget`: mail at 50, 80 and 100 % of what was spent, and when the forecast passes 100 %.
- `sns.create_topic`, `sns.subscribe`: where the alarm goes; the subscriber confirms by mail.
- `cloudwatch.put_metric_alarm` on AWS/Billing EstimatedCharges, which exists in us-east-1 only, and only once
  "Receive billing alerts" is on in the account's billing preferences.
"""

import re
from typing import Any, Literal

from dtlab.cost import aws
from dtlab.errors import UserError

DEFAULT_USD = 50.0
REGION = "us-east-1"
SHARES = (50, 80, 100)
Scope = Literal["sagemaker", "all"]
Request = tuple[str, str, dict[str, Any]]  # service, operation, what is sent


def alarm_requests(
    email: str, account: str, usd: float = DEFAULT_USD, scope: Scope = "sagemaker", name: str = "dtlab"
) -> list[Request]:
    """The four requests, checked against botocore's models of the services; in the order of sending.

    Args:
        email: who is told.
        account: twelve digits.
        usd: dollars in a calendar month.
        scope: "sagemaker", or "all" services of the account.
        name: of the budget, the topic and the alarm.

    Raises:
        UserError: a value AWS would refuse, or botocore is not installed.

    >>> requests = alarm_requests("me@example.org", "123456789012")
    >>> [f"{service}.{operation}" for service, operation, _ in requests]
    ['budgets.create_budget', 'sns.create_topic', 'sns.subscribe', 'cloudwatch.put_metric_alarm']
    """
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0.01 <= usd <= 1e9:
        raise UserError(f"usd = {usd!r}: give dollars of a month, 0.01 to 1e9")
    if not re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", str(email)):
        raise UserError(f"email = {email!r}: give an address such as me@example.org")
    if not re.fullmatch(r"\d{12}", str(account)):
        raise UserError(f"account = {account!r}: give the 12 digits of the AWS account")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", str(name)):
        raise UserError(f"name = {name!r}: give letters, digits, - and _, at most 60")
    if scope not in ("sagemaker", "all"):
        raise UserError(f"scope = {scope!r}: give 'sagemaker' or 'all'")
    topic = f"arn:aws:sns:{REGION}:{account}:{name}-spending"
    requests: list[Request] = [
        ("budgets", "create_budget", _budget(email, account, usd, scope, name)),
        ("sns", "create_topic", {"Name": f"{name}-spending"}),
        ("sns", "subscribe", {"TopicArn": topic, "Protocol": "email", "Endpoint": email}),
        ("cloudwatch", "put_metric_alarm", _alarm(topic, usd, scope, name)),
    ]
    for service, operation, request in requests:
        aws.checked(service, "".join(word.title() for word in operation.split("_")), request)
    return requests


def create_alarms(requests: list[Request], clients: dict[str, Any] | None = None) -> list[str]:
    """Send the requests; returns a line for each. A budget of that name is kept as it is.

    Raises:
        UserError: AWS refused one; those before it are made.
    """
    made = clients or {}
    lines = []
    for service, operation, request in requests:
        client = made.get(service) or aws.client(service, REGION)
        try:
            aws.call(client, operation, **request)
        except UserError as error:
            if "DuplicateRecordException" not in str(error):
                raise
            lines.append(f"{service}.{operation}: exists already, kept")
        else:
            lines.append(f"{service}.{operation}: done")
    return lines


def own_account(client: Any = None) -> str:
    """The account of the credentials in use."""
    made = aws.client("sts", REGION) if client is None else client
    return str(aws.call(made, "get_caller_identity")["Account"])


def _budget(email: str, account: str, usd: float, scope: Scope, name: str) -> dict[str, Any]:
    budget: dict[str, Any] = {
        "BudgetName": f"{name}-monthly",
        "BudgetType": "COST",
        "TimeUnit": "MONTHLY",
        "BudgetLimit": {"Amount": f"{usd:.2f}", "Unit": "USD"},
    }
    if scope == "sagemaker":
        budget["CostFilters"] = {"Service": ["Amazon SageMaker"]}
    told = [("ACTUAL", share) for share in SHARES] + [("FORECASTED", 100)]
    return {
        "AccountId": account,
        "Budget": budget,
        "NotificationsWithSubscribers": [
            {
                "Notification": {
                    "NotificationType": kind,
                    "ComparisonOperator": "GREATER_THAN",
                    "Threshold": float(share),
                    "ThresholdType": "PERCENTAGE",
                },
                "Subscribers": [{"SubscriptionType": "EMAIL", "Address": email}],
            }
            for kind, share in told
        ],
    }


def _alarm(topic: str, usd: float, scope: Scope, name: str) -> dict[str, Any]:
    dimensions = [{"Name": "Currency", "Value": "USD"}]
    if scope == "sagemaker":
        dimensions.insert(0, {"Name": "ServiceName", "Value": "AmazonSageMaker"})
    return {
        "AlarmName": f"{name}-spending",
        "AlarmDescription": f"Charges of this month above ${usd:.2f}; figures are hours old.",
        "Namespace": "AWS/Billing",
        "MetricName": "EstimatedCharges",
        "Dimensions": dimensions,
        "Statistic": "Maximum",
        "Period": 21_600,  # the metric comes every few hours
        "EvaluationPeriods": 1,
        "Threshold": float(usd),
        "ComparisonOperator": "GreaterThanThreshold",
        "TreatMissingData": "notBreaching",
        "AlarmActions": [topic],
    }
