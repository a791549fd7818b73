"""An `sshd` on each host, and an `ssh` that reaches them; neither knows of this machine."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from tests.waiting import wait_until

SERVER = """
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
"""
CLIENT = """
Host *
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  LogLevel ERROR
  ServerAliveInterval 1
  ServerAliveCountMax 3
"""
PRIVILEGE_SEPARATION = Path("/run/sshd")


def locate(tool):
    """Path of a program of OpenSSH; `sshd` lies where a normal user's PATH does not lead."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/usr/local/sbin")


def what_is_missing():
    """Why there can be no `sshd`, as one sentence; empty where there can."""
    missing = [tool for tool in ("sshd", "ssh", "ssh-keygen") if locate(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found (Debian's openssh-server)"
    shell = pwd.getpwuid(os.geteuid()).pw_shell
    return "this account has no shell" if Path(shell).name in ("nologin", "false") else ""


def set_up(folder, hosts):
    """Start a server on each host; returns a folder for the PATH, whose `ssh` reaches them."""
    folder.mkdir()
    for name in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    for host in hosts:
        config = folder / f"sshd-{host.address}"
        config.write_text(SERVER.format(address=host.address, folder=folder))
        host.start(locate("sshd"), "-D", "-e", "-f", config, log=folder / "sshd.log")
    (folder / "config").write_text(CLIENT.format(folder=folder))
    tools = folder / "bin"
    tools.mkdir()
    wrapper = tools / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)
    log = folder / "sshd.log"
    wait_until(
        lambda: log.exists() and log.read_text().count("listening") >= len(hosts),
        "sshd",
        describe=log.read_text,
    )
    return tools
