"""The confinement of the processes that run a file: what they can write, start and reach.

It needs the standard library, and landlockpy where that is installed: scripts in this folder run it by its path. What
the system does not offer is not in force, and is said. Sources: landlock(7), unshare(2), user_namespaces(7),
setrlimit(2), elf(5)."""

import contextlib
import ctypes
import glob
import os
import re

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
# What a driver of GPUs of NVIDIA or AMD opens to write; it also gives its threads names.
_DEVICE_FILES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri", "/dev/shm", "/proc/self")
# Processes and threads together: torch starts a thread for each core.
_PROCESSES = 4096


def set_limits(memory, seconds, devices=False):
    """Set the limits of this process on memory, CPU time, and sizes of files; it leaves no core file."""
    # A GPU's driver maps the memory of the device, and more, into the address space.
    if not devices:
        _lower_limit("RLIMIT_AS", int(memory))
    _lower_limit("RLIMIT_CPU", int(seconds) + 1)
    _lower_limit("RLIMIT_FSIZE", int(memory))
    _lower_limit("RLIMIT_CORE", 0)


def _lower_limit(name, value):
    """Lower a limit; if the user's own hard limit is lower still, keep that one."""
    # Not available everywhere.
    import resource

    number = getattr(resource, name)
    _, hard = resource.getrlimit(number)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))


def confine(folder, devices=False, programs=(), outputs=()):
    """Confine this process, and all that it forks, from now on; return texts on what is ``in force``, and ``missing``.

    It writes into ``folder``, which is its folder of temporary files, and the folders ``outputs``; with ``devices`` to
    what a GPU's driver needs, in this process alone. It starts no other program than ``programs``, or any if that is
    None. It has no network. It makes few processes where the system counts them by user namespace.

    All of that holds for the thread that asks for it, and what it starts."""
    os.environ["TMPDIR"] = folder
    report = {"in force": [], "missing": []}
    if others := _count_threads() - 1:
        report["missing"].append(f"threads that had begun before are as they were: {others}")
    _leave_network(report)
    _restrict_files(report, (folder, *outputs), devices, programs)
    return report


def _count_threads():
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    return 1


def _restrict_files(report, folders, devices, programs):
    try:
        import landlockpy
    except ImportError:
        report["missing"].append("files and programs: landlockpy is not installed")
        return
    version, rights = landlockpy.abi_version(), landlockpy.AccessFS
    changes = landlockpy.fs_for_abi(version) & ~(rights.READ_FILE | rights.READ_DIR | rights.IOCTL_DEV)
    what = "nothing outside its folder is written" + (", but files of GPUs' drivers" if devices else "")
    if programs is None:
        changes &= ~rights.EXECUTE
    else:
        what += ", no program is started"
    try:
        scopes = landlockpy.Scope.ABSTRACT_UNIX_SOCKET | landlockpy.Scope.SIGNAL
        with landlockpy.Ruleset(handled_fs=changes, scoped=scopes) as rules:
            for folder in folders:
                rules.allow_path(folder, changes & ~rights.EXECUTE)
            for path in (os.devnull, *(p for pattern in _DEVICE_FILES if devices for p in glob.glob(pattern))):
                rules.allow_path(path, rights.WRITE_FILE | rights.TRUNCATE)
            for program in programs or ():
                for path in _list_program_files(program):
                    rules.allow_path(path, rights.EXECUTE)
            rules.restrict()
    except (OSError, landlockpy.LandlockError) as error:
        report["missing"].append(f"files and programs: {error}")
        return
    report["in force"].insert(0, f"{what} (Landlock {version})")
    # What a kernel's Landlock does not know is left out.
    for first, what in ((3, "files outside can be cut short"), (6, "processes outside can be signalled")):
        if version < first:
            report["missing"].append(f"{what}: Landlock {version} instead of {first}")


def _list_program_files(program):
    """Return what the system opens to start a program: its file, and the loader that the file names in its head."""
    with open(program, "rb") as file:
        loader = re.search(rb"(/[^\0]*/ld[^\0/]*)\0", file.read(4096))
    return [program, loader.group(1).decode()] if loader else [program]


def _leave_network(report):
    """Move this process into a network of its own, which has no way out; limit its processes where that counts its own
    alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        report["missing"].append("the network: this system has no namespaces")
        return
    user, group = os.geteuid(), os.getegid()
    # A user without privileges gets a network of his own in a user namespace of his own, as does root in a container.
    choices = (_NEW_NETWORK, _NEW_USER | _NEW_NETWORK) if user == 0 else (_NEW_USER | _NEW_NETWORK,)
    if all(libc.unshare(flags) != 0 for flags in choices):
        report["missing"].append(f"the network: {os.strerror(ctypes.get_errno())}")
        return
    report["in force"].append("no network (a namespace of its own)")
    if user == 0:
        # It may make any number of processes.
        return
    # Without these lines all files would be a stranger's to the process.
    for name, text in (("uid_map", f"{user} {user} 1"), ("setgroups", "deny"), ("gid_map", f"{group} {group} 1")):
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _lower_limit("RLIMIT_NPROC", _PROCESSES)
    report["in force"].append(f"at most {_PROCESSES} processes and threads")
