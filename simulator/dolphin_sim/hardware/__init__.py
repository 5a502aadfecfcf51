"""What a worker of some hardware can do: profiles as data files, and the law that turns one into step times."""

from dolphin_sim.hardware.profile import HardwareProfile, load_profile, profile_names

__all__ = ["HardwareProfile", "load_profile", "profile_names"]
