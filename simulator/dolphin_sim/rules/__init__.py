"""The rules that deployed routers use, as baselines: each a pure function that tells whether a request goes remote.

Compiled into the simulator; the values they are used with are named in :mod:`dolphin_sim.policy`.
"""
