"""ClickHouse's HTTP protocol before the embedded engine, in a process of its own.

No ClickHouse server can be installed from a package registry, so this stands in for one: the real client library talks
HTTP to it, and the real engine (chDB, of the same source) answers. Only the process between them is not ClickHouse's.
What it does not show: a server's own configuration, background pools and memory tracker; Keeper, replicas and `ON
CLUSTER`; Native blocks of a newer revision (the client library is answered in the oldest, and goes by that); progress
headers; that an insert goes on after its client left.

It does what a server does with: one user and the grants (the engine's own), `database`, settings and `param_*` in the
address or in a form, sessions of one question at a time, bodies and answers in every format of the engine, compressed
or not, and errors with their code in `X-ClickHouse-Exception-Code`.
"""
