"""Programs that run in fresh processes, without anything of ours."""
