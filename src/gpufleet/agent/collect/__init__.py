"""Collection: reader schedules, the newest samples, and the snapshot made of them."""
