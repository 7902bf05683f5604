"""OpenMPI's hostfile and settings, and which servers a job takes."""

import pytest

from moefabric.core.errors import SpecError
from moefabric.execution.programs.mpi import hostfile, mpi_settings
from moefabric.execution.programs.rank_jobs import chosen_servers


def test_hostfile_names_servers_with_their_slots() -> None:
    assert hostfile(("s0", "s1"), 2) == "s0 slots=2\ns1 slots=2\n"


def test_ranks_talk_over_the_fabric_and_daemons_over_the_management_network() -> None:
    settings = mpi_settings("198.18.3.0/24", "/tmp/agent", "/tmp/folder")
    assert settings["OMPI_MCA_btl_tcp_if_include"] == "eth0"
    for name in ("OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"):
        assert settings[name] == "198.18.3.0/24"
    for name in ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"):
        assert settings[name] == "/tmp/agent"


def test_chosen_servers_are_all_or_those_named() -> None:
    everything = ("s0", "s1", "s2")
    assert chosen_servers(everything, None) == everything
    assert chosen_servers(everything, ["s2", "s0"]) == ("s2", "s0")
    with pytest.raises(SpecError, match="s7: no such server; there are s0, s1, s2"):
        chosen_servers(everything, ["s7"])
    with pytest.raises(SpecError, match="each server may occur once"):
        chosen_servers(everything, ["s0", "s0"])
