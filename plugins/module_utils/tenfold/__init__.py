"""The domain of Tenfold: tiers, cards, the scheduler's fit rule, the annotation wire format, the hook's region.

Owns every rule that more than one part of the product needs. It does no I/O on import, uses the standard library alone and runs on
Python 3.8, because Ansible ships it to nodes and the device plugin carries a copy. Import its files one by one; nothing is
re-exported here, so that a module on a node receives only what it uses.
"""
