"""What the hub asks by itself: targets that the operator names, in the configuration or in files that come and go."""
