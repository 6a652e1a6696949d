"""Reproduction of the paper: every table and figure with its claim, the runs that test it, and a verdict.

`statements` lists all tables and figures, `claims` those that are tested by training, `runner` trains what a claim
needs, `verdicts` judges the results, and `report` writes docs/reproduction.md from the stored JSON.
"""
