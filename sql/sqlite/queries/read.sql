-- name: Saga :one
SELECT * FROM saga WHERE shard = @shard AND namespace = @namespace AND id = @id;

-- name: SagasNewestFirst :many
SELECT * FROM saga
WHERE namespace = @namespace AND run >= @lowest AND run <= @highest
    AND (1 << status) & CAST(@statuses AS INTEGER) <> 0
    AND (CAST(@definition AS TEXT) = '' OR definition = @definition)
    AND (CAST(@version AS INTEGER) = 0 OR version = @version)
    AND substr(id, 1, length(CAST(@id_prefix AS TEXT))) = @id_prefix
    AND started_at >= @started_after AND started_at < @started_before
ORDER BY run DESC
LIMIT @max_rows;

-- name: SagasOldestFirst :many
SELECT * FROM saga
WHERE namespace = @namespace AND run >= @lowest AND run <= @highest
    AND (1 << status) & CAST(@statuses AS INTEGER) <> 0
    AND (CAST(@definition AS TEXT) = '' OR definition = @definition)
    AND (CAST(@version AS INTEGER) = 0 OR version = @version)
    AND substr(id, 1, length(CAST(@id_prefix AS TEXT))) = @id_prefix
    AND started_at >= @started_after AND started_at < @started_before
ORDER BY run
LIMIT @max_rows;

-- name: AllSagasNewestFirst :many
SELECT * FROM saga
WHERE run >= @lowest AND run <= @highest
    AND (1 << status) & CAST(@statuses AS INTEGER) <> 0
    AND (CAST(@definition AS TEXT) = '' OR definition = @definition)
    AND (CAST(@version AS INTEGER) = 0 OR version = @version)
    AND substr(id, 1, length(CAST(@id_prefix AS TEXT))) = @id_prefix
    AND started_at >= @started_after AND started_at < @started_before
ORDER BY run DESC
LIMIT @max_rows;

-- name: AllSagasOldestFirst :many
SELECT * FROM saga
WHERE run >= @lowest AND run <= @highest
    AND (1 << status) & CAST(@statuses AS INTEGER) <> 0
    AND (CAST(@definition AS TEXT) = '' OR definition = @definition)
    AND (CAST(@version AS INTEGER) = 0 OR version = @version)
    AND substr(id, 1, length(CAST(@id_prefix AS TEXT))) = @id_prefix
    AND started_at >= @started_after AND started_at < @started_before
ORDER BY run
LIMIT @max_rows;

-- name: History :many
SELECT * FROM history WHERE run = @run AND n >= @from_n AND shard = @shard ORDER BY n LIMIT @max_rows;

-- name: OpenItems :many
SELECT * FROM ops_item
WHERE status < 3
    AND (CAST(@namespace AS TEXT) = '' OR namespace = @namespace)
    AND (CAST(@definition AS TEXT) = '' OR definition = @definition)
    AND (CAST(@saga_id AS TEXT) = '' OR saga_id = @saga_id)
    AND (opened_at > @after_opened OR opened_at = @after_opened
        AND (run > @after_run OR run = @after_run AND number > @after_number))
ORDER BY opened_at, run, number
LIMIT @max_rows;

-- name: AllItems :many
SELECT * FROM ops_item
WHERE (CAST(@namespace AS TEXT) = '' OR namespace = @namespace)
    AND (CAST(@definition AS TEXT) = '' OR definition = @definition)
    AND (CAST(@saga_id AS TEXT) = '' OR saga_id = @saga_id)
    AND (opened_at > @after_opened OR opened_at = @after_opened
        AND (run > @after_run OR run = @after_run AND number > @after_number))
ORDER BY opened_at, run, number
LIMIT @max_rows;

-- name: CountOpenItems :many
SELECT kind, count(*) AS items FROM ops_item WHERE status < 3 GROUP BY kind;

-- name: KeepStray :one
INSERT INTO stray (at, namespace, saga_id, run, step, attempt, outcome, worker, why)
VALUES (@at, @namespace, @saga_id, @run, @step, @attempt, @outcome, @worker, @why)
RETURNING id;

-- name: DropStrays :exec
DELETE FROM stray WHERE id <= (SELECT s.id FROM stray s ORDER BY s.id DESC LIMIT 1 OFFSET @keep);

-- name: Strays :many
SELECT * FROM stray ORDER BY id DESC LIMIT @max_rows;
