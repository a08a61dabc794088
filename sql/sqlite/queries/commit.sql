-- What a commit runs, in one transaction.

-- name: Swap :execrows
UPDATE shard SET last_seq = @seq
WHERE id = @id AND epoch = @epoch AND grant_id = @grant_id AND last_seq = @before;

-- name: Fence :one
SELECT epoch, grant_id, last_seq FROM shard WHERE id = @id;

-- name: InsertHistory :exec
INSERT INTO history (run, n, shard, epoch, seq, at, facts) VALUES (@run, @n, @shard, @epoch, @seq, @at, @facts);

-- name: InsertSaga :exec
INSERT INTO saga (shard, namespace, id, run, n, definition, version, status, digest, started_at, changed_at, deadline,
    labels, cause, settled_by_hand)
VALUES (@shard, @namespace, @id, @run, @n, @definition, @version, @status, @digest, @started_at, @changed_at, @deadline,
    @labels, @cause, @settled_by_hand);

-- name: UpdateSaga :execrows
UPDATE saga
SET n = @n, definition = @definition, version = @version, status = @status, changed_at = @changed_at,
    deadline = @deadline, labels = @labels, cause = @cause, settled_by_hand = @settled_by_hand
WHERE shard = @shard AND namespace = @namespace AND id = @id AND run = @run AND n < @below;

-- name: PutItem :exec
INSERT INTO ops_item (namespace, run, number, saga_id, saga_n, definition, kind, status, direction, blocking, step, code,
    message, fingerprint, attempts, how, opened_at, changed_at)
VALUES (@namespace, @run, @number, @saga_id, @saga_n, @definition, @kind, @status, @direction, @blocking, @step, @code,
    @message, @fingerprint, @attempts, @how, @opened_at, @changed_at)
ON CONFLICT (namespace, run, number) DO UPDATE
SET saga_id = excluded.saga_id, saga_n = excluded.saga_n, definition = excluded.definition, kind = excluded.kind,
    status = excluded.status, direction = excluded.direction, blocking = excluded.blocking, step = excluded.step,
    code = excluded.code, message = excluded.message, fingerprint = excluded.fingerprint,
    attempts = excluded.attempts, how = excluded.how, opened_at = excluded.opened_at,
    changed_at = excluded.changed_at;
