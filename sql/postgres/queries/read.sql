-- name: Saga :one
SELECT * FROM saga WHERE shard = @shard AND namespace = @namespace AND id = @id;

-- Pages of sagas. Runs are UUIDv7, so ordered by start; lowest and highest are the inclusive bounds that time and page
-- set. statuses has bit s set for each status s that is wanted.

-- name: SagasNewestFirst :many
SELECT * FROM saga
WHERE namespace = @namespace AND run BETWEEN @lowest AND @highest
    AND (1 << status) & @statuses::integer <> 0
    AND (@definition::text = '' OR definition = @definition)
    AND (@version::integer = 0 OR version = @version)
    AND starts_with(id, @id_prefix::text)
    AND (sqlc.narg(started_after)::timestamptz IS NULL OR started_at >= sqlc.narg(started_after))
    AND (sqlc.narg(started_before)::timestamptz IS NULL OR started_at < sqlc.narg(started_before))
ORDER BY run DESC
LIMIT sqlc.arg(max_rows)::integer;

-- name: SagasOldestFirst :many
SELECT * FROM saga
WHERE namespace = @namespace AND run BETWEEN @lowest AND @highest
    AND (1 << status) & @statuses::integer <> 0
    AND (@definition::text = '' OR definition = @definition)
    AND (@version::integer = 0 OR version = @version)
    AND starts_with(id, @id_prefix::text)
    AND (sqlc.narg(started_after)::timestamptz IS NULL OR started_at >= sqlc.narg(started_after))
    AND (sqlc.narg(started_before)::timestamptz IS NULL OR started_at < sqlc.narg(started_before))
ORDER BY run
LIMIT sqlc.arg(max_rows)::integer;

-- name: AllSagasNewestFirst :many
SELECT * FROM saga
WHERE run BETWEEN @lowest AND @highest
    AND (1 << status) & @statuses::integer <> 0
    AND (@definition::text = '' OR definition = @definition)
    AND (@version::integer = 0 OR version = @version)
    AND starts_with(id, @id_prefix::text)
    AND (sqlc.narg(started_after)::timestamptz IS NULL OR started_at >= sqlc.narg(started_after))
    AND (sqlc.narg(started_before)::timestamptz IS NULL OR started_at < sqlc.narg(started_before))
ORDER BY run DESC
LIMIT sqlc.arg(max_rows)::integer;

-- name: AllSagasOldestFirst :many
SELECT * FROM saga
WHERE run BETWEEN @lowest AND @highest
    AND (1 << status) & @statuses::integer <> 0
    AND (@definition::text = '' OR definition = @definition)
    AND (@version::integer = 0 OR version = @version)
    AND starts_with(id, @id_prefix::text)
    AND (sqlc.narg(started_after)::timestamptz IS NULL OR started_at >= sqlc.narg(started_after))
    AND (sqlc.narg(started_before)::timestamptz IS NULL OR started_at < sqlc.narg(started_before))
ORDER BY run
LIMIT sqlc.arg(max_rows)::integer;

-- name: History :many
SELECT * FROM history
WHERE shard = @shard AND run = @run AND n >= sqlc.arg(from_n)::integer
ORDER BY n
LIMIT sqlc.arg(max_rows)::integer;

-- name: OpenItems :many
SELECT * FROM ops_item
WHERE status < 3
    AND (@namespace::text = '' OR namespace = @namespace)
    AND (@definition::text = '' OR definition = @definition)
    AND (@saga_id::text = '' OR saga_id = @saga_id)
    AND (opened_at, run, number) > (@after_opened::timestamptz, @after_run::uuid, @after_number::integer)
ORDER BY opened_at, run, number
LIMIT sqlc.arg(max_rows)::integer;

-- name: AllItems :many
SELECT * FROM ops_item
WHERE (@namespace::text = '' OR namespace = @namespace)
    AND (@definition::text = '' OR definition = @definition)
    AND (@saga_id::text = '' OR saga_id = @saga_id)
    AND (opened_at, run, number) > (@after_opened::timestamptz, @after_run::uuid, @after_number::integer)
ORDER BY opened_at, run, number
LIMIT sqlc.arg(max_rows)::integer;

-- name: CountOpenItems :many
SELECT kind, count(*) AS items FROM ops_item WHERE status < 3 GROUP BY kind;

-- name: KeepStray :one
INSERT INTO stray (at, namespace, saga_id, run, step, attempt, outcome, worker, why)
VALUES (@at, @namespace, @saga_id, @run, @step, @attempt, @outcome, @worker, @why)
RETURNING id;

-- name: DropStrays :exec
DELETE FROM stray
WHERE id <= (SELECT s.id FROM stray s ORDER BY s.id DESC OFFSET @keep::integer LIMIT 1);

-- name: Strays :many
SELECT * FROM stray ORDER BY id DESC LIMIT sqlc.arg(max_rows)::integer;
