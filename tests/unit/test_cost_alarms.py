"""Alarms on spending are requests that AWS's own models accept, and wrong ones are refused here."""

import json

import pytest

pytest.importorskip("boto3")

from dtlab.cli import main
from dtlab.cost import alarms, aws
from dtlab.cost.alarms import alarm_requests, create_alarms
from dtlab.errors import UserError

EMAIL, ACCOUNT = "me@example.org", "123456789012"


def test_budget_is_50_dollars_a_month_of_sagemaker_and_tells_four_times():
    requests = {f"{s}.{o}": body for s, o, body in alarm_requests(EMAIL, ACCOUNT)}
    budget = requests["budgets.create_budget"]["Budget"]
    assert budget["BudgetLimit"] == {"Amount": "50.00", "Unit": "USD"}
    assert (budget["TimeUnit"], budget["CostFilters"]) == ("MONTHLY", {"Service": ["Amazon SageMaker"]})
    told = [n["Notification"] for n in requests["budgets.create_budget"]["NotificationsWithSubscribers"]]
    assert [(n["NotificationType"], n["Threshold"]) for n in told] == [
        ("ACTUAL", 50.0), ("ACTUAL", 80.0), ("ACTUAL", 100.0), ("FORECASTED", 100.0),
    ]  # fmt: skip
    alarm = requests["cloudwatch.put_metric_alarm"]
    assert (alarm["Namespace"], alarm["MetricName"], alarm["Threshold"]) == (
        "AWS/Billing",
        "EstimatedCharges",
        50,
    )
    assert alarm["AlarmActions"] == [requests["sns.subscribe"]["TopicArn"]]


def test_all_services_have_no_filter():
    requests = {f"{s}.{o}": body for s, o, body in alarm_requests(EMAIL, ACCOUNT, 200, "all")}
    assert "CostFilters" not in requests["budgets.create_budget"]["Budget"]
    assert requests["cloudwatch.put_metric_alarm"]["Dimensions"] == [{"Name": "Currency", "Value": "USD"}]


@pytest.mark.parametrize(
    ("operation", "break_it", "said"),
    [
        ("create_budget", lambda body: body["Budget"].pop("TimeUnit"), "TimeUnit"),
        ("create_budget", lambda body: body["Budget"].update(TimeUnit="WEEKLY"), "TimeUnit = 'WEEKLY'"),
        ("create_budget", lambda body: body["Budget"].update(Limit=3), "Limit"),
        ("create_budget", lambda body: body.update(AccountId="12"), "AccountId"),
        ("put_metric_alarm", lambda body: body.update(Threshold="fifty"), "Threshold"),
        ("put_metric_alarm", lambda body: body.update(Statistic="Largest"), "Statistic = 'Largest'"),
    ],
)
def test_request_that_is_wrong_is_noticed_without_an_account(operation, break_it, said):
    service, _, body = next(one for one in alarm_requests(EMAIL, ACCOUNT) if one[1] == operation)
    shape = {"create_budget": "CreateBudget", "put_metric_alarm": "PutMetricAlarm"}[operation]
    assert aws.checked(service, shape, body) is body
    break_it(body)
    with pytest.raises(UserError, match=said) as error:
        aws.checked(service, shape, body)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--email", "nobody"], "email = 'nobody'"),
        (["--email", EMAIL, "--usd", "0"], "usd = 0"),
        (["--email", EMAIL, "--usd", "-5"], "usd = -5"),
        (["--email", EMAIL, "--usd", "nan"], "usd = nan"),
        (["--email", EMAIL, "--account", "1234"], "account = '1234'"),
        (["--email", EMAIL, "--name", "a b"], "name = 'a b'"),
        ([], "email"),
    ],
)
def test_bad_words_are_named(capsys, words, said):
    assert main(["alarm", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_command_prints_the_requests_and_sends_nothing(capsys, monkeypatch):
    monkeypatch.setattr(aws, "client", lambda *_: pytest.fail("a client was made"))
    assert main(["alarm", "--email", EMAIL, "--usd", "75"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["budgets.create_budget"]["Budget"]["BudgetLimit"]["Amount"] == "75.00"


def test_requests_are_accepted_by_a_played_aws(monkeypatch):
    moto = pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with moto.mock_aws():
        requests = alarm_requests(EMAIL, alarms.own_account())
        assert [line.rpartition(": ")[2] for line in create_alarms(requests)] == ["done"] * 4
        again = create_alarms(requests)
        assert again[0] == "budgets.create_budget: exists already, kept"
        client = aws.client("cloudwatch", "us-east-1")
        names = [alarm["AlarmName"] for alarm in client.describe_alarms()["MetricAlarms"]]
        assert names == ["dtlab-spending"]
