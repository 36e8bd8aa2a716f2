"""One file per program of a simulated machine: a configuration in, argv or the program's configuration file out.

Pure. Where the files lie is ``FilePlan``'s business in ``machine``; starting is systemd's.
"""
