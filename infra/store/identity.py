"""The AWS identity of whoever calls, for records of changes by hand."""


def caller(uri: str) -> str | None:
    """Return the ARN that AWS sees for a workspace in a bucket; None for a directory, or if STS does not say.

    It takes at most some seconds: without a way to STS, as in a network without NAT, a record has no identity.
    """
    if not uri.startswith("s3://"):
        return None
    import boto3.session  # takes half a second, rarely needed
    from botocore.config import Config

    hurried = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=3, read_timeout=3)
    try:
        session = boto3.session.Session()
        client = session.client("sts", region_name=session.region_name or "us-east-1", config=hurried)
        arn: str = client.get_caller_identity()["Arn"]
    except Exception:  # no credentials, denied, not reachable, or an endpoint that serves only S3
        return None
    return arn
