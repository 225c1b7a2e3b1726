"""Exams: public suites that nobody here wrote, and random programs, through every format; ``make exam`` runs them."""
