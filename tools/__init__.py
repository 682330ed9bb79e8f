"""Development tools of this repository; nothing here is installed."""
