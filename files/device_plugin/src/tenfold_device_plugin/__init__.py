"""The node's half of Tenfold: advertises slices, and binds each container to the slice that the scheduler chose for it.

Reading order: ``scan`` (cards), ``state`` and ``claim`` (decisions, pure), ``ledger`` (what must survive), ``bookings`` (what each pod
has), ``binding`` (a container's way to its slice), ``advertise`` (the node's way into the scheduler), ``serve`` (gRPC), ``main``
(threads). Kubernetes is behind ``cluster``.
"""

__version__ = "0.1.0"
