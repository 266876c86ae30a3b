"""Runs a command as a container engine would, without one: `python container.py <Spec as JSON>`.

The command is process 1 of its own mount, process, network and IPC namespaces. The file system is read-only except for a
small /tmp and /dev/shm, and the network is the loopback interface. Like Docker's proxy, this process forwards connections
from a port of the host's loopback interface. It passes signals on, and exits as the command does.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TypedDict

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000  # sched.h
_PDEATHSIG, _CAPBSET_DROP = 1, 24  # prctl.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_KEPT = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
"""The capabilities that Docker leaves to root."""

_libc = ctypes.CDLL(None, use_errno=True)


class Spec(TypedDict):
    """What to run: `paths` of the folder `root` are visible in the container, and `mounts` puts others where they are named.

    `scratch` is an empty folder, `tmp` the size of /tmp. `forward` is a port of the host and one of the container; (0, 0) for
    none.
    """

    root: str
    paths: list[str]
    mounts: dict[str, str]
    scratch: str
    tmp: str
    user: int
    environ: dict[str, str]
    command: list[str]
    forward: tuple[int, int]


def main() -> int:
    spec: Spec = json.loads(sys.argv[1])
    host_port, port = spec["forward"]
    listener = socket.create_server(("127.0.0.1", host_port)) if host_port else None
    if is_rootless := os.geteuid() != 0:
        _enter_user_namespace(0)
    _check(_libc.unshare(_NEWNET))
    _raise_loopback()
    if listener is not None and os.fork() == 0:
        _forward(listener, port)
    _check(_libc.unshare(_NEWNS | _NEWIPC | _NEWPID))  # no threads from here on: they could not be in both namespaces
    child = os.fork()
    if child == 0:
        _run(spec, is_rootless=is_rootless)
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, lambda received, _: os.kill(child, received))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(spec: Spec, *, is_rootless: bool) -> None:
    """Become the container's process 1."""
    _check(_libc.prctl(_PDEATHSIG, signal.SIGKILL))
    _build(spec)
    if is_rootless:
        _enter_user_namespace(spec["user"])
    os.chroot(spec["scratch"])
    os.chdir("/tmp")
    if not is_rootless:
        for capability in {*range(64)} - _KEPT:
            _libc.prctl(_CAPBSET_DROP, capability)  # fails for numbers that the kernel does not know
        os.setgroups([])
        os.setgid(spec["user"])
        os.setuid(spec["user"])
    os.execve(spec["command"][0], spec["command"], spec["environ"])


def _build(spec: Spec) -> None:
    """Put the file system together in `scratch`."""
    new = Path(spec["scratch"])
    _mount("--make-rprivate", "/")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(new))
    for path, size, mode in (("/tmp", spec["tmp"], 1777), ("/dev", "64k", 755), ("/dev/shm", "64m", 1777)):
        _within(new, path).mkdir()
        _mount("-t", "tmpfs", "-o", f"size={size},mode={mode}", "tmpfs", str(_within(new, path)))
    for path in spec["paths"]:
        source = Path(spec["root"] + path)
        if source.is_symlink():
            _within(new, path).symlink_to(source.readlink())
        elif source.exists():
            _show(source, _within(new, path))
    for path, given in spec["mounts"].items():
        _show(Path(given), _within(new, path))
    for name in ("null", "zero", "full", "random", "urandom"):
        _show(Path("/dev", name), _within(new, f"/dev/{name}"), is_read_only=False)
    (new / "proc").mkdir()
    _mount("-t", "proc", "proc", str(new / "proc"))
    _show(Path("/sys"), new / "sys")
    _mount("-o", "remount,bind,ro", str(new / "dev"))
    _mount("-o", "remount,bind,ro", str(new))


def _within(new: Path, path: str) -> Path:
    target = new / path.removeprefix("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _show(source: Path, target: Path, *, is_read_only: bool = True) -> None:
    if source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    _mount("--rbind", str(source), str(target))
    if is_read_only:
        # A namespace of a user may not drop the limits of its parent's mounts.
        flags = os.statvfs(source).f_flag
        limits = [name for name, bit in (("nosuid", os.ST_NOSUID), ("nodev", os.ST_NODEV)) if flags & bit]
        _mount("-o", ",".join(["remount", "bind", "ro", *limits]), str(target))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _enter_user_namespace(user: int) -> None:
    """Become `user` in a namespace where that is the only one."""
    outer = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEWUSER))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {outer[0]} 1")
    Path("/proc/self/gid_map").write_text(f"{user} {outer[1]} 1")


def _raise_loopback() -> None:
    with socket.socket() as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _IFF_UP))


def _forward(listener: socket.socket, port: int) -> None:
    """Accept connections on the host, as the listener was made there, and connect to the container's port."""
    _check(_libc.prctl(_PDEATHSIG, signal.SIGKILL))
    while True:
        client, _ = listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            client.close()
            continue
        for one, other in ((client, server), (server, client)):
            threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        for sock in (one, other):  # one side has been reset: so is the other
            sock.close()


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    sys.exit(main())
