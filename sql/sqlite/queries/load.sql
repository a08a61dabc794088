-- name: Unfinished :many
SELECT * FROM saga WHERE shard = @shard AND status < 4 AND run > @after ORDER BY run LIMIT @max_rows;

-- name: RunHistory :many
SELECT * FROM history WHERE run = @run ORDER BY n;
