-- name: InitMeta :exec
INSERT INTO meta (shards, cluster_id, token_key) VALUES (@shards, @cluster_id, @token_key) ON CONFLICT DO NOTHING;

-- name: Meta :one
SELECT shards, cluster_id, token_key FROM meta;

-- name: InitShards :exec
INSERT INTO shard (id, epoch, last_seq, grant_id)
SELECT i, 0, 0, '00000000-0000-0000-0000-000000000000'
FROM generate_series(0, sqlc.arg(shards)::integer - 1) AS i
ORDER BY i
ON CONFLICT DO NOTHING;

-- name: InitLeases :exec
INSERT INTO shard_lease (shard, epoch, until, ttl, boot, node, address)
SELECT i, 0, clock_timestamp(), interval '0', '00000000-0000-0000-0000-000000000000', '', ''
FROM generate_series(0, sqlc.arg(shards)::integer - 1) AS i
ORDER BY i
ON CONFLICT DO NOTHING;

-- name: Now :one
SELECT clock_timestamp()::timestamptz AS at;

-- name: Health :one
SELECT (pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on')::boolean AS read_only,
    (current_setting('fsync') = 'off')::boolean AS fsync_off;
