"""Agents on real hosts: OpenSSH servers of their own keys, each in a network namespace."""

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

from agents.channel import ask_all
from agents.fleet import Fleet, Way
from agents.ssh import SshHost
from moefabric.errors import AgentError
from tests.agents_lab import Paced
from tests.namespaces import Island, island, must

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
    """This thread, in that namespace; sockets made meanwhile stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as home, Path(f"/run/netns/{netns}").open() as there:
        assert libc.setns(there.fileno(), 0) == 0
        try:
            yield
        finally:
            assert libc.setns(home.fileno(), 0) == 0


@dataclass
class Lab:
    """Two hosts and, in a namespace of its own, the place where the experiment runs."""

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
        """Processes on that host that were told to speak over stdin and stdout."""
        found = []
        for pid in must("ip", "netns", "pids", self.where.netns(name)).split():
            with suppress(FileNotFoundError, ProcessLookupError):
                if b"--stdio" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
        return found


def key(path: Path) -> str:
    """A new key pair at that path; the public half."""
    must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path))
    return Path(f"{path}.pub").read_text().strip()


def serve(lab: Lab, name: str) -> "subprocess.Popen[bytes]":
    """An SSH server in that namespace, which takes keys and nothing else."""
    host_key = lab.folder / f"{name}.host"
    said = f"""
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
    (lab.folder / f"{name}.sshd").write_text(said)
    return subprocess.Popen(
        lab.where.inside(name, SSHD, "-D", "-e", "-f", str(lab.folder / f"{name}.sshd")),
        stderr=subprocess.DEVNULL,
    )


def listening(lab: Lab, name: str) -> None:
    """Wait until that host's SSH server answers."""
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
    with ExitStack() as undo:
        lab = Lab(undo.enter_context(island("s0", "s1", "me")), tmp_path_factory.mktemp("ssh"))
        (lab.folder / "authorized_keys").write_text(key(lab.folder / "id") + "\n")
        key(lab.folder / "other")
        config = ""
        for name in ("s0", "s1"):
            server = serve(lab, name)
            undo.callback(server.wait, 5)
            undo.callback(server.terminate)
            config += f"Host {name}\n  HostName {lab.where.addresses[name]}\n"
        options = f"Port {PORT}\n  User root\n  IdentitiesOnly yes\n  UserKnownHostsFile {lab.known}\n"
        config += f"Host bad-key\n  HostName {lab.where.addresses['s0']}\n  IdentityFile {lab.folder}/other\n"
        config += f"Host !bad-key *\n  IdentityFile {lab.folder}/id\nHost *\n  {options}"
        lab.config.write_text(config)
        for name in ("s0", "s1"):
            listening(lab, name)
        yield lab


def test_agents_started_over_ssh_send_each_other_verified_bytes_and_leave_nothing(lab: Lab) -> None:
    with Fleet([lab.host(name).agent(name) for name in ("s0", "s1")]) as fleet:
        fleet.wire(
            [
                Way("s0", "s1", "o0", lab.where.addresses["s1"]),
                Way("s1", "s0", "o0", lab.where.addresses["s0"]),
            ]
        )
        records = fleet.run(1, [Paced("s0", "s1", 5_000_000, 200e6), Paced("s1", "s0", 3_000_001)])
        assert [record.why for record in records] == ["", ""]
        took = (records[0].last_received_ns - records[0].first_sent_ns) / 1e9
        assert 0.18 <= took < 2
        assert fleet.facts["s0"]["pid"] in lab.agents("s0")
    deadline = time.monotonic() + 10
    while lab.agents("s0") or lab.agents("s1"):
        assert time.monotonic() < deadline, "an agent outlives its session"


def test_another_host_s_clock_is_found_by_its_quickest_answer(lab: Lab) -> None:
    """These hosts share our kernel, so the true offset is nought; the estimate may be off by half its round trip."""
    with Fleet([lab.host("s0").agent("s0")], clock_identity="somebody else's") as fleet:
        clock = fleet.clocks["s0"]
        assert 0 < clock.round_trip_ns < 1_000_000_000
        assert abs(clock.offset_ns) <= clock.round_trip_ns / 2


@pytest.fixture
def known(lab: Lab) -> Iterator[Path]:
    """The known hosts, restored afterwards."""
    text = lab.known.read_text()
    yield lab.known
    lab.known.write_text(text)


def test_an_unknown_host_is_refused_with_the_remedy(lab: Lab, known: Path) -> None:
    known.write_text("")
    with pytest.raises(AgentError) as refused:
        lab.host("s0").agent("s0")
    told = str(refused.value)
    assert told.startswith(
        f"host s0 ({lab.where.addresses['s0']} port {PORT}): its host key is unknown (ssh-ed25519 SHA256:"
    )
    assert f"ssh-keyscan -p {PORT} {lab.where.addresses['s0']}" in told
    assert "\n" not in told


def test_a_changed_host_key_is_refused(lab: Lab, known: Path) -> None:
    known.write_text(f"[{lab.where.addresses['s0']}]:{PORT} {(lab.folder / 'other.pub').read_text()}")
    with pytest.raises(AgentError, match=r"its host key has changed: .* `ssh-keygen -R "):
        lab.host("s0").agent("s0")


@pytest.mark.parametrize(
    ("host", "told"),
    [
        pytest.param(
            lambda lab: lab.host("bad-key"), "no key of ours is accepted for user root", id="wrong-key"
        ),
        pytest.param(
            lambda lab: lab.host("nobody@s0"), "no key of ours is accepted for user nobody", id="wrong-user"
        ),
        pytest.param(lambda lab: lab.host("10.99.0.200"), "no connection: ", id="no-such-host"),
    ],
)
def test_a_host_that_can_t_be_entered_says_why(lab: Lab, host: Callable[[Lab], SshHost], told: str) -> None:
    with pytest.raises(AgentError) as refused:
        host(lab).agent("s0", deadline_s=5)
    assert told in str(refused.value)


def test_a_host_without_python_says_so(lab: Lab) -> None:
    channel = lab.host("s0", python="python3-that-is-not").agent("s0")
    with pytest.raises(
        AgentError, match=r"there is no python3-that-is-not on s0 .*; install it there: apt install python3"
    ):
        ask_all({channel: ("hello", {})}, 10)
    channel.close()


def test_a_jump_host_is_refused_and_not_passed_over(lab: Lab) -> None:
    config = lab.folder / "jump"
    config.write_text("Host s0\n  HostName 10.99.0.1\n  ProxyJump gate\n")
    with pytest.raises(AgentError, match="its SSH configuration names a jump host, which is not supported"):
        SshHost("s0", config, dial=lab.dial).agent("s0")


EXPERIMENT = """
experiment: real
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 2, sequence: 4096, micro_batch: 8, iterations: 1}}
gating: {{matrix: {gating}}}
wiring: {{nic_rate: 100Gb/s, regions: [{{servers: 2}}]}}
hosts:
  - {{ssh: s0, address: {s0}, python: /usr/bin/python3}}
  - {{ssh: {second}, address: {s1}, python: /usr/bin/python3}}
fabrics:
  - {{name: real, optical: 0, electrical: 2, policy: eps, hosts: true}}
scale: {{bytes: 500, dilation: 2}}
"""


def run_on_hosts(lab: Lab, second: str) -> "subprocess.CompletedProcess[str]":
    root = Path(__file__).resolve().parents[2]
    home = lab.folder / "home" / ".ssh"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config").write_text(lab.config.read_text())
    spec = lab.folder / "real.yaml"
    gating = root / "examples/data/gating-8x8.json"
    spec.write_text(EXPERIMENT.format(gating=gating, second=second, **lab.where.addresses))
    command = [sys.executable, "-c", "from moefabric.cli import main; main()"]
    return subprocess.run(
        lab.where.inside("me", *command, "run", str(spec), "--json", str(lab.folder / "real.json")),
        env={**os.environ, "HOME": str(home.parent), "PYTHONPATH": str(root)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_run_includes_real_hosts(lab: Lab) -> None:
    done = run_on_hosts(lab, "s1")
    assert done.returncode in (0, 3), done.stderr
    (result,) = json.loads((lab.folder / "real.json").read_text())["results"]
    assert result["fabric"] == "real"
    assert len(result["collectives"]) == 4
    assert result["integrity"]["bytes_sent"] == result["integrity"]["bytes_received"] > 0
    assert result["integrity"]["corrupt"] == 0


def test_a_run_on_a_host_that_can_t_be_entered_says_so_in_one_line(lab: Lab) -> None:
    done = run_on_hosts(lab, "bad-key")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("moefabric:")]
    assert "bad-key" in line
