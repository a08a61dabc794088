-- A saga and its history come by one statement, so from one snapshot.

-- name: Unfinished :many
SELECT s.started_at, s.changed_at, s.deadline, s.run, s.shard, s.n, s.version, s.settled_by_hand, s.status, s.namespace,
    s.id, s.definition, s.digest, s.labels, s.cause,
    h.ns::integer[] AS ns, h.epochs::bigint[] AS epochs, h.seqs::bigint[] AS seqs,
    h.ats::timestamptz[] AS ats, h.facts::bytea[] AS facts
FROM saga s
CROSS JOIN LATERAL (
    SELECT array_agg(r.n ORDER BY r.n) AS ns, array_agg(r.epoch ORDER BY r.n) AS epochs,
        array_agg(r.seq ORDER BY r.n) AS seqs, array_agg(r.at ORDER BY r.n) AS ats,
        array_agg(r.facts ORDER BY r.n) AS facts
    FROM history r
    WHERE r.shard = s.shard AND r.run = s.run
) h
WHERE s.shard = @shard AND s.status < 4 AND s.run > @after::uuid
ORDER BY s.run
LIMIT sqlc.arg(max_rows)::integer;

-- LIMIT 1 holds the plan to the primary key, for each key by itself: a cached plan that was made for a small table would
-- scan it when it is large.
-- name: Load :many
SELECT s.started_at, s.changed_at, s.deadline, s.run, s.shard, s.n, s.version, s.settled_by_hand, s.status, s.namespace,
    s.id, s.definition, s.digest, s.labels, s.cause,
    h.ns::integer[] AS ns, h.epochs::bigint[] AS epochs, h.seqs::bigint[] AS seqs,
    h.ats::timestamptz[] AS ats, h.facts::bytea[] AS facts
FROM ROWS FROM (unnest(@shards::integer[]), unnest(@namespaces::text[]), unnest(@ids::text[])) AS k (shard, namespace, id)
CROSS JOIN LATERAL (
    SELECT x.* FROM saga x
    WHERE x.shard = k.shard AND x.namespace = k.namespace AND x.id = k.id
    LIMIT 1
) s
CROSS JOIN LATERAL (
    SELECT array_agg(r.n ORDER BY r.n) AS ns, array_agg(r.epoch ORDER BY r.n) AS epochs,
        array_agg(r.seq ORDER BY r.n) AS seqs, array_agg(r.at ORDER BY r.n) AS ats,
        array_agg(r.facts ORDER BY r.n) AS facts
    FROM history r
    WHERE r.shard = s.shard AND r.run = s.run
) h;
