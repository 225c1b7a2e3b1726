"""Evaluation of files over data sets: chunk by chunk, in any number of processes, resumed after an end."""
