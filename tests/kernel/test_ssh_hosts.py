"""Agents on hosts reached over SSH: OpenSSH servers with their own keys in network namespaces."""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from moefabric.agents.fleet.channel import request_all
from moefabric.agents.fleet.fleet import DataPath, Fleet
from moefabric.agents.remote.ssh import SshHost
from moefabric.core.errors import AgentError
from tests.support.agents_lab import paced_flow
from tests.support.namespaces import Island, island, must
from tests.support.paths import EXAMPLES, REPOSITORY

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or ""
PORT = 2222

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.sshd,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make network namespaces"),
    pytest.mark.skipif(not SSHD, reason="needs an OpenSSH server: apt install openssh-server"),
]


@contextmanager
def within(netns: str) -> Iterator[None]:
    """Move this thread into a network namespace; sockets opened meanwhile stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (
        Path("/proc/thread-self/ns/net").open() as home,
        Path(f"/run/netns/{netns}").open() as target,
    ):
        assert libc.setns(target.fileno(), 0) == 0
        try:
            yield
        finally:
            assert libc.setns(home.fileno(), 0) == 0


@dataclass
class Lab:
    """Two hosts, and a third namespace in which the experiment runs."""

    where: Island
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def known(self) -> Path:
        return self.folder / "known_hosts"

    def dial(self, hostname: str, port: int, deadline_s: float) -> socket.socket:
        with within(self.where.netns("me")):
            return socket.create_connection((hostname, port), deadline_s)

    def host(self, name: str, python: str = "/usr/bin/python3") -> SshHost:
        return SshHost(name, self.config, python, self.dial)

    def agents(self, name: str) -> list[int]:
        """Return the agents on a host that communicate over stdin and stdout."""
        pids = []
        for pid in must("ip", "netns", "pids", self.where.netns(name)).split():
            with suppress(FileNotFoundError, ProcessLookupError):
                if b"--stdio" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    pids.append(int(pid))
        return pids


def key(path: Path) -> str:
    """Create a key pair at a path and return the public key."""
    must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path))
    return Path(f"{path}.pub").read_text().strip()


def serve(lab: Lab, name: str) -> "subprocess.Popen[bytes]":
    """Start an SSH server in a namespace that accepts public keys only."""
    host_key = lab.folder / f"{name}.host"
    config = f"""
Port {PORT}
HostKey {host_key}
AuthorizedKeysFile {lab.folder}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PubkeyAuthentication yes
StrictModes no
UsePAM no
PidFile none
"""
    public = key(host_key)
    with lab.known.open("a") as known:
        known.write(f"[{lab.where.addresses[name]}]:{PORT} {public}\n")
    (lab.folder / f"{name}.sshd").write_text(config)
    return subprocess.Popen(
        lab.where.inside(name, SSHD, "-D", "-e", "-f", str(lab.folder / f"{name}.sshd")),
        stderr=subprocess.DEVNULL,
    )


def wait_for_server(lab: Lab, name: str) -> None:
    """Wait until a host's SSH server accepts connections."""
    deadline = time.monotonic() + 10
    while True:
        try:
            lab.dial(lab.where.addresses[name], PORT, 1).close()
        except (ConnectionRefusedError, TimeoutError):
            assert time.monotonic() < deadline
        else:
            return


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd drops its privileges
    with ExitStack() as cleanup:
        lab = Lab(cleanup.enter_context(island("s0", "s1", "me")), tmp_path_factory.mktemp("ssh"))
        (lab.folder / "authorized_keys").write_text(key(lab.folder / "id") + "\n")
        key(lab.folder / "other")
        config = ""
        for name in ("s0", "s1"):
            server = serve(lab, name)
            cleanup.callback(server.wait, 5)
            cleanup.callback(server.terminate)
            config += f"Host {name}\n  HostName {lab.where.addresses[name]}\n"
        options = (
            f"Port {PORT}\n  User root\n  IdentitiesOnly yes\n  UserKnownHostsFile {lab.known}\n"
        )
        config += f"Host bad-key\n  HostName {lab.where.addresses['s0']}\n"
        config += f"  IdentityFile {lab.folder}/other\n"
        config += f"Host !bad-key *\n  IdentityFile {lab.folder}/id\nHost *\n  {options}"
        lab.config.write_text(config)
        for name in ("s0", "s1"):
            wait_for_server(lab, name)
        yield lab


def test_agents_over_ssh_exchange_verified_bytes_and_end_with_their_session(lab: Lab) -> None:
    with Fleet([lab.host(name).agent(name) for name in ("s0", "s1")]) as fleet:
        fleet.connect(
            [
                DataPath("s0", "s1", "o0", lab.where.addresses["s1"]),
                DataPath("s1", "s0", "o0", lab.where.addresses["s0"]),
            ]
        )
        records = fleet.run(
            1, [paced_flow("s0", "s1", 5_000_000, 200e6), paced_flow("s1", "s0", 3_000_001)]
        )
        assert [record.why for record in records] == ["", ""]
        duration_s = (records[0].last_received_ns - records[0].first_sent_ns) / 1e9
        assert 0.18 <= duration_s < 2
        assert fleet.facts["s0"]["pid"] in lab.agents("s0")
    deadline = time.monotonic() + 10
    while lab.agents("s0") or lab.agents("s1"):
        assert time.monotonic() < deadline, "an agent outlives its session"


def test_clock_offset_error_is_within_half_the_round_trip(lab: Lab) -> None:
    """The hosts share this kernel, so the true offset is 0."""
    with Fleet([lab.host("s0").agent("s0")], clock="somebody else's") as fleet:
        clock = fleet.clocks["s0"]
        assert 0 < clock.round_trip_ns < 1_000_000_000
        assert abs(clock.offset_ns) <= clock.round_trip_ns / 2


@pytest.fixture
def known(lab: Lab) -> Iterator[Path]:
    """Restore the known hosts after the test."""
    text = lab.known.read_text()
    yield lab.known
    lab.known.write_text(text)


def test_unknown_host_key_is_refused_with_a_remedy(lab: Lab, known: Path) -> None:
    known.write_text("")
    with pytest.raises(AgentError) as error:
        lab.host("s0").agent("s0")
    message = str(error.value)
    host = f"host s0 ({lab.where.addresses['s0']} port {PORT})"
    assert message.startswith(f"{host}: its host key is unknown (ssh-ed25519 SHA256:")
    assert f"ssh-keyscan -p {PORT} {lab.where.addresses['s0']}" in message
    assert "\n" not in message


def test_changed_host_key_is_refused(lab: Lab, known: Path) -> None:
    known.write_text(
        f"[{lab.where.addresses['s0']}]:{PORT} {(lab.folder / 'other.pub').read_text()}"
    )
    with pytest.raises(AgentError, match=r"its host key has changed: .* `ssh-keygen -R "):
        lab.host("s0").agent("s0")


@pytest.mark.parametrize(
    ("host", "message"),
    [
        pytest.param(
            lambda lab: lab.host("bad-key"),
            "no key of ours is accepted for user root",
            id="wrong-key",
        ),
        pytest.param(
            lambda lab: lab.host("nobody@s0"),
            "no key of ours is accepted for user nobody",
            id="wrong-user",
        ),
        pytest.param(lambda lab: lab.host("10.99.0.200"), "no connection: ", id="no-such-host"),
    ],
)
def test_failed_login_is_reported_with_its_reason(
    lab: Lab, host: Callable[[Lab], SshHost], message: str
) -> None:
    with pytest.raises(AgentError) as error:
        host(lab).agent("s0", deadline_s=5)
    assert message in str(error.value)


def test_missing_python_is_reported_with_a_remedy(lab: Lab) -> None:
    channel = lab.host("s0", python="python3-that-is-not").agent("s0")
    with pytest.raises(
        AgentError,
        match=r"there is no python3-that-is-not on s0 .*; install it there: apt install python3",
    ):
        request_all({channel: ("hello", {})}, 10)
    channel.close()


def test_jump_host_in_the_ssh_configuration_is_refused(lab: Lab) -> None:
    config = lab.folder / "jump"
    config.write_text("Host s0\n  HostName 10.99.0.1\n  ProxyJump gate\n")
    with pytest.raises(
        AgentError, match="its SSH configuration names a jump host, which is not supported"
    ):
        SshHost("s0", config, dial=lab.dial).agent("s0")


EXPERIMENT = """
experiment: real
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 2, sequence: 4096, micro_batch: 8, iterations: 1, schedule: {schedule}}}
gating: {{matrix: {gating}}}
wiring: {{nic_rate: 100Gb/s, regions: [{{servers: 2}}]}}
hosts:
  - {{ssh: s0, address: {s0}, python: /usr/bin/python3}}
  - {{ssh: {second}, address: {s1}, python: /usr/bin/python3}}
fabrics:
  - {{name: real, optical: 0, electrical: 2, policy: eps, hosts: true}}
scale: {{bytes: 500, dilation: 2}}
"""


def run_on_hosts(
    lab: Lab, second: str, schedule: str = "lockstep"
) -> "subprocess.CompletedProcess[str]":
    home = lab.folder / "home" / ".ssh"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config").write_text(lab.config.read_text())
    spec = lab.folder / "real.yaml"
    gating = EXAMPLES / "data/gating-8x8.json"
    spec.write_text(
        EXPERIMENT.format(gating=gating, second=second, schedule=schedule, **lab.where.addresses)
    )
    command = [sys.executable, "-c", "from moefabric.cli.main import main; main()"]
    return subprocess.run(
        lab.where.inside("me", *command, "run", str(spec), "--json", str(lab.folder / "real.json")),
        env={**os.environ, "HOME": str(home.parent), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("schedule", ["lockstep", "independent"])
def test_run_on_real_hosts_has_results(lab: Lab, schedule: str) -> None:
    completed = run_on_hosts(lab, "s1", schedule)
    assert completed.returncode in (0, 3), completed.stderr
    (result,) = json.loads((lab.folder / "real.json").read_text())["results"]
    assert result["fabric"] == "real"
    assert len(result["collectives"]) == 4
    assert result["integrity"]["bytes_sent"] == result["integrity"]["bytes_received"] > 0
    assert result["integrity"]["corrupt"] == 0


def test_run_reports_a_failed_login_in_one_line(lab: Lab) -> None:
    completed = run_on_hosts(lab, "bad-key")
    assert completed.returncode == 1
    (line,) = [line for line in completed.stderr.splitlines() if line.startswith("moefabric:")]
    assert "bad-key" in line
