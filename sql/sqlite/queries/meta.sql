-- name: InitMeta :exec
INSERT INTO meta (one, shards, cluster_id, token_key) VALUES (1, @shards, @cluster_id, @token_key) ON CONFLICT DO NOTHING;

-- name: Meta :one
SELECT shards, cluster_id, token_key FROM meta;

-- name: InitShard :exec
INSERT INTO shard (id, epoch, last_seq, grant_id) VALUES (@id, 0, 0, zeroblob(16)) ON CONFLICT DO NOTHING;

-- name: InitLease :exec
INSERT INTO shard_lease (shard, epoch, until, ttl, boot, node, address)
VALUES (@shard, 0, 0, 0, zeroblob(16), '', '') ON CONFLICT DO NOTHING;

-- name: Health :one
SELECT count(*) FROM meta;
