"""The process of NVRTC, so that no fault of it ends another one. Arguments: ARCHITECTURE MAIN HEADER...

Exit code 0: it compiles, with the version of NVRTC on standard output; 1: it does not, with the log on standard error;
3: NVRTC is not installed."""

import importlib
import pathlib
import sys

MISSING = 3


def main(architecture, *paths):
    """Compile a file with its headers; return the exit code."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        status, *version = nvrtc.nvrtcVersion()
    # The package loads NVIDIA's library when it is first called.
    except (ImportError, RuntimeError):
        return MISSING
    good = nvrtc.nvrtcResult.NVRTC_SUCCESS
    if status != good:
        return MISSING
    texts = [pathlib.Path(path).read_bytes() for path in paths]
    names = [pathlib.Path(path).name.encode() for path in paths]
    _, program = nvrtc.nvrtcCreateProgram(texts[0], names[0], len(names) - 1, texts[1:], names[1:])
    options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status == good:
        print(*version, sep=".")
        return 0
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    sys.stderr.write(log.decode(errors="replace").rstrip("\0") or str(status))
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
