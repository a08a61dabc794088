-- name: Acquire :many
SELECT o_shard::integer AS shard, o_epoch::bigint AS epoch, o_grant::uuid AS grant_id, o_last_seq::bigint AS last_seq
FROM sagad_acquire(@node::text, @boot::uuid, @address::text, @shards::integer[],
    sqlc.arg(ttl_us)::bigint * interval '1 microsecond');

-- Rows are locked in order, as sagad_acquire does, which rules a deadlock out.
-- name: Renew :many
WITH mine AS (
    SELECT m.shard FROM shard_lease m
    WHERE m.node = @node AND m.boot = @boot
    ORDER BY m.shard
    FOR UPDATE
)
UPDATE shard_lease l
SET until = clock_timestamp() + sqlc.arg(ttl_us)::bigint * interval '1 microsecond', ttl = sqlc.arg(ttl_us)::bigint * interval '1 microsecond'
FROM mine
WHERE l.shard = mine.shard
RETURNING l.shard;

-- name: Release :exec
WITH mine AS (
    SELECT m.shard FROM shard_lease m
    WHERE m.node = @node AND m.boot = @boot AND m.shard = ANY (@shards::integer[])
    ORDER BY m.shard
    FOR UPDATE
)
UPDATE shard_lease l
SET until = clock_timestamp(), node = '', address = '', boot = '00000000-0000-0000-0000-000000000000'
FROM mine
WHERE l.shard = mine.shard;

-- name: Leases :many
SELECT shard, epoch, node, boot, address,
    (node <> '' AND until > clock_timestamp() AND until <= clock_timestamp() + 2 * ttl)::boolean AS live
FROM shard_lease
ORDER BY shard;

-- name: Beat :exec
INSERT INTO node (name, boot, address, until, ttl)
VALUES (@name, @boot, @address, clock_timestamp() + sqlc.arg(ttl_us)::bigint * interval '1 microsecond',
    sqlc.arg(ttl_us)::bigint * interval '1 microsecond')
ON CONFLICT (name) DO UPDATE
SET boot = excluded.boot, address = excluded.address, until = excluded.until, ttl = excluded.ttl;

-- name: LiveNodes :many
SELECT name, boot, address
FROM node
WHERE until > clock_timestamp() AND until <= clock_timestamp() + 2 * ttl
ORDER BY name;

-- name: ForgetNodes :exec
DELETE FROM node WHERE until < clock_timestamp() - interval '1 hour';
