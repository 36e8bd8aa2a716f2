"""Messages of the kubelet's two APIs, generated from the ``.proto`` files beside this one. The calls are in ``kubelet``."""
