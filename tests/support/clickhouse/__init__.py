"""Stand-in for a ClickHouse server: its HTTP protocol in front of the embedded engine, in a separate process.

No ClickHouse server can be installed from a package registry. The real client library talks HTTP to this process, and
the real engine (chDB, of the same source) executes the statements. Only the process between them is not ClickHouse's.

Implemented are one user with grants (the engine's own), `database`, settings and `param_*` in the address or in a
form, sessions with one request at a time, bodies and results in every format of the engine, compressed or not, and
errors with their code in `X-ClickHouse-Exception-Code`.

Not covered are a server's own configuration, background pools and memory tracker; Keeper, replicas and `ON CLUSTER`;
Native blocks of a newer revision (responses use the oldest one, which the client library accepts); progress headers;
and inserts that continue after their client disconnects.
"""
