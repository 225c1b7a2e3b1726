"""Starts a program in place of this process, confined: ``FOLDER PACKAGE DEVICES EVIDENCE PROGRAM ARGUMENT...``.

FOLDER is all that the program may write to, PACKAGE the folder of landlockpy or an empty text, DEVICES a text that is
empty unless the program needs those of the system. What is in force goes to the file EVIDENCE."""

import json
import os
import runpy
import sys

if __name__ == "__main__":
    folder, package, devices, evidence, *command = sys.argv[1:]
    if package:
        sys.path.append(package)
    confinement = runpy.run_path(os.path.join(os.path.dirname(__file__), "confinement.py"))
    in_force = confinement["confine"](folder, devices=bool(devices), program=command[0])
    with open(evidence, "w") as file:
        json.dump(in_force, file)
    os.execv(command[0], command)
