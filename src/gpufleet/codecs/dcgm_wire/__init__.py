"""Read-only codec of the protocol between libdcgm and a DCGM host engine (nv-hostengine).

The protocol is NVIDIA's own and undocumented: raw C structs, little-endian, naturally aligned. The layouts were read
from the headers of DCGM 4.2.3, 4.5.0 and 4.6.0, in which they are the same. Start with `commands.py`.
"""
