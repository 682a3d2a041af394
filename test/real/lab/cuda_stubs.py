"""Makes PyPI's CUDA build of torch importable on a machine without a GPU and without the nvidia-* packages.

torch's shared objects name libcublas, libcudnn and others, which must be found when torch is loaded; on a CPU none of
their functions is ever called. For each of these libraries this writes one with the same name whose functions end the
process with a message. It needs gcc, nm and readelf, and the Python of the environment in which torch is.

usage: python cuda_stubs.py
"""
import collections
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

LIBRARY = re.compile(
    r"lib(cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvshmem_host|nvJitLink)\.so")

site = pathlib.Path(sysconfig.get_paths()["purelib"])
lib = site / "torch" / "lib"


def output(*args):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, check=True).stdout


def missing_libraries(objects):
    """Names that torch's objects need and that no package provides."""
    have = {p.name for p in lib.iterdir()} | {p.name for p in (site / "nvidia").rglob("*.so*")}
    needed = set()
    for o in objects:
        needed |= set(re.findall(r"NEEDED.*\[(.+?)\]", output("readelf", "-dW", o)))
    return sorted(n for n in needed if LIBRARY.match(n) and n not in have)


def functions(objects, missing):
    """What torch wants of each missing library: library -> {(symbol version or "", name)}."""
    wanted = collections.defaultdict(set)
    for o in objects:
        for line in output("nm", "-D", "--undefined-only", o).splitlines():
            name, _, version = line.split()[-1].partition("@")
            for n in sorted(missing, key=len, reverse=True):  # libcublasLt before libcublas
                prefix = LIBRARY.match(n).group(1).replace("nvshmem_host", "nvshmem")
                if version == n or (not version and name.startswith(prefix)) or (version == "NVSHMEM" and "nvshmem" in n):
                    wanted[n].add((version, name))
                    break
    return wanted


def write(library, wanted):
    source = ["#include <stdlib.h>", "#include <stdio.h>",
              'static void stub(const char *n) { fprintf(stderr, "stub of a CUDA library called: %s\\n", n); abort(); }']
    source += [f'void {name}(void) {{ stub("{name}"); }}' for _, name in sorted(wanted, key=lambda w: w[1])]
    versions = sorted({v for v, _ in wanted if v})
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        (d / "stub.c").write_text("\n".join(source) + "\n")
        args = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", "-o", lib / library, d / "stub.c"]
        if versions:
            (d / "versions").write_text("\n".join(
                f"{v} {{ global: " + " ".join(f"{name};" for w, name in sorted(wanted) if w == v) + " };" for v in versions) + "\n")
            args.append(f"-Wl,--version-script={d}/versions")
        output(*args)


def main():
    objects = sorted(p for pattern in ("libtorch*.so", "libc10*.so", "libcaffe2*.so") for p in lib.glob(pattern))
    if not objects:
        sys.exit(f"no torch below {site}")
    missing = missing_libraries(objects)
    wanted = functions(objects, missing)
    for library in missing:
        write(library, wanted[library])
    print(f"wrote {len(missing)} libraries for torch", file=sys.stderr)


main()
