"""C compiler for the fake driver: the machine's own, or the one of the ziglang package.

python tests/support/compiler.py     # run by `make check` and `make test`; does nothing if the machine has a compiler
"""

import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / ".tools" / "bin"
ZIG = "ziglang>=0.13,<1"


def find() -> list[str] | None:
    """Return the command of a C compiler, or None."""
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    python = TOOLS / "python"
    if python.exists():
        there = subprocess.run([python, "-c", "import ziglang"], capture_output=True, check=False)
        if there.returncode == 0:
            return [str(python), "-m", "ziglang", "cc"]
    return None


def compile_library(sources: list[Path], target: Path, *, soname: str, defines: dict[str, int]) -> None:
    """Compile C files to one shared library.

    Raises:
        AssertionError: if there is no compiler.
        CalledProcessError: if compilation fails; the messages are on stderr.
    """
    compiler = find()
    assert compiler is not None, "no C compiler: run `python tests/support/compiler.py`"
    options = [
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-fvisibility=hidden",
        f"-Wl,-soname,{soname}",
    ]
    options += [f"-D{name}={value}" for name, value in defines.items()]
    subprocess.run([*compiler, *options, "-o", target, *sources], check=True)


def main() -> int:
    """Install the compiler from the package index if the machine has none."""
    if find() is not None:
        return 0
    print("this machine has no C compiler: fetching one from the package index ...", flush=True)
    return subprocess.run(
        [TOOLS / "uv", "pip", "install", "--quiet", "--python", TOOLS / "python", ZIG], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
