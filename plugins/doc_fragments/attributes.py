"""What Ansible's users ask of every module: does it predict, does it show, where does it run. A module adds what differs."""

from __future__ import annotations


class ModuleDocFragment:
    """The plain fragment is that of a module that changes something, ``reads`` that of one that does not."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Predicts what a run would change, and changes nothing.
    support: full
  diff_mode:
    description: Shows what changes, before and after.
    support: full
  platform:
    description: Systems on which the module runs.
    support: full
    platforms: posix
"""

    READS = r"""
attributes:
  check_mode:
    description: Changes nothing, so check mode does the same.
    support: full
  diff_mode:
    description: Changes nothing, so there is no diff.
    support: none
  platform:
    description: Systems on which the module runs.
    support: full
    platforms: posix
"""

    ACTION = r"""
attributes:
  action:
    description: Has an action plugin of the same name, which does on the controller what needs its files and libraries.
    support: full
"""
