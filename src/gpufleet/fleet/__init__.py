"""Device and allocation rules shared by agent and hub. Pure: the clock is an argument."""
