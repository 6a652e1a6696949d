"""The paper as data, and its reproduction: one `Table` per table or figure, from which everything else is derived.

`definitions` has the types, `tables` and `recognition_tables` what the paper says. `recipes` derives training recipes,
`claims` the runs and sources of each claim; `run` trains, `measure` and `probes` compute metrics, `verdict` judges,
`cost` estimates time and memory, and `report` writes docs/reproduction.md.
"""
