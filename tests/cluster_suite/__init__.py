"""What a user relies on, asserted on the simulated fleet with real Kubernetes, Volcano and containerd.

Needs a fleet on which site.yml has run (`make demo`); every test cleans up its own pods.
"""
