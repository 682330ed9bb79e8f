"""What agent and hub both know about devices: pure code, the clock is an argument."""
