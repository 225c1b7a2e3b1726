"""Starts a program in place of this process, confined: ``JOB PROGRAM ARGUMENT...``.

JOB is JSON: ``folder`` is all that the program may write to, ``package`` the folder of landlockpy or an empty text,
``devices`` whether the program needs those of the system, ``memory`` and ``seconds`` are its limits. What is in force
goes to the file ``evidence``."""

import json
import os
import runpy
import sys

if __name__ == "__main__":
    job, command = json.loads(sys.argv[1]), sys.argv[2:]
    if job["package"]:
        sys.path.append(job["package"])
    confinement = runpy.run_path(os.path.join(os.path.dirname(__file__), "confinement.py"))
    in_force = confinement["confine"](job["folder"], job["devices"], command[:1])
    confinement["set_limits"](job["memory"], job["seconds"], job["devices"])
    with open(job["evidence"], "w") as file:
        json.dump(in_force, file)
    os.execv(command[0], command)
