"""What our cluster modules share: the API's edge (`api`) and pure rules about Kubernetes objects, Volcano and probes.

Not the domain: tiers, cards and Volcano's fit rule live in the package `tenfold`. Nothing here does I/O at import, and only `api`
does any later.
"""
