"""VSOCK sockets in the network namespaces of KubeVirt's launcher pods.

From Linux 7.0 a network namespace can confine VSOCK (`/proc/sys/net/vsock/ns_mode` is `local`): the guest is then
reachable only from the launcher pod's namespace, with the CID 3. Without the file, every namespace is global. The mode
is read in the namespace itself, because a node can have pods of both modes.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from gpufleet.channels.stream.dialers import vsock_socket
from gpufleet.model.errors import ChannelError, ChannelProblem

NS_MODE = Path("/proc/sys/net/vsock/ns_mode")
LOCAL = "local"

LAUNCHER_SOCKET = "volumes/kubernetes.io~empty-dir/sockets/launcher-sock"
"""Socket of virt-launcher below the kubelet's folder of its pod."""

OPEN_SECONDS = 5.0
MAX_CGROUP_CHARACTERS = 65_536
_CLONE_NEWNET = 0x4000_0000
_REMEDY = "give the agent what docs/guests.md names for vsock = 'node', or set [kubevirt] vsock = 'api'"


class NamespaceSocket(msgspec.Struct, frozen=True):
    """An unconnected socket of a network namespace, and whether the namespace confines VSOCK."""

    socket: socket.socket
    is_local: bool


class LauncherNamespaces:
    """Opens VSOCK sockets in the network namespaces of launcher pods.

    Args:
        pods: the kubelet's folder of pods.
        ns_mode: file with the mode of the present network namespace.
        owns: returns whether a process, by its open folder in /proc, is in the cgroup of a pod.
        enter: moves the calling thread to the network namespace of an open file.
        make_socket: returns a new socket of the present namespace.
    """

    def __init__(
        self,
        pods: Path,
        *,
        ns_mode: Path = NS_MODE,
        owns: Callable[[int, str], bool] | None = None,
        enter: Callable[[int], None] | None = None,
        make_socket: Callable[[], socket.socket] = vsock_socket,
    ) -> None:
        self._pods, self._ns_mode, self._make_socket = pods, ns_mode, make_socket
        self._owns, self._enter = owns or _is_in_cgroup, enter or _set_network_namespace

    async def open(self, pods: tuple[str, ...]) -> NamespaceSocket:
        """Return a socket of the network namespace of a virtual machine's launcher pod.

        On a kernel without the mode it is a socket of this process's namespace, and no permission is needed.

        Args:
            pods: UIDs of the launcher pods on this node.

        Raises:
            ChannelError: if there is not exactly one launcher pod, or its namespace cannot be entered.
        """
        if not self._ns_mode.exists():
            return NamespaceSocket(self._make_socket(), is_local=False)
        if len(pods) != 1:
            message = f"the virtual machine has {len(pods)} launcher pods on this node, not 1"
            raise ChannelError(message, ChannelProblem.NO_SUCH_VM)
        return await _in_own_thread(lambda: self._open_in(pods[0]))

    def _open_in(self, pod: str) -> NamespaceSocket:
        """Enter the namespace of a pod for the rest of this thread."""
        pid = self._launcher(pod)
        with contextlib.ExitStack() as stack:
            try:
                # An open folder of /proc never becomes that of a later process with the same id.
                process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, process)
                if not self._owns(process, pod):
                    message = f"process {pid} is not of launcher pod {pod}: {_REMEDY}"
                    raise ChannelError(message, ChannelProblem.NOT_PERMITTED)
                namespace = os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
                stack.callback(os.close, namespace)
                self._enter(namespace)
                is_local = self._ns_mode.read_text(encoding="ascii").strip() == LOCAL
            except OSError as error:
                raise _not_entered(pod, error) from None
        return NamespaceSocket(self._make_socket(), is_local=is_local)

    def _launcher(self, pod: str) -> int:
        """Return the process id of virt-launcher, by the credentials of its socket. The pod can replace the socket."""
        path = self._pods / pod / LAUNCHER_SOCKET
        with contextlib.ExitStack() as stack:
            try:
                # The path is longer than the address of a Unix socket may be.
                folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, folder)
                peer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                peer.settimeout(OPEN_SECONDS)
                peer.connect(f"/proc/self/fd/{folder}/{path.name}")
                found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            except OSError as error:
                raise _not_entered(pod, error) from None
        pid: int = struct.unpack("3i", found)[0]
        if pid <= 0:  # of a process that is not in this process's PID namespace
            message = f"the process of launcher pod {pod} is not visible: {_REMEDY}"
            raise ChannelError(message, ChannelProblem.NOT_PERMITTED)
        return pid


async def _in_own_thread(call: Callable[[], NamespaceSocket]) -> NamespaceSocket:
    """Run a call in a thread that ends with it: the thread's network namespace is never used again."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="launcher namespace")
    opening = asyncio.get_running_loop().run_in_executor(thread, call)
    thread.shutdown(wait=False)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unused)
        raise


def _close_unused(opening: "asyncio.Future[NamespaceSocket]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().socket.close()


def _not_entered(pod: str, error: OSError) -> ChannelError:
    problem = {errno.EPERM: ChannelProblem.NOT_PERMITTED, errno.EACCES: ChannelProblem.NOT_PERMITTED}
    message = f"the network namespace of launcher pod {pod} cannot be entered: {error.strerror or error}: {_REMEDY}"
    return ChannelError(message, problem.get(error.errno or 0, ChannelProblem.NO_SUCH_VM))


def _is_in_cgroup(process: int, pod: str) -> bool:
    """Return whether the cgroup of a process names a pod. Both cgroup drivers of the kubelet write its UID."""
    with os.fdopen(os.open("cgroup", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), errors="replace") as file:
        content = file.read(MAX_CGROUP_CHARACTERS)
    return pod in content or pod.replace("-", "_") in content


def _set_network_namespace(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
