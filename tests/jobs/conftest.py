"""An account for tests: moto's, with one bucket."""

import pytest

REGION = "us-east-1"


@pytest.fixture
def session(monkeypatch):
    """A boto3 session whose calls moto answers."""
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with moto.mock_aws():
        made = boto3.Session(region_name=REGION)
        made.client("s3").create_bucket(Bucket="example-bucket")
        yield made
