"""Removes what a system without forks lacks, such as Windows. What torch itself needs of ``os`` stays."""

import os

for name in ("fork", "forkpty"):
    delattr(os, name)
