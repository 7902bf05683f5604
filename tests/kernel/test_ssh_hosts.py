"""Agents on hosts reached over SSH: OpenSSH servers with their own keys in network namespaces."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moefabric.agents.fleet.channel import wait
from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.remote.ssh import SshHost, agents_on
from moefabric.core.errors import AgentError
from moefabric.core.server_host import SshClient
from moefabric.results.verdict.reasons import UNCOUNTED
from tests.support.agents_lab import paced_flow
from tests.support.namespaces import must
from tests.support.paths import EXAMPLES, REPOSITORY
from tests.support.slow_machines import finished_run
from tests.support.ssh_lab import PORT, USER, SshLab, ssh_lab

pytestmark = [pytest.mark.slow, pytest.mark.sshd]

both_clients = pytest.mark.parametrize("client", ["openssh", "paramiko"])
openssh_or_nightly = pytest.mark.parametrize(
    "client", ["openssh", pytest.param("paramiko", marks=pytest.mark.nightly)]
)
AHEAD_S = 5000
"""The clock of s1 is ahead by this."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshLab]:
    with ssh_lab(tmp_path_factory.mktemp("ssh"), ("s0", "s1", "gate"), {"s1": AHEAD_S}) as lab:
        yield lab


def await_end_of_agents(lab: SshLab, *names: str, within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while any(lab.agents(name) for name in names):
        assert time.monotonic() < deadline, "an agent outlives its session"
        time.sleep(0.02)  # the end of another session's process is announced by nothing


@both_clients
def test_agents_over_ssh_exchange_verified_bytes_and_end_with_their_session(
    lab: SshLab, client: SshClient
) -> None:
    hosts = {name: lab.host(name, client=client) for name in ("s0", "s1")}
    with Fleet(agents_on(hosts)) as fleet:
        fleet.connect(
            [
                DataPath("s0", "s1", "o0", lab.address("s1")),
                DataPath("s1", "s0", "o0", lab.address("s0")),
            ]
        )
        records = fleet.run(
            1, [paced_flow("s0", "s1", 5_000_000, 200e6), paced_flow("s1", "s0", 3_000_001)]
        )
        assert [record.why for record in records] == ["", ""]
        duration_s = (records[0].last_received_ns - records[0].first_sent_ns) / 1e9
        assert 0.18 <= duration_s < 2
        assert fleet.facts["s0"]["pid"] in lab.agents("s0")
    await_end_of_agents(lab, "s0", "s1")


def test_clock_offset_error_is_within_half_the_round_trip(lab: SshLab) -> None:
    with Fleet(agents_on({name: lab.host(name) for name in ("s0", "s1")})) as fleet:
        assert fleet.clocks.offsets["s0"].round_trip_ns == 0, "the clock of s0 is ours"
        for _ in range(3):
            clock = fleet.clocks.offsets["s1"]
            assert 0 < clock.round_trip_ns < 1_000_000_000
            assert abs(clock.offset_ns - AHEAD_S * 10**9) <= clock.uncertainty_ns
            fleet.clocks.measure_again(fleet.channels.values())


def user_and_ssh_client(pid: int) -> tuple[int, str]:
    """Return the user id of a process, and the address that its SSH session came from."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    (origin,) = (entry for entry in environment if entry.startswith("SSH_CLIENT="))
    return Path(f"/proc/{pid}").stat().st_uid, origin.removeprefix("SSH_CLIENT=").split()[0]


@both_clients
def test_jump_hosts_keys_ports_and_users_may_be_given(
    lab: SshLab, tmp_path: Path, client: SshClient
) -> None:
    """The agent of s0 runs without privileges, behind two hosts, by a key and a port of ours."""
    config = tmp_path / "config"
    config.write_text(f"Host *\n  User root\n  UserKnownHostsFile {lab.known}\n")
    host = SshHost(
        lab.address("s0"),
        PORT,
        USER,
        str(lab.folder / "id"),
        (f"root@{lab.address('gate')}:{PORT}", f"{lab.address('s1')}:{PORT}"),
        str(config),
        "/usr/bin/python3",
        through=tuple(lab.where.inside("me")),
        client=client,
    )
    with Fleet(agents_on({"s0": host})) as fleet:
        pid = fleet.facts["s0"]["pid"]
        assert user_and_ssh_client(pid) == (54321, lab.address("s1"))
    await_end_of_agents(lab, "s0")


@both_clients
def test_jump_host_of_the_ssh_configuration_is_used(
    lab: SshLab, tmp_path: Path, client: SshClient
) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host s0\n  ProxyJump gate\n{lab.config.read_text()}")
    with Fleet(agents_on({"s0": lab.host("s0", ssh_config=str(config), client=client)})) as fleet:
        assert user_and_ssh_client(fleet.facts["s0"]["pid"]) == (0, lab.address("gate"))


@both_clients
def test_keys_of_ssh_agent_are_used(
    lab: SshLab, monkeypatch: pytest.MonkeyPatch, client: SshClient
) -> None:
    path = lab.folder / "agent.sock"
    keeper = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not path.exists():
            assert time.monotonic() < deadline
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        must("ssh-add", "-q", str(lab.folder / "id"))
        for channel in agents_on({"s0": lab.host("no-key", client=client)}):
            channel.close()
    finally:
        keeper.terminate()
        keeper.wait(30)


@pytest.fixture
def known(lab: SshLab) -> Iterator[Path]:
    """Restore the known hosts after the test."""
    text = lab.known.read_text()
    yield lab.known
    lab.known.write_text(text)


@both_clients
def test_unknown_host_key_is_refused_with_a_remedy(
    lab: SshLab, known: Path, client: SshClient
) -> None:
    known.write_text("")
    with pytest.raises(AgentError) as error:
        agents_on({"s0": lab.host("s0", client=client)})
    message = str(error.value)
    host = f"host s0 ({lab.address('s0')} port {PORT})"
    assert message.startswith(f"{host}: its host key is unknown")
    assert f"ssh-keyscan -p {PORT} {lab.address('s0')}" in message
    assert "\n" not in message


@both_clients
def test_changed_host_key_is_refused(lab: SshLab, known: Path, client: SshClient) -> None:
    known.write_text(f"[{lab.address('s0')}]:{PORT} {(lab.folder / 'other.pub').read_text()}")
    with pytest.raises(AgentError, match=r"its host key has changed: SHA256:.* `ssh-keygen -R '\["):
        agents_on({"s0": lab.host("s0", client=client)})


@both_clients
def test_revoked_host_key_is_refused(lab: SshLab, known: Path, client: SshClient) -> None:
    line = next(one for one in lab.known.read_text().splitlines() if lab.address("s0") in one)
    known.write_text(f"{line}\n@revoked * {line.split(maxsplit=1)[1]}\n")
    with pytest.raises(AgentError, match="revoked"):
        agents_on({"s0": lab.host("s0", client=client)})


@both_clients
@pytest.mark.parametrize(
    ("host", "message"),
    [
        pytest.param(
            lambda lab: lab.host("bad-key"),
            "no key of ours is accepted for user root; send one with `ssh-copy-id`",
            id="wrong-key",
        ),
        pytest.param(
            lambda lab: lab.host("nobody@s0"),
            "no key of ours is accepted for user nobody",
            id="wrong-user",
        ),
        pytest.param(
            lambda lab: lab.host("s0", jump=(f"root@{lab.address('gate')}:{PORT + 1}",)),
            f"port {PORT + 1}: Connection refused; is its SSH server up?",
            id="jump-host-without-server",
        ),
        pytest.param(
            lambda lab: lab.host("s0", jump=(f"nobody@{lab.address('gate')}:{PORT}",)),
            "no key of ours is accepted for user nobody at 10.99.0.3, on the way",
            id="jump-host-refuses",
        ),
        pytest.param(
            lambda lab: lab.host("10.99.0.200", jump=("gate",)),
            "the jump host gets no connection to it: ",
            id="nothing-behind-jump-host",
        ),
    ],
)
def test_failed_login_is_reported_with_its_reason(
    lab: SshLab, host: Callable[[SshLab], SshHost], message: str, client: SshClient
) -> None:
    with pytest.raises(AgentError) as error:
        agents_on({"s0": replace(host(lab), client=client)})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@both_clients
def test_faults_of_all_hosts_are_reported_at_once(lab: SshLab, client: SshClient) -> None:
    hosts = {
        "s0": lab.host("s0"),
        "s1": lab.host("bad-key"),
        "s2": lab.host("s0", python="python3-that-is-not"),
        "s3": lab.host("no-such-host.invalid"),
    }
    with pytest.raises(AgentError) as error:
        agents_on({name: replace(host, client=client) for name, host in hosts.items()})
    key, python, name = str(error.value).splitlines()
    assert key.startswith("host bad-key (")
    assert "there is no python3-that-is-not" in python
    assert python.endswith("install it there: apt install python3")
    assert "host no-such-host.invalid (" in name
    await_end_of_agents(lab, "s0")


@openssh_or_nightly
def test_cut_cable_ends_the_agent_and_the_session(lab: SshLab, client: SshClient) -> None:
    """A cut cable ends no connection; signs of life keep the agent of s1, whose cable is whole."""
    hosts = {name: lab.host(name, silence_s=3, client=client) for name in ("s0", "s1")}
    channels = agents_on(hosts)
    try:
        lab.plug("s0", "down")
        await_end_of_agents(lab, "s0", within_s=15)
        assert wait(channels[:1], lambda _: False, 15) == []
        assert "its SSH connection is lost" in channels[0].gone
        assert lab.agents("s1")
    finally:
        lab.plug("s0", "up")
        for channel in channels:
            channel.close()


def test_stopped_ssh_server_ends_the_agent_and_the_session(lab: SshLab) -> None:
    """A stopped server keeps its connections and answers none of them."""
    (channel,) = agents_on({"s0": lab.host("s0", silence_s=3, client="paramiko")})
    stopped = lab.servers_processes("s0")
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        await_end_of_agents(lab, "s0", within_s=15)
        assert wait([channel], lambda _: False, 15) == []
        assert "its SSH connection is lost" in channel.gone
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        channel.close()


@openssh_or_nightly
def test_command_there_has_its_output_and_status_here(lab: SshLab, client: SshClient) -> None:
    login = lab.host("s1", client=client).to_json()
    module = [sys.executable, "-m", "moefabric.agents.remote.command", "--login", login, "--"]
    completed = subprocess.run(
        lab.where.inside("me", *module, "sh", "-c", "echo $SSH_CLIENT; echo oops >&2; exit 7"),
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert (completed.returncode, completed.stderr) == (7, "oops\n")
    assert completed.stdout.split()[0] == lab.address("me")


EXPERIMENT = """
experiment: real
model: {{name: mixtral-8x7b, layers: 1}}
training:
  {{ep: 8, tp: 2, sequence: 4096, micro_batch: 8, iterations: {iterations}, schedule: {schedule}}}
gating: {{matrix: {gating}}}
wiring: {{nic_rate: 100Gb/s, regions: [{{servers: 2}}]}}
hosts: hosts.yaml
fabrics:
  - {{name: real, optical: 0, electrical: 2, policy: eps, hosts: true}}
scale: {{bytes: 500, dilation: 2}}
"""
TRAINS = """
experiment: learns-there
model: {{name: mixtral-8x7b, layers: 1, experts: 4}}
training: {{ep: 4, tp: 4, sequence: 4096, micro_batch: 4, iterations: 2}}
train:
  program: {program}
  hidden: 64
  sequence: 64
  batch: 8
  arguments: [--backend=moefabric, "--steps={{iterations}}", --layers=1, --experts=4, --hidden=64,
              --sequence=64, --batch=8]
wiring: {{nic_rate: 100Gb/s, regions: [{{servers: 2}}]}}
hosts: hosts.yaml
fabrics: [{{name: real, optical: 0, electrical: 2, policy: eps, hosts: true}}]
scale: {{dilation: 2}}
"""
HOSTS = """
defaults: {{python: {python}, ssh_config: config}}
hosts:
  - {{ssh: s0}}
  - {{ssh: {second}, address: {s1}}}
"""


def start_on_hosts(
    lab: SshLab, second: str, schedule: str = "lockstep", iterations: int = 1
) -> "subprocess.Popen[bytes]":
    """Start a run on s0 and another host; its output is in the lab's folder."""
    gating = EXAMPLES / "data/gating-8x8.json"
    text = EXPERIMENT.format(gating=gating, schedule=schedule, iterations=iterations)
    return start_command(lab, "run", text, second)


def start_command(
    lab: SshLab, name: str, text: str, second: str, python: str = "/usr/bin/python3"
) -> "subprocess.Popen[bytes]":
    """Start `run` or `train` of an experiment on s0 and another host."""
    folder = lab.folder
    hosts = HOSTS.format(second=second, python=python, **lab.where.addresses)
    (folder / "hosts.yaml").write_text(hosts)
    spec = folder / "real.yaml"
    spec.write_text(text)
    command = [sys.executable, "-c", "from moefabric.ui.cli.main import main; main()"]
    with (folder / "stderr").open("wb") as errors:
        return subprocess.Popen(
            lab.where.inside("me", *command, name, str(spec), "--json", str(folder / "real.json")),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip


def run_on_hosts(
    lab: SshLab, second: str, schedule: str = "lockstep"
) -> "subprocess.CompletedProcess[str]":
    run = start_on_hosts(lab, second, schedule)
    status = run.wait(60)
    return subprocess.CompletedProcess(run.args, status, "", (lab.folder / "stderr").read_text())


@pytest.mark.parametrize(
    "schedule", ["lockstep", pytest.param("independent", marks=pytest.mark.nightly)]
)
def test_run_on_real_hosts_has_results(lab: SshLab, schedule: str) -> None:
    completed = run_on_hosts(lab, "s1", schedule)
    file, status = lab.folder / "real.json", completed.returncode
    results = finished_run(file, status, completed.stderr, UNCOUNTED.text)
    (result,) = results["results"]
    assert UNCOUNTED.text in result["fidelity"]["reasons"], "an emulated fabric has counters"
    assert result["fabric"] == "real"
    assert len(result["collectives"]) == 4
    assert result["integrity"]["bytes_sent"] == result["integrity"]["bytes_received"] > 0
    assert result["integrity"]["corrupt"] == 0
    same, ahead = results["manifest"]["hosts"]
    assert (same["server"], same["host"], same["address"]) == ("s0", "s0", lab.address("s0"))
    assert same["clock_offset_s"] == same["clock_uncertainty_s"] == 0
    assert abs(ahead["clock_offset_s"] - AHEAD_S) <= ahead["clock_uncertainty_s"] < 1
    assert abs(ahead["clock_drift_s"]) <= 2 * ahead["clock_uncertainty_s"]


@pytest.mark.nightly
def test_model_trains_on_real_hosts(lab: SshLab) -> None:
    pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")
    program = EXAMPLES / "train/train.py"
    run = start_command(lab, "train", TRAINS.format(program=program), "s1", sys.executable)
    status, errors = run.wait(100), (lab.folder / "stderr").read_text()
    file = lab.folder / "real.json"
    (result,) = finished_run(file, status, errors, UNCOUNTED.text)["results"]
    assert len(result["training"]["losses"]) == 2
    assert len(result["collectives"]) == 8
    assert result["integrity"]["bytes_sent"] == result["integrity"]["bytes_received"] > 0


def test_run_reports_a_failed_login_in_one_line(lab: SshLab) -> None:
    completed = run_on_hosts(lab, "bad-key")
    assert completed.returncode == 1
    (line,) = [line for line in completed.stderr.splitlines() if line.startswith("moefabric:")]
    assert "bad-key" in line


def test_cut_cable_is_reported_and_leaves_an_invalid_run(lab: SshLab) -> None:
    """Nothing ends the connections: no FIN, no RST, no ICMP."""
    run = start_on_hosts(lab, "s1", iterations=1000)
    try:
        deadline, first = time.monotonic() + 20, lab.received_bytes("s1")
        while lab.received_bytes("s1") < first + 40e6:  # several iterations
            assert time.monotonic() < deadline, (lab.folder / "stderr").read_text()
            assert run.poll() is None, (lab.folder / "stderr").read_text()
            time.sleep(0.05)  # traffic of another process is announced by nothing
        lab.plug("s1", "down")
        cut_s = time.monotonic()
        assert run.wait(30) == 3, (lab.folder / "stderr").read_text()
        assert time.monotonic() - cut_s < 20
    finally:
        lab.plug("s1", "up")
        run.kill()
        run.wait(30)
    results = json.loads((lab.folder / "real.json").read_text())
    assert results["verdict"] == "invalid"
    reasons = " ".join(results["results"][0]["fidelity"]["reasons"])
    assert f"host s1 ({lab.address('s1')} port {PORT}): its SSH connection is lost" in reasons
    assert results["results"][0]["iterations"]
    assert "its SSH connection is lost" in results["manifest"]["hosts"][1]["lost"]
