"""Runtimes in the configuration of containerd; that of Docker is in `test_machine.py`."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.errors import WireError
from gpufleet.probe.containers import containerd_runtimes

VERSION_2 = b"""version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "nvidia"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
[plugins."io.containerd.grpc.v1.cri".registry.configs."r.example".auth]
  password = "secret"
"""
VERSION_3 = b"""version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'runc'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
"""


@pytest.mark.parametrize(
    ("content", "runtimes"),
    [(VERSION_2, "nvidia*, runc"), (VERSION_3, "runc*"), (b"version = 2\n", "none"), (b"", "none")],
)
def test_runtimes_are_named_and_the_default_is_marked(content: bytes, runtimes: str) -> None:
    assert containerd_runtimes(content, "config.toml") == runtimes


@pytest.mark.parametrize("content", [b"\xff", b"a = [", b"plugins = 1\n", b"[" * 100_000])
def test_other_content_is_an_error(content: bytes) -> None:
    with pytest.raises(WireError):
        containerd_runtimes(content, "config.toml")


@given(st.text(max_size=200))
def test_any_text_has_runtimes_or_an_error(text: str) -> None:
    with contextlib.suppress(WireError):
        assert containerd_runtimes(text.encode("utf-8", "replace"), "config.toml")
