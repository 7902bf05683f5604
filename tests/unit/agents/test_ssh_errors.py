"""Errors of OpenSSH's client become one line with the place and the remedy."""

import pytest

from moefabric.agents.remote.ssh_errors import Destination, failure

GPU = Destination("gpu1", "192.0.2.7", 2222, "lab")
PLACE = "host gpu1 (192.0.2.7 port 2222): "
CHANGED = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
The fingerprint for the ED25519 key sent by the remote host is
SHA256:abcdef.
Please contact your system administrator.
Offending ED25519 key in /home/lab/.ssh/known_hosts:3
Host key for [192.0.2.7]:2222 has changed and you have requested strict checking.
Host key verification failed.
"""


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            CHANGED,
            (
                "its host key has changed: SHA256:abcdef is not the known one "
                "(/home/lab/.ssh/known_hosts:3); the connection may be intercepted. If the change "
                "is right, `ssh-keygen -R '[192.0.2.7]:2222'` and log in once with ssh"
            ),
        ),
        (
            (
                "No ED25519 host key is known for gate and you have requested strict checking.\n"
                "Host key verification failed.\nConnection closed by UNKNOWN port 65535\n"
            ),
            (
                "the host key of gate, on the way, is unknown; log in once with `ssh gpu1` and "
                "compare the fingerprint, or `ssh-keyscan -p 22 gate >> ~/.ssh/known_hosts` if "
                "nobody can be in between"
            ),
        ),
        (
            (
                "Identity file /keys/lab not accessible: No such file or directory.\n"
                "Welcome to the lab\nlab@192.0.2.7: Permission denied (publickey).\n"
            ),
            (
                "no key of ours is accepted for user lab; there is no /keys/lab; send one with "
                "`ssh-copy-id`; a key with a passphrase has to be in ssh-agent (`ssh-add`)"
            ),
        ),
        (
            "Timeout, server 192.0.2.7 not responding.\n",
            "its SSH connection is lost; look at its network and whether the host is up",
        ),
        (
            "/home/lab/.ssh/config: line 3: Bad configuration option: prot\n",
            "ssh ended: Bad configuration option: prot; try `ssh gpu1 true`",
        ),
        ("something new\n", "ssh ended: something new; try `ssh gpu1 true`"),
        ("", "ssh ended: no output; try `ssh gpu1 true`"),
    ],
)
def test_failure_of_ssh_is_explained(output: str, message: str) -> None:
    assert failure(GPU, "python3", 255, output) == PLACE + message


def test_output_of_a_remote_program_is_not_taken_for_that_of_ssh() -> None:
    output = "gpu9: Permission denied (publickey).\n"
    ended = "the agent ended with status 1: gpu9: Permission denied (publickey)."
    assert failure(GPU, "python3", 1, output) == PLACE + ended
