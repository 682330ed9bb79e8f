"""The node agent: runs readers on their lanes, keeps the newest samples, serves and sends them."""
