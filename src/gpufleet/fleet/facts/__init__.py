"""Facts about the fleet for its rules: data of the hub to tables of facts. Pure: no I/O, the clock is an argument."""
