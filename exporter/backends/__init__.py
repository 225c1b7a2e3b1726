"""The same contract in other containers, made of the graphs that an archive holds."""
