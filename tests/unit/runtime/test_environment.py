"""Variables of the shell that pass to fabrics, and those that options name."""

import pytest

from moefabric.runtime.environment import named_variables, passed_environment


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "LC_ALL", "PYTHONPATH", "OWN"):
        monkeypatch.setenv(name, f"of {name}")


def test_fabrics_get_settings_and_no_secrets() -> None:
    passed = passed_environment()
    assert {"LC_ALL", "PYTHONPATH", "PATH"} <= passed.keys()
    assert not {"RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "OWN"} & passed.keys()


def test_variables_are_given_or_taken_from_the_shell() -> None:
    assert named_variables(("OWN", "A=b=c", "EMPTY=")) == {
        "OWN": "of OWN", "A": "b=c", "EMPTY": "",
    }  # fmt: skip
    for wrong in ("=x", "", "NO_SUCH_VARIABLE"):
        with pytest.raises(ValueError, match="is not NAME=VALUE, nor a variable of this shell"):
            named_variables((wrong,))
