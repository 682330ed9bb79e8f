"""Table definitions for queries. `migrations.py` creates the tables; a test compares the two."""

import sqlalchemy as sa

METADATA = sa.MetaData()

VERSION = sa.Table("schema_version", METADATA, sa.Column("version", sa.Integer, nullable=False))

CLUSTERS = sa.Table(
    "clusters",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("registered_at", sa.BigInteger, nullable=False),
    sa.Column("spec", sa.LargeBinary),
    sa.Column("closed_at", sa.BigInteger),
)

MACHINES = sa.Table(
    "machines",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster", sa.Text, sa.ForeignKey("clusters.id"), nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("known", sa.LargeBinary, nullable=False),
    sa.Column("first_seen", sa.BigInteger, nullable=False),
    sa.Column("last_seen", sa.BigInteger, nullable=False),
    sa.Column("retired_at", sa.BigInteger),
)

EVIDENCE = sa.Table(
    "machine_evidence",
    METADATA,
    sa.Column("machine", sa.Text, sa.ForeignKey("machines.id"), primary_key=True),
    sa.Column("field", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("since", sa.BigInteger, nullable=False),
)

CONFLICTS = sa.Table(
    "machine_conflicts",
    METADATA,
    sa.Column("machine", sa.Text, sa.ForeignKey("machines.id"), primary_key=True),
    sa.Column("other", sa.Text, primary_key=True),
    sa.Column("field", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("since", sa.BigInteger, nullable=False),
)

ALLOCATIONS = sa.Table(
    "allocations",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),
    sa.Column("spec", sa.LargeBinary, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("put_at", sa.BigInteger, nullable=False),
    sa.Column("closed_at", sa.BigInteger),
    sa.Column("bindings", sa.LargeBinary, nullable=False),
)

SEQUENCES = sa.Table(
    "sequences",
    METADATA,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("sender", sa.Text, primary_key=True),
    sa.Column("epoch", sa.Text, primary_key=True),
    sa.Column("state", sa.LargeBinary, nullable=False),
)

SENDERS = sa.Table(
    "senders",
    METADATA,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("sender", sa.Text, primary_key=True),
    sa.Column("newest_report", sa.LargeBinary, nullable=False),
)

FLUSH_INTENTS = sa.Table(
    "flush_intents",
    METADATA,
    sa.Column("wal", sa.Text, primary_key=True),
    sa.Column("intent", sa.LargeBinary, nullable=False),
)

TOKENS = sa.Table(
    "tokens",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("cluster", sa.Text),
    sa.Column("tenant", sa.Text),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Column("revoked_at", sa.BigInteger),
)

TOKEN_SECRETS = sa.Table(
    "token_secrets",
    METADATA,
    sa.Column("token", sa.Text, sa.ForeignKey("tokens.id"), primary_key=True),
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("valid_until", sa.BigInteger),
)

TOKEN_CHANGES = sa.Table("token_changes", METADATA, sa.Column("number", sa.BigInteger, nullable=False))
"""One row, incremented by every change: a running hub polls it and reloads the tokens when it differs."""

AUDIT = sa.Table(
    "audit",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("method", sa.Text, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
)

FINDINGS_STATE = sa.Table("findings_state", METADATA, sa.Column("state", sa.LargeBinary))
"""One row: the compressed state of the rules, or NULL at first. `save_findings` locks it."""

CONTRACT_STATE = sa.Table("contract_state", METADATA, sa.Column("state", sa.LargeBinary))
"""One row: the compressed history of the adoption contract, or NULL at first."""

LATE_INTERVALS = sa.Table(
    "late_intervals",
    METADATA,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("sender", sa.Text, primary_key=True),
    sa.Column("start", sa.BigInteger, nullable=False),
)
"""Senders with late batches that the rules have not judged yet."""

FINDINGS = sa.Table(
    "findings",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("cluster", sa.Text),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("opened_at", sa.BigInteger, nullable=False),
    sa.Column("closed_at", sa.BigInteger),
    sa.Column("finding", sa.LargeBinary, nullable=False),
)

FINDING_TRANSITIONS = sa.Table(
    "finding_transitions",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("finding", sa.Text, sa.ForeignKey("findings.id"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("transition", sa.LargeBinary, nullable=False),
)

FINDING_ACKNOWLEDGEMENTS = sa.Table(
    "finding_acknowledgements",
    METADATA,
    sa.Column("finding", sa.Text, sa.ForeignKey("findings.id"), primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
)

SILENCES = sa.Table(
    "silences",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("silence", sa.LargeBinary, nullable=False),
)

FINDING_RECEIVERS = sa.Table(
    "finding_receivers",
    METADATA,
    sa.Column("receiver", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)
