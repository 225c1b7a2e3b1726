"""Models that solve: Newton's method, implicit updates and their tolerances."""
