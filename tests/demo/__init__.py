"""`make demo`: from a fresh machine to a sliced, verified simulated fleet, told step by step.

`scenes` says what is submitted and promised, `pods` writes the manifests, `observe` reads what came of them, `promises` judges, `table`
shows, `__main__` tells the story. tests/cluster_suite goes on with the fleet that it leaves.
"""
