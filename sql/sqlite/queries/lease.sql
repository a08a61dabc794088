-- The clock is the process's own: one process has the file.

-- name: Lease :one
SELECT * FROM shard_lease WHERE shard = @shard;

-- name: Raise :one
UPDATE shard SET epoch = epoch + 1, grant_id = @grant_id WHERE id = @id RETURNING epoch, last_seq;

-- name: TakeLease :exec
UPDATE shard_lease
SET epoch = @epoch, until = @until, ttl = @ttl, boot = @boot, node = @node, address = @address
WHERE shard = @shard;

-- name: Renew :many
UPDATE shard_lease SET until = @until, ttl = @ttl WHERE node = @node AND boot = @boot RETURNING shard;

-- name: Release :exec
UPDATE shard_lease
SET until = @until, node = '', address = '', boot = zeroblob(16)
WHERE shard = @shard AND node = @node AND boot = @boot;

-- name: ReleaseAll :exec
UPDATE shard_lease SET until = 0, node = '', address = '', boot = zeroblob(16);

-- name: Leases :many
SELECT * FROM shard_lease ORDER BY shard;

-- name: Beat :exec
INSERT INTO node (name, boot, until, ttl, address) VALUES (@name, @boot, @until, @ttl, @address)
ON CONFLICT (name) DO UPDATE
SET boot = excluded.boot, until = excluded.until, ttl = excluded.ttl, address = excluded.address;

-- name: ForgetNodes :exec
DELETE FROM node WHERE until < @before;

-- name: Nodes :many
SELECT * FROM node ORDER BY name;
