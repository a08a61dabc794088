-- Text keys are COLLATE "C": they are compared by bytes, as every store and Go do, and cheaper than by a locale.
-- Columns stand in the order that pads least. What is mostly empty is NULL when it is, which takes no room.

-- +goose Up

-- What was fixed when the database was initialised. One row.
CREATE TABLE meta (
    one         boolean     PRIMARY KEY DEFAULT true CHECK (one),
    shards      integer     NOT NULL CHECK (shards BETWEEN 1 AND 4096),
    cluster_id  uuid        NOT NULL,
    token_key   bytea       NOT NULL CHECK (length(token_key) = 32),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The fence: every commit compares and swaps a shard's row, see sagad_commit. A hot row; the low fillfactor leaves room
-- for its next versions on its own page.
CREATE TABLE shard (
    id       integer NOT NULL,
    epoch    bigint  NOT NULL,
    last_seq bigint  NOT NULL,
    grant_id uuid    NOT NULL,
    CONSTRAINT shard_pkey PRIMARY KEY (id)
) WITH (fillfactor = 10);

-- Who owns a shard, for liveness only. A node of '' means nobody. A lease that ends more than twice its ttl from now
-- was written under another clock and counts as expired.
CREATE TABLE shard_lease (
    shard   integer     NOT NULL,
    epoch   bigint      NOT NULL,
    until   timestamptz NOT NULL,
    ttl     interval    NOT NULL,
    boot    uuid        NOT NULL,
    node    text        COLLATE "C" NOT NULL,
    address text        COLLATE "C" NOT NULL,
    CONSTRAINT shard_lease_pkey PRIMARY KEY (shard)
) WITH (fillfactor = 10);

-- The nodes that live, by their heartbeats.
CREATE TABLE node (
    name    text        COLLATE "C" NOT NULL,
    boot    uuid        NOT NULL,
    until   timestamptz NOT NULL,
    ttl     interval    NOT NULL,
    address text        COLLATE "C" NOT NULL,
    CONSTRAINT node_pkey PRIMARY KEY (name)
) WITH (fillfactor = 50);

-- A saga's row: written at its start and when its lifecycle changes.
CREATE TABLE saga (
    started_at      timestamptz NOT NULL,
    changed_at      timestamptz NOT NULL,
    deadline        timestamptz,
    run             uuid        NOT NULL,
    shard           integer     NOT NULL,
    n               integer     NOT NULL,
    version         integer     NOT NULL,
    settled_by_hand integer,
    status          smallint    NOT NULL CHECK (status BETWEEN 1 AND 6),
    namespace       text        COLLATE "C" NOT NULL,
    id              text        COLLATE "C" NOT NULL,
    definition      text        COLLATE "C" NOT NULL,
    digest          bytea       NOT NULL,
    labels          text,
    cause           bytea,
    CONSTRAINT saga_pkey PRIMARY KEY (shard, namespace, id)
) WITH (fillfactor = 50);

-- Lists. Not unique, so that the table can be spread by shard; a run that is used twice fails at history's key.
CREATE INDEX saga_list ON saga (namespace, run);

-- What a new owner loads.
CREATE INDEX saga_unfinished ON saga (shard, run) WHERE status < 4;

-- One row per transition, append-only. The key sorts by time within a shard (run is a UUIDv7), so the table can be
-- partitioned by run and dropped by partition.
CREATE TABLE history (
    at    timestamptz NOT NULL,
    epoch bigint      NOT NULL,
    seq   bigint      NOT NULL,
    shard integer     NOT NULL,
    n     integer     NOT NULL,
    run   uuid        NOT NULL,
    facts bytea       NOT NULL,
    CONSTRAINT history_pkey PRIMARY KEY (shard, run, n)
);

-- Operations items. Statuses are history.v1's: 3 is closed.
CREATE TABLE ops_item (
    opened_at   timestamptz NOT NULL,
    changed_at  timestamptz NOT NULL,
    run         uuid        NOT NULL,
    saga_n      bigint      NOT NULL,
    number      integer     NOT NULL,
    attempts    integer     NOT NULL,
    kind        smallint    NOT NULL,
    status      smallint    NOT NULL,
    direction   smallint    NOT NULL,
    blocking    boolean     NOT NULL,
    namespace   text        COLLATE "C" NOT NULL,
    saga_id     text        COLLATE "C" NOT NULL,
    definition  text        COLLATE "C" NOT NULL,
    step        text        NOT NULL,
    code        text        NOT NULL,
    message     text        NOT NULL,
    fingerprint text        NOT NULL,
    how         text        NOT NULL,
    CONSTRAINT ops_item_pkey PRIMARY KEY (namespace, run, number)
) WITH (fillfactor = 80);

CREATE INDEX ops_item_open ON ops_item (opened_at, run, number) WHERE status < 3;

CREATE INDEX ops_item_all ON ops_item (opened_at, run, number);

-- Registered definitions. Never changed.
CREATE TABLE definition (
    registered_at timestamptz NOT NULL,
    version       integer     NOT NULL,
    namespace     text        COLLATE "C" NOT NULL,
    name          text        COLLATE "C" NOT NULL,
    hash          bytea       NOT NULL,
    body          bytea       NOT NULL,
    CONSTRAINT definition_pkey PRIMARY KEY (namespace, name, version),
    CONSTRAINT definition_hash UNIQUE (namespace, name, hash)
);

-- Results that fitted nothing. The newest 10,000 or so are kept.
CREATE TABLE stray (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL,
    run       uuid        NOT NULL,
    attempt   integer     NOT NULL,
    outcome   smallint    NOT NULL,
    namespace text        NOT NULL,
    saga_id   text        NOT NULL,
    step      text        NOT NULL,
    worker    text        NOT NULL,
    why       text        NOT NULL
);

-- +goose Down
DROP TABLE stray, definition, ops_item, history, saga, node, shard_lease, shard, meta;
