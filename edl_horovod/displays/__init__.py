"""Displays of a running job, which read its events and nothing else.

Those that the setting `displays` names follow a job from its launcher. The terminal belongs to a
command, and the page is served by a process of its own.
"""

from edl_horovod.displays.following import DISPLAYS, load, open_displays, require_known

__all__ = ["DISPLAYS", "load", "open_displays", "require_known"]
