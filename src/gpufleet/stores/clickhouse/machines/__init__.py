"""Small tables: machines, views, readers, holdings, inventory, events, processes."""
