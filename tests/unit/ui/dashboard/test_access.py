import pytest

from moefabric.ui.dashboard.access import has_token, refusal


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:8899"},
        {"host": "localhost:8899"},
        {"host": "[::1]:8899"},
        {"host": "lab.example:80"},
        {"host": "127.0.0.1:8899", "origin": "http://127.0.0.1:8899"},
        {"host": "127.0.0.1:8899", "sec-fetch-site": "same-origin"},
    ],
)
def test_requests_of_the_page_are_answered(headers: dict[str, str]) -> None:
    assert refusal(headers, "lab.example") is None


@pytest.mark.parametrize(
    ("headers", "place"),
    [
        ({}, "Host"),
        ({"host": "rebound.example:8899"}, "Host"),
        ({"host": "127.0.0.1.example"}, "Host"),
        ({"host": "127.0.0.1:8899", "origin": "http://other.example"}, "Origin"),
        ({"host": "127.0.0.1:8899", "origin": "null"}, "Origin"),
        ({"host": "127.0.0.1:8899", "origin": "http://127.0.0.1:80"}, "Origin"),
        ({"host": "127.0.0.1:8899", "sec-fetch-site": "cross-site"}, "Sec-Fetch-Site"),
    ],
)
def test_requests_of_other_sites_are_refused(headers: dict[str, str], place: str) -> None:
    assert (refusal(headers, "127.0.0.1") or "").startswith(place)


@pytest.mark.parametrize(
    ("authorization", "is_right"),
    [
        ("Bearer secret", True),
        ("bearer secret", True),
        ("Bearer secre", False),
        ("Bearer ", False),
        ("Basic secret", False),
        ("Bearer sécret", False),
        ("", False),
    ],
)
def test_only_the_right_token_counts(authorization: str, is_right: bool) -> None:
    assert has_token({"authorization": authorization}, "secret") is is_right
