"""Rules about the fleet: facts to verdicts to findings. Pure: no I/O, the clock is an argument."""
