import pytest

from tasks.foundation.passwords import holds_password, masked

HOLD = [
    "http://u:geheim@h/",
    "postgresql://writer:geheim@db/shop",
    "postgresql://writer:gehe?im@db/shop",
    "postgresql://u@h/db?password=geheim",
    "postgresql://u@h/db?%70assword=geheim",
    "postgresql://u@h/db?pass%77ord=geheim&sslmode=require",
    "host=db user=writer PASSWORD = geheim",
    "host=db password='ge heim'",
    "https://h:6333?api_key=geheim",
    "https://h:6333/?api-key=geheim#top",
    "db://x?api_key=geheim",
    "https://store/x?sv=1&sig=geheim",
    "https://store/x?X-Amz-Signature=geheim",
    "--set publish.password=geheim",
    "links.reports=http://u:geheim@h/",
    "https://h/?sslmode=a&access_token=geheim",
]
HOLD_NOT = [
    "postgresql://writer@db.internal/shop?sslmode=require&require_auth=password",
    "http://qdrant.internal:6333",
    "http://[::1]:4200/api",
    "s3://bucket/prefix",
    "train.max_tokens=128",
    "password_env=SHOP_PASSWORD",
    "tokens=16 passes=2 author=Ada",
    "host=db user=writer",
    "http://u:***@h/?api_key=***",
]


@pytest.mark.parametrize("text", HOLD)
def test_a_password_is_known_wherever_it_stands_and_masked(text: str) -> None:
    assert holds_password(text)
    hidden = masked(text)
    assert "heim" not in hidden
    assert "***" in hidden
    assert not holds_password(hidden)


@pytest.mark.parametrize("text", HOLD_NOT)
def test_what_holds_none_stays_as_it_is(text: str) -> None:
    assert masked(text) == text
