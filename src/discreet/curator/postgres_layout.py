"""Defines the schema of a ledger in PostgreSQL: the exact list of its tables, columns, triggers and
functions."""

from __future__ import annotations

from typing import Any

from .store import FORMAT

# The comment on the schema, by which a ledger is recognized.
COMMENT = f"discreet ledger of format {FORMAT}"
# The statements that make the schema. `_EXPECTED` lists what they make: neither changes without the other.
STATEMENTS = """
CREATE SCHEMA {schema};
COMMENT ON SCHEMA {schema} IS '{comment}';
CREATE TABLE {schema}.entry (
  seq bigint PRIMARY KEY, time text NOT NULL, kind text NOT NULL, body text NOT NULL,
  hash bytea NOT NULL, signature bytea NOT NULL, sealed bytea, topic text
);
CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN RAISE EXCEPTION ''the ledger is append-only''; END';
CREATE TRIGGER entry_stays BEFORE UPDATE OR DELETE ON {schema}.entry
  FOR EACH ROW EXECUTE FUNCTION {schema}.refuse();
CREATE TRIGGER entry_remains BEFORE TRUNCATE ON {schema}.entry
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse();
CREATE TABLE {schema}.blob (
  name text NOT NULL, part integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (name, part)
);
"""
# Lists everything in a schema that could change which entries are written or read, as rows of (kind, name,
# properties). The kind 'heir' is a table that inherits from the table of entries, 'more' a rule or trigger on
# any other table.
_SCHEMA = """
SELECT 'relation', c.relname::text, c.relkind::text || c.relpersistence::text || c.relrowsecurity::text FROM pg_class c
  WHERE c.relnamespace = {oid}
UNION ALL SELECT 'column', a.attname::text, format_type(a.atttypid, a.atttypmod) || a.attnotnull::text || a.atthasdef::text
  FROM pg_attribute a WHERE a.attrelid = {entry} AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'trigger', t.tgname::text, t.tgtype::text || t.tgenabled::text || p.proname::text || p.pronamespace::text
    || (t.tgqual IS NULL)::text || t.tgattr::text
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = {entry}
UNION ALL SELECT 'function', p.proname::text, p.prosrc FROM pg_proc p WHERE p.pronamespace = {oid}
UNION ALL SELECT 'rule', r.rulename::text, '' FROM pg_rewrite r WHERE r.ev_class = {entry}
UNION ALL SELECT 'heir', i.inhrelid::text, '' FROM pg_inherits i WHERE i.inhparent = {entry}
UNION ALL SELECT 'constraint', k.conname::text, k.contype::text FROM pg_constraint k WHERE k.conrelid = {entry}
UNION ALL SELECT 'more', r.rulename::text, '' FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
  WHERE c.relnamespace = {oid} AND c.oid <> {entry}
UNION ALL SELECT 'more', t.tgname::text, '' FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
  WHERE c.relnamespace = {oid} AND c.oid <> {entry}
ORDER BY 1, 2, 3
"""
# What `_SCHEMA` lists for a ledger; "{oid}" stands for the number of the schema. The properties of a relation
# are its kind (r: table, i: index), persistence (p: permanent), and whether it has row security.
_EXPECTED = (
    *(
        # type, whether NULL is forbidden, and no default value
        ("column", name, f"{type_}{not_null}false")
        for name, type_, not_null in (
            ("body", "text", "true"),
            ("hash", "bytea", "true"),
            ("kind", "text", "true"),
            ("sealed", "bytea", "false"),
            ("seq", "bigint", "true"),
            ("signature", "bytea", "true"),
            ("time", "text", "true"),
            ("topic", "text", "false"),
        )
    ),
    ("constraint", "entry_pkey", "p"),
    ("function", "refuse", "BEGIN RAISE EXCEPTION 'the ledger is append-only'; END"),
    ("relation", "blob", "rpfalse"),
    ("relation", "blob_pkey", "ipfalse"),
    ("relation", "entry", "rpfalse"),
    ("relation", "entry_pkey", "ipfalse"),
    # `tgtype` of pg_trigger: 34 is before a truncate, per statement; 27 before an update or delete, per row.
    # "O" is enabled.
    ("trigger", "entry_remains", "34Orefuse{oid}true"),
    ("trigger", "entry_stays", "27Orefuse{oid}true"),
)


def is_ledger(db: Any, schema: str) -> bool:
    """Return whether a schema is exactly that of a ledger."""
    oid, entry = db.execute(
        "SELECT to_regnamespace(%s)::oid::bigint, to_regclass(%s)::oid::bigint", (schema, f"{schema}.entry")
    ).fetchone()
    if oid is None or entry is None:
        return False
    listed = sorted(map(tuple, db.execute(_SCHEMA.format(oid=oid, entry=entry)).fetchall()))
    return listed == sorted((what, name, text.replace("{oid}", str(oid))) for what, name, text in _EXPECTED)
