"""The test fleet: from a fresh Debian 12 to a running Kubernetes with simulated GPU nodes, before Ansible has touched any of it.

Owns compiling the public components, the nodes' root file systems, images without a registry, and the life of the fleet. The product
is installed afterwards by ``site.yml``; the simulated driver comes from ``tests/simulator``. ``python3 -m tests.cluster`` is the
command line. One way of dependencies: ``components/`` and the other pure files (values in, argv or text out) know no process;
``fleet`` starts things; ``__main__`` speaks.
"""
