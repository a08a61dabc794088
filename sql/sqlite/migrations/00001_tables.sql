-- Times are microseconds since 1970, runs and other UUIDs blobs of 16 bytes, both sorted as they should be. What is
-- mostly empty is NULL when it is. sql/postgres explains the tables.

-- +goose Up
CREATE TABLE meta (
    one        INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    shards     INTEGER NOT NULL CHECK (shards BETWEEN 1 AND 4096),
    cluster_id BLOB    NOT NULL,
    token_key  BLOB    NOT NULL CHECK (length(token_key) = 32)
) STRICT;

CREATE TABLE shard (
    id       INTEGER NOT NULL PRIMARY KEY,
    epoch    INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    grant_id BLOB    NOT NULL
) STRICT;

CREATE TABLE shard_lease (
    shard   INTEGER NOT NULL PRIMARY KEY,
    epoch   INTEGER NOT NULL,
    until   INTEGER NOT NULL,
    ttl     INTEGER NOT NULL,
    boot    BLOB    NOT NULL,
    node    TEXT    NOT NULL,
    address TEXT    NOT NULL
) STRICT;

CREATE TABLE node (
    name    TEXT    NOT NULL PRIMARY KEY,
    boot    BLOB    NOT NULL,
    until   INTEGER NOT NULL,
    ttl     INTEGER NOT NULL,
    address TEXT    NOT NULL
) STRICT;

CREATE TABLE saga (
    shard           INTEGER NOT NULL,
    namespace       TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    run             BLOB    NOT NULL,
    n               INTEGER NOT NULL,
    definition      TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    status          INTEGER NOT NULL CHECK (status BETWEEN 1 AND 6),
    digest          BLOB    NOT NULL,
    started_at      INTEGER NOT NULL,
    changed_at      INTEGER NOT NULL,
    deadline        INTEGER,
    labels          TEXT,
    cause           BLOB,
    settled_by_hand INTEGER,
    PRIMARY KEY (shard, namespace, id)
) STRICT;

CREATE INDEX saga_list ON saga (namespace, run);

CREATE INDEX saga_unfinished ON saga (shard, run) WHERE status < 4;

-- One file has no shards to spread, so the key begins with the run: what is written together lies together.
CREATE TABLE history (
    run   BLOB    NOT NULL,
    n     INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    at    INTEGER NOT NULL,
    facts BLOB    NOT NULL,
    PRIMARY KEY (run, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE ops_item (
    namespace   TEXT    NOT NULL,
    run         BLOB    NOT NULL,
    number      INTEGER NOT NULL,
    saga_id     TEXT    NOT NULL,
    saga_n      INTEGER NOT NULL,
    definition  TEXT    NOT NULL,
    kind        INTEGER NOT NULL,
    status      INTEGER NOT NULL,
    direction   INTEGER NOT NULL,
    blocking    INTEGER NOT NULL,
    step        TEXT    NOT NULL,
    code        TEXT    NOT NULL,
    message     TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,
    how         TEXT    NOT NULL,
    opened_at   INTEGER NOT NULL,
    changed_at  INTEGER NOT NULL,
    PRIMARY KEY (namespace, run, number)
) STRICT;

CREATE INDEX ops_item_open ON ops_item (opened_at, run, number) WHERE status < 3;

CREATE INDEX ops_item_all ON ops_item (opened_at, run, number);

CREATE TABLE definition (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    hash          BLOB    NOT NULL,
    registered_at INTEGER NOT NULL,
    body          BLOB    NOT NULL,
    PRIMARY KEY (namespace, name, version),
    UNIQUE (namespace, name, hash)
) STRICT;

CREATE TABLE stray (
    id        INTEGER NOT NULL PRIMARY KEY,
    at        INTEGER NOT NULL,
    namespace TEXT    NOT NULL,
    saga_id   TEXT    NOT NULL,
    run       BLOB    NOT NULL,
    step      TEXT    NOT NULL,
    attempt   INTEGER NOT NULL,
    outcome   INTEGER NOT NULL,
    worker    TEXT    NOT NULL,
    why       TEXT    NOT NULL
) STRICT;

-- +goose Down
DROP TABLE stray;
DROP TABLE definition;
DROP TABLE ops_item;
DROP TABLE history;
DROP TABLE saga;
DROP TABLE node;
DROP TABLE shard_lease;
DROP TABLE shard;
DROP TABLE meta;
