"""The agent as one file: complete, reproducible, and of Python alone."""

import ast
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from moefabric.agents.remote import ssh
from moefabric.agents.remote.bundle import PACKAGE, SHARED_MODULES, bundle
from tests.support.agents_lab import bundled

MODULES = sorted(PACKAGE.glob("*.py"))


@pytest.mark.parametrize("module", [*MODULES, *SHARED_MODULES], ids=lambda path: path.name)
def test_engine_compiles_for_python_3_8(module: Path) -> None:
    ast.parse(module.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_no_module_hides_one_of_the_standard_library(module: Path) -> None:
    """At its start Python searches the engine's folder first."""
    assert module.stem not in sys.stdlib_module_names


def test_bundle_is_reproducible() -> None:
    assert bundle() == bundle()
    with zipfile.ZipFile(io.BytesIO(bundle())) as archive:
        attributes = {
            (entry.date_time, entry.compress_type, entry.create_system)
            for entry in archive.infolist()
        }
        assert attributes == {((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED, 3)}
        packages = ["moefabric/__init__.py", "moefabric/agents/__init__.py"]
        names = [f"moefabric/agents/engine/{module.name}" for module in MODULES]
        packages += ["moefabric/runtime/__init__.py"]
        names += [f"moefabric/runtime/{module.name}" for module in SHARED_MODULES]
        assert sorted(archive.namelist()) == sorted(["__main__.py", *packages, *names])


def test_bundle_runs_as_one_file(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", str(bundled(tmp_path)), "--name", "s3", "--stdio"]
    result = subprocess.run(
        argv,
        input=b'{"id": 1, "op": "hello"}\n',
        capture_output=True,
        cwd="/",
        timeout=10,
        check=True,
    )
    assert json.loads(result.stdout)["name"] == "s3"
    assert result.stderr == b""


def test_bundle_logs_json_lines(tmp_path: Path) -> None:
    """On a real server there is no folder for logs: lines go to standard error."""
    argv = [sys.executable, "-I", "-S", str(bundled(tmp_path)), "--name", "s3", "--stdio"]
    armed = b'{"id": 1, "op": "collective", "collective": 7, "deadline_ns": 0, "receives": [%s]}\n'
    transfer = b'{"peer": "s0", "path": "e0", "bytes": 8}'
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stderr is not None
        agent.stdin.write(armed % transfer)
        agent.stdin.flush()
        line = json.loads(agent.stderr.readline())
        agent.stdin.close()
    assert (line["process"], line["level"], line["collective"]) == ("agent-s3", "warning", 7)


@pytest.mark.parametrize(
    ("length", "status", "error"),
    [
        pytest.param(None, 0, "", id="whole"),
        pytest.param(-1, 1, "the agent came cut short\n", id="cut-short"),
    ],
)
def test_bundle_boots_from_its_control_session(length: int | None, status: int, error: str) -> None:
    source = bundle()
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        ssh._BOOT,
        str(len(source)),
        "--name",
        "s3",
        "--stdio",
    ]
    result = subprocess.run(
        argv, input=source[:length], capture_output=True, timeout=10, check=False
    )
    assert (result.returncode, result.stderr.decode()) == (status, error)
