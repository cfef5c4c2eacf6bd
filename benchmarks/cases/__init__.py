"""What is measured: one file per question, each with a function ``cases(bench)``."""
