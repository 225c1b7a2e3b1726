"""Fuzz the readers of files: ``make fuzz SECONDS=600``.

Each target runs for so many seconds, up to four at the same time, from a corpus in ``out/fuzz``, which grows from the
seeds here. Ends with code 1 if one found a crash, an error of a wrong type, a case of more than 10 seconds, or of more
than a gibibyte and what torch and the sanitizers need. The input then lies in ``out/fuzz/findings``, and belongs into
``seeds`` once it is mended."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from exporter.archive import target_machine

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "runtime_checks" / "native"
OUT = ROOT / "out" / "fuzz"
SEED = ROOT / "artifacts" / "robertson.pt"
CASES = ROOT / "artifacts" / "for_ever" / "0.1.0" / "robertson" / "cases.txt"
# What both languages read.
NATIVE_TARGETS = ("archive", "contract", "cases", "machine", "texts", "nesting", "signature", "source")
PYTHON_TARGETS = (*NATIVE_TARGETS, "kernel", "onnx", "program", "module", "code")
LIMITS = ("-timeout=10", "-rss_limit_mb=1536", "-max_len=65536", "-print_final_stats=1", "-verbosity=1")
# libtorch is not built with the sanitizer, which then mistakes its containers.
SANITIZER = "detect_container_overflow=0:detect_leaks=0:allocator_may_return_null=1"


def build_native() -> Path:
    """Build the readers of the native library with clang's fuzzer; kept for the same sources and torch."""
    sources = [*sorted((NATIVE / "src").glob("*.cpp")), Path(__file__).with_name("native_readers.cpp")]
    headers = [*(NATIVE / "src").glob("*.[hi]*"), *(NATIVE / "include" / "torchferry").iterdir()]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*sources, *sorted(headers))))
    digest.update(torch.__version__.encode())
    program = OUT / f"native-{digest.hexdigest()[:16]}"
    if not program.exists():
        libraries, place = Path(torch.__file__).parent, OUT / "whole.cpp"
        # torch's headers are most of what the compiler reads: once.
        place.write_text("".join(f'#include "{path}"\n' for path in sources))
        folders = [f"-I{NATIVE / 'src'}", f"-I{NATIVE / 'include'}", "-isystem", str(NATIVE / "third_party")]
        folders += ["-isystem", f"{libraries}/include", "-isystem", f"{libraries}/include/torch/csrc/api/include"]
        link = [f"-L{libraries}/lib", f"-Wl,-rpath,{libraries}/lib", "-Wl,--no-as-needed"]
        link += ["-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
        flags = ["-std=c++20", "-O1", "-g1", "-fsanitize=fuzzer,address,undefined", '-DTORCHFERRY_VERSION="0"', "-w"]
        print("building the native readers", flush=True)
        subprocess.run(["clang++", *flags, *folders, str(place), *link, "-o", str(program)], check=True)
    return program


def write_seeds(target: str, folder: Path) -> None:
    """Write what a target's first inputs are: records of the archives, and the seeds that findings were mended with."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((ROOT / "artifacts").glob("*.pt")):
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2]: name for name in archive.namelist()}
            inputs = {
                "archive": [path.read_bytes()] if path.stat().st_size < 65536 else [],
                "contract": [archive.read(names["contract.json"])],
                "cases": [archive.read(names["cases.pt"])],
                "module": [archive.read(names["data.pkl"])],
                "code": [archive.read(name) for name in archive.namelist() if name.endswith(".py")],
                "source": [archive.read(name) for name in archive.namelist() if name.endswith(".py")],
                "nesting": [archive.read(name) for name in archive.namelist() if name.endswith((".pkl", ".py"))],
            }
        for data in inputs.get(target, []):
            (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    for text in make_texts().get(target, []):
        (folder / hashlib.sha256(text).hexdigest()[:16]).write_bytes(text)
    for path in (Path(__file__).with_name("seeds") / target).glob("*"):
        (folder / path.name).write_bytes(path.read_bytes())


def make_texts() -> dict[str, list[bytes]]:
    """Return manifests, a signature, a program, a machine and a kernel's cases as torchferry writes them, most in their
    smallest form."""
    zeros = 64 * "0"
    kernel = {
        **{"format": "torchferry kernel 1", "name": "a", "files": {"a.c": zeros}, "batched": True, "left_out": []},
        **{"workspace": {"forward": 0}, "methods": {"forward": {"inputs": [], "outputs": []}}, "parameters": []},
        "sha256": zeros,
    }
    with zipfile.ZipFile(SEED) as archive:
        contract = json.loads(archive.read(next(n for n in archive.namelist() if n.endswith("contract.json"))))
    onnx = {
        **{"format": "torchferry onnx 1", "opset": 18, "files": {"fuzz.onnx": zeros}, "contract": contract},
        "sha256": zeros,
        "methods": {"forward": {"file": "fuzz.onnx", "inputs": ["y"], "outputs": ["rate"]}},
    }
    times = "signed 2026-01-01T00:00:00Z\nexpires never\n"
    signature = f"torchferry signature 1\nsha256 {zeros}\nkey {zeros}\n{times}signature {2 * zeros}\n"
    node = {"target": "torch.ops.aten.add.Tensor", "inputs": [], "outputs": [], "metadata": {}}
    guard = "L['x'].size()[0] >= 2"
    program = {"graph": {"nodes": [node]}, "expr_str": "Symbol('s0', integer=True) + 1", "guards_code": [guard]}
    texts = {name: json.dumps(value) for name, value in (("kernel", kernel), ("onnx", onnx), ("program", program))}
    texts["signature"] = signature
    texts["machine"] = target_machine.current_machine(torch.__version__, "cpu").to_json().decode()
    texts["texts"] = CASES.read_text()
    return {target: [text.encode()] for target, text in texts.items()}


def run_target(name: str, command: Sequence[str], target: str, seconds: int) -> str:
    """Run a target; return a line of what it did, which ends with FOUND if it found something."""
    corpus, findings = OUT / name / target, OUT / "findings"
    write_seeds(target, corpus)
    findings.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-artifact_prefix={findings}/{name}-{target}-", *LIMITS]
    environment = {**os.environ, "ASAN_OPTIONS": SANITIZER, "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    done = subprocess.run(
        [*command, *limits, str(corpus)], env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    units = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    memory = re.search(r"peak_rss_mb:\s*(\d+)", done.stderr)
    line = f"{name:7} {target:10} {units[1] if units else '?':>9} inputs, at most {memory[1] if memory else '?'} MiB"
    if done.returncode:
        print("\n".join([*done.stdout.splitlines()[-30:], *done.stderr.splitlines()[-30:]]), flush=True)
        return f"{line}: FOUND"
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="targets at the same time")
    parser.add_argument("--targets", default="", help="for example native-cases,python-archive; all by default")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in arguments.targets.split(",") if name]
    python = [sys.executable, str(Path(__file__).with_name("python_readers.py"))]
    has_found = False
    with ThreadPoolExecutor(arguments.jobs) as pool, cancel_at_errors(pool):
        # The build takes as long as some targets of the other language, and runs beside them.
        is_native = not chosen or any(name.startswith("native") for name in chosen)
        build = pool.submit(build_native) if is_native else None
        targets = {("python", target): [*python, target] for target in PYTHON_TARGETS}
        runs = [*start_targets(pool, targets, chosen, arguments.seconds)]
        if build is not None:
            native = str(build.result())
            targets = {("native", t): [native, f"--target={t}", f"--seed={SEED}"] for t in NATIVE_TARGETS}
            runs += start_targets(pool, targets, chosen, arguments.seconds)
        for run in runs:
            line = run.result()
            print(line, flush=True)
            has_found |= line.endswith("FOUND")
    return has_found


@contextlib.contextmanager
def cancel_at_errors(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Start nothing more once the block has failed or was interrupted."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def start_targets(
    pool: ThreadPoolExecutor, commands: Mapping[tuple[str, str], Sequence[str]], chosen: Collection[str], seconds: int
) -> list[Future[str]]:
    """Start the chosen targets, all where none is chosen; return what gives the line of each."""
    return [
        pool.submit(run_target, name, command, target, seconds)
        for (name, target), command in commands.items()
        if not chosen or f"{name}-{target}" in chosen
    ]


if __name__ == "__main__":
    sys.exit(main())
