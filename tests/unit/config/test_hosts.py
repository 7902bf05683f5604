"""Files of real servers, and experiments that name one."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from moefabric.config.hosts import login_of
from moefabric.config.loader import experiment_of, load_experiment, load_fabric
from moefabric.core.errors import SpecError
from moefabric.core.server_host import HostLogin, Plug, Vxlan
from moefabric.ui.cli.main import main
from tests.support.paths import EXAMPLES

EXPERIMENT = f"""
experiment: lab
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 2, sequence: 4096, micro_batch: 8}}
gating: {{matrix: {EXAMPLES}/data/gating-8x8.json}}
wiring: {{nic_rate: 100Gb/s, regions: [{{servers: 2}}]}}
fabrics:
  - {{name: eps, electrical: 2, policy: eps}}
"""
HOSTS = """
defaults: {user: lab, identity_file: keys/lab, jump: [gate], client: paramiko}
hosts:
  - {ssh: gpu1}
  - {ssh: gpu2, user: root, jump: [], identity_file: /keys/gpu2, client: auto}
  - {ssh: spare}
"""


EPS = {"fabrics": [{"name": "lab", "electrical": 4, "policy": "eps"}]}


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_hosts_of_a_file_take_its_defaults_and_paths(tmp_path: Path) -> None:
    write(tmp_path, "lab/hosts.yaml", HOSTS)
    experiment = write(tmp_path, "experiment.yaml", f"{EXPERIMENT}hosts: lab/hosts.yaml\n")
    first, second, _spare = map(login_of, load_experiment(experiment).hosts)
    assert (first.user, first.jump) == ("lab", ("gate",))
    assert (first.client, second.client) == ("paramiko", "auto")
    assert first.identity_file == str(tmp_path / "lab/keys/lab")
    assert (second.user, second.jump, second.identity_file) == ("root", (), "/keys/gpu2")


def test_all_fabrics_run_on_the_hosts_of_an_option(tmp_path: Path) -> None:
    experiment = write(tmp_path, "experiment.yaml", EXPERIMENT)
    hosts = write(tmp_path, "hosts.yaml", HOSTS)
    spec = load_experiment(experiment, hosts=hosts)
    assert [host.ssh for host in spec.hosts] == ["gpu1", "gpu2", "spare"]
    assert spec.fabrics[0].hosts


def test_hosts_given_in_python_have_paths_of_the_home_folder() -> None:
    keys = yaml.safe_load(EXPERIMENT) | {"hosts": [{"ssh": f"g{n}"} for n in range(2)]}
    keys["hosts"][0]["identity_file"] = "~/keys/lab"
    host = experiment_of(keys).hosts[0]
    assert login_of(host).identity_file == str(Path.home() / "keys/lab")


def test_errors_of_a_hosts_file_name_that_file(tmp_path: Path) -> None:
    hosts = write(tmp_path, "hosts.yaml", "defaults: {usr: lab}\nhosts: [{address: 192.0.2.1}]\n")
    experiment = write(tmp_path, "experiment.yaml", EXPERIMENT)
    with pytest.raises(SpecError) as error:
        load_experiment(experiment, hosts=hosts)
    assert str(error.value).splitlines() == [
        f"{hosts}: defaults.usr: is not a key here; did you mean user?",
        f"{hosts}: hosts[0].ssh: is missing",
    ]


FABRIC = """
fabric: lab
nic_rate: 100Gb/s
regions: [{servers: 2}]
nics: {optical: 1, electrical: 1}
scale: {bytes: 1000}
servers:
  s1: {host: {ssh: gpu1, ssh_config: ssh/config, plug: PLUG}}
"""


@pytest.mark.parametrize(
    ("plug", "built"),
    [
        ("{device: enp1s0}", Plug(device="enp1s0")),
        ("{macvlan: enp1s0}", Plug(macvlan="enp1s0")),
        ("{vxlan: {remote: 192.0.2.7, id: 12}}", Plug(vxlan=Vxlan("192.0.2.7", 12))),
    ],
)
def test_real_host_of_a_fabric_is_plugged_in(tmp_path: Path, plug: str, built: Plug) -> None:
    fabric = load_fabric(write(tmp_path, "fabric.yaml", FABRIC.replace("PLUG", plug)))
    [(server, host)] = fabric.real_hosts.items()
    assert (server, host.plug, host.interface) == ("s1", built, "")
    assert host.login == HostLogin("gpu1", ssh_config=str(tmp_path / "ssh/config"))


@pytest.mark.parametrize(
    ("plug", "given"), [("{}", "nothing"), ("{device: a0, macvlan: b0}", "device and macvlan")]
)
def test_plug_is_one_of_three(tmp_path: Path, plug: str, given: str) -> None:
    file = write(tmp_path, "fabric.yaml", FABRIC.replace("PLUG", plug))
    with pytest.raises(SpecError) as error:
        load_fabric(file)
    message = f"one of device, macvlan and vxlan is needed, {given} given"
    assert str(error.value) == f"{file}: servers.s1.host.plug: {message}"


def test_examples_are_valid() -> None:
    folder = EXAMPLES / "real-hosts"
    assert [*load_fabric(folder / "mixed.yaml").real_hosts] == ["s2", "s3"]
    spec = load_experiment(EXAMPLES / "prototype.yaml", (), EPS, folder / "hosts.yaml")
    assert login_of(spec.hosts[1]).identity_file == str(folder / "keys/lab")
    assert spec.fabrics[0].hosts


@pytest.mark.parametrize("command", ["run", "train"])
def test_circuits_are_refused_on_hosts_with_their_own_network(command: str) -> None:
    words = [command, str(EXAMPLES / "prototype.yaml"), "--hosts"]
    result = CliRunner().invoke(main, [*words, str(EXAMPLES / "real-hosts/hosts.yaml")])
    assert result.exit_code == 1
    assert "real servers have a network of their own: their policy is eps" in result.output
