"""Fabrics with real hosts: OpenSSH servers in namespaces, by a cable and by a tunnel."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.namespaces import must
from tests.support.paths import EXAMPLES, REPOSITORY
from tests.support.slow_machines import finished_run
from tests.support.ssh_lab import PYTHON, SshLab, ssh_lab

pytestmark = [pytest.mark.slow, pytest.mark.sshd]

SERVERS = """
  s1:
    host:
      ssh: cabled
      ssh_config: {folder}/config
      python: {python}
      plug: {{device: cable0}}
      interface: nic0
  s2:
    host:
      ssh: tunnelled
      ssh_config: {folder}/config
      python: {python}
      plug: {{vxlan: {{remote: {tunnelled}, id: 12}}}}
"""


@dataclass
class PluggedLab:
    """Hosts `cabled` and `tunnelled`, and the machine `me` that has a fabric."""

    ssh: SshLab
    run_root: str

    def argv(self, *words: str) -> list[str]:
        command = [sys.executable, "-c", "from moefabric.ui.cli.main import main; main()"]
        return self.ssh.where.inside("me", *command, *words)

    @property
    def environment(self) -> dict[str, str]:
        variables = {"PYTHONPATH": str(REPOSITORY), "MOEFABRIC_RUN_DIR": self.run_root}
        return {**os.environ, **variables}

    def moefabric(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.argv(*words),
            env=self.environment, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip

    def interfaces(self, host: str) -> dict[str, str]:
        """Return the MACs of a namespace's interfaces."""
        shown = json.loads(must("ip", "-n", self.ssh.where.netns(host), "-j", "link", "show"))
        return {link["ifname"]: link["address"] for link in shown}

    def pings(self, host: str, address: str) -> bool:
        ping = self.ssh.where.inside(host, "ping", "-c", "1", "-W", "5", address)
        return subprocess.run(ping, capture_output=True, check=False).returncode == 0

    def servers(self, python: str = PYTHON) -> str:
        tunnelled = self.ssh.address("tunnelled")
        return SERVERS.format(folder=self.ssh.folder, python=python, tunnelled=tunnelled)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluggedLab]:
    with ExitStack() as cleanup:
        folder = tmp_path_factory.mktemp("ssh")
        lab = cleanup.enter_context(ssh_lab(folder, ("cabled", "tunnelled")))
        where = lab.where
        tunnel = ("ip", "link", "add", "tunnel", "type", "vxlan", "id", "1", "dstport", "4789")
        made = subprocess.run(where.inside("me", *tunnel), capture_output=True, check=False)
        if made.returncode:
            pytest.skip("this kernel has no VXLAN")
        must(*where.inside("me", "ip", "link", "delete", "tunnel"))
        ends = ("cable0", "netns", where.netns("me")), ("nic0", "netns", where.netns("cabled"))
        must("ip", "link", "add", "name", *ends[0], "type", "veth", "peer", "name", *ends[1])
        run_root = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="mf", dir="/tmp"))
        yield PluggedLab(lab, run_root)


def assert_nothing_left(lab: PluggedLab, before: dict[str, dict[str, str]]) -> None:
    deadline = time.monotonic() + 10
    while lab.ssh.agents("cabled") or lab.ssh.agents("tunnelled"):
        assert time.monotonic() < deadline, "an agent outlives its fabric"
        time.sleep(0.05)  # the end of another session's process is announced by nothing
    assert {host: lab.interfaces(host) for host in before} == before
    addresses = must("ip", "-n", lab.ssh.where.netns("cabled"), "-4", "address", "show")
    assert " 10.0." not in addresses


@pytest.fixture
def before(lab: PluggedLab) -> dict[str, dict[str, str]]:
    return {host: lab.interfaces(host) for host in ("cabled", "tunnelled", "me")}


FABRIC = """
fabric: mixed
gpus_per_server: 2
nic_rate: 1Gb/s
mtu: 1400
regions: [{{servers: 3}}]
nics: {{optical: 1, electrical: 1}}
scale: {{bytes: 20}}
servers:
{servers}
"""


def test_real_hosts_are_servers_until_down(
    lab: PluggedLab, before: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    fabric = tmp_path / "mixed.yaml"
    fabric.write_text(FABRIC.format(servers=lab.servers()))
    up = lab.moefabric("up", str(fabric))
    assert up.returncode == 0, up.stderr
    try:
        assert lab.pings("cabled", "10.0.0.1")
        assert lab.pings("tunnelled", "10.0.1.1"), "from one real host to the other"
        assert lab.pings("cabled", "198.18.0.64"), "management network"
        lit = lab.moefabric("light", "s1~s2")
        assert lit.returncode == 0, lit.stderr
        assert lab.pings("tunnelled", "10.0.1.2")
        servers = json.loads(lab.moefabric("inspect", "--json").stdout)["servers"]
        assert [server.get("host") for server in servers] == [None, "cabled", "tunnelled"]
        executed = lab.moefabric("exec", "s2", "--", "sh", "-c", "echo $SSH_CONNECTION; exit 7")
        assert executed.returncode == 7, executed.stderr
        assert lab.ssh.address("tunnelled") in executed.stdout
        [daemon] = [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if lab.run_root.encode() in (path / "cmdline").read_bytes()
            and b"fabric.daemon" in (path / "cmdline").read_bytes()
        ]
        os.kill(daemon, signal.SIGKILL)
    finally:
        down = lab.moefabric("down", "mixed")
    assert down.returncode == 0, down.stderr
    assert_nothing_left(lab, before)


PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("moefabric")
rank, world = dist.get_rank(), dist.get_world_size()
sent = torch.arange(world * 1000, dtype=torch.float32) + 1e6 * rank
received = torch.empty_like(sent)
dist.all_to_all_single(received, sent)
parts = [torch.arange(rank * 1000, rank * 1000 + 1000) + 1e6 * other for other in range(world)]
assert torch.equal(received, torch.cat(parts))
dist.barrier()
print(f"rank {rank} is content", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_ranks_on_real_hosts_exchange_tensors_over_circuits(
    lab: PluggedLab, before: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")
    fabric, program = tmp_path / "mixed.yaml", tmp_path / "program.py"
    fabric.write_text(FABRIC.format(servers=lab.servers(sys.executable)))
    program.write_text(PROGRAM)
    up = lab.moefabric("up", str(fabric))
    assert up.returncode == 0, up.stderr
    try:
        ran = lab.moefabric("torchrun", "--policy", "mixnet", str(program))
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert sorted(ran.stdout.splitlines()) == [f"rank {rank} is content" for rank in range(3)]
        assert "1 all-to-alls of 24,000 bytes" in ran.stderr
        failing = lab.moefabric("torchrun", "--no-python", "false")
        assert failing.returncode == 1
    finally:
        down = lab.moefabric("down")
    assert down.returncode == 0, down.stderr
    assert_nothing_left(lab, before)


EXPERIMENT = """
experiment: mixed
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 1, sequence: 4096, micro_batch: 8, iterations: 2}}
gating: {{matrix: {gating}}}
wiring:
  gpus_per_server: 2
  nic_rate: 100Gb/s
  mtu: 1400
  regions: [{{servers: 4}}]
  servers:
{servers}
fabrics:
  - {{name: mixnet, optical: 1, electrical: 1, policy: mixnet}}
scale: {{bytes: 500, dilation: 4}}
"""


def test_experiment_with_circuits_runs_on_a_mix_of_servers(
    lab: PluggedLab, before: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    spec, results = tmp_path / "mixed.yaml", tmp_path / "results.json"
    servers = lab.servers().replace("\n", "\n  ")
    spec.write_text(EXPERIMENT.format(gating=EXAMPLES / "data/gating-8x8.json", servers=servers))
    run = lab.moefabric("run", str(spec), "--json", str(results))
    report = finished_run(results, run.returncode, run.stderr)
    [result] = report["results"]
    assert result["integrity"]["bytes_sent"] == result["integrity"]["bytes_received"] > 0
    assert result["integrity"]["corrupt"] == 0
    assert sum(one["bytes_by_light"] for one in result["collectives"]) > 0
    hosts = [(host["server"], host["host"]) for host in report["manifest"]["hosts"]]
    assert hosts == [("s1", "cabled"), ("s2", "tunnelled")]
    assert_nothing_left(lab, before)


@pytest.mark.nightly
def test_lost_host_leaves_an_invalid_run_with_its_name(
    lab: PluggedLab, before: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    spec, results = tmp_path / "mixed.yaml", tmp_path / "results.json"
    text = EXPERIMENT.replace("iterations: 2", "iterations: 1000")
    servers = lab.servers().replace("\n", "\n  ")
    spec.write_text(text.format(gating=EXAMPLES / "data/gating-8x8.json", servers=servers))
    with (tmp_path / "stderr").open("wb") as errors:
        command = lab.argv("run", str(spec), "--json", str(results))
        run = subprocess.Popen(
            command, env=lab.environment, stdout=subprocess.DEVNULL, stderr=errors
        )
    try:
        deadline, first = time.monotonic() + 40, lab.ssh.received_bytes("cabled", "nic0")
        while lab.ssh.received_bytes("cabled", "nic0") < first + 3e6:  # the bundle is smaller
            assert time.monotonic() < deadline, (tmp_path / "stderr").read_text()
            assert run.poll() is None, (tmp_path / "stderr").read_text()
            time.sleep(0.05)  # traffic of another process is announced by nothing
        lab.ssh.plug("cabled", "down")
        assert run.wait(40) == 3, (tmp_path / "stderr").read_text()
    finally:
        lab.ssh.plug("cabled", "up")
        run.terminate()
        run.wait(20)
    report = json.loads(results.read_text())
    assert report["verdict"] == "invalid"
    [reason, *_] = report["results"][0]["fidelity"]["reasons"]
    assert reason.startswith("agent s1: host cabled (")
    assert "its SSH connection is lost" in reason
    assert_nothing_left(lab, before)


@pytest.mark.nightly
def test_fault_of_a_host_is_reported_by_up(
    lab: PluggedLab, before: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    fabric = tmp_path / "mixed.yaml"
    text = FABRIC.format(servers=lab.servers())
    fabric.write_text(text.replace("interface: nic0", "interface: nic7"))
    up = lab.moefabric("up", str(fabric))
    assert up.returncode == 1
    assert "it has no interface nic7; it has " in up.stderr
    fabric.write_text(text.replace("mtu: 1400", "mtu: 1500"))
    up = lab.moefabric("up", str(fabric))
    assert up.returncode == 1
    assert "s2: vxlan " in up.stderr
    assert "give `mtu: 1450`" in up.stderr
    assert_nothing_left(lab, before)
