-- +goose Up

-- sagad_commit writes the batches of many shards. It is one function, called by one statement, because a statement is one
-- message: a client that is paused or dies holds no lock. With BEGIN and COMMIT it would, and would block the take-over of its
-- shards without limit.
--
-- b_* describe a batch each, in the order of their shards, so that two callers can't deadlock; b_updates is how many
-- sagas the batch updates. t_* are transitions, s_* sagas, i_* operations items; *_batch tells whose they are,
-- counting from 1. An empty s_labels, s_cause, or a zero s_settled_by_hand, and a s_deadline of year 1 mean none.
--
-- The answer is per batch: 1 committed, 2 already, 3 fenced, 4 regressed. A batch whose fence fails drops out; the others
-- are written. A constraint that fails, or a saga to update that isn't there or is newer, fails the whole statement.
--
-- The settings: synchronous_commit may not be off, whatever the database says (see below); the others hold the plans to
-- the primary keys. Plans are cached, and one made for a table that was small would scan it when it is large.
-- +goose StatementBegin
CREATE FUNCTION sagad_commit(
    b_shard integer[], b_epoch bigint[], b_grant uuid[], b_seq bigint[], b_updates integer[],
    t_batch integer[], t_run uuid[], t_n integer[], t_at timestamptz[], t_facts bytea[],
    s_batch integer[], s_new boolean[], s_run uuid[], s_n integer[], s_namespace text[], s_id text[],
    s_definition text[], s_version integer[], s_status smallint[], s_digest bytea[], s_started_at timestamptz[],
    s_changed_at timestamptz[], s_deadline timestamptz[], s_labels text[], s_cause bytea[], s_settled_by_hand integer[],
    i_batch integer[], i_run uuid[], i_number integer[], i_namespace text[], i_saga_id text[], i_definition text[],
    i_kind smallint[], i_status smallint[], i_direction smallint[], i_blocking boolean[], i_step text[], i_code text[],
    i_message text[], i_fingerprint text[], i_attempts integer[], i_how text[], i_opened_at timestamptz[],
    i_changed_at timestamptz[], i_saga_n bigint[]
) RETURNS smallint[]
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    results smallint[] := '{}';
    result  smallint;
    have    shard%ROWTYPE;
    written integer := 0;
    updates integer := 0;
    updated integer;
BEGIN
    -- A commit that is answered before it is durable would let out what may never have happened.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    -- The row lock that the update takes is the fence, the sequence and the filter for duplicates in one. Another sending
    -- of the same batch, or a take-over, waits here for the one that came first.
    FOR i IN 1 .. cardinality(b_shard) LOOP
        UPDATE shard SET last_seq = b_seq[i]
        WHERE id = b_shard[i] AND epoch = b_epoch[i] AND grant_id = b_grant[i] AND last_seq = b_seq[i] - 1;
        IF FOUND THEN
            result := 1;
            written := written + 1;
            updates := updates + b_updates[i];
        ELSE
            SELECT * INTO have FROM shard WHERE id = b_shard[i];
            IF NOT FOUND OR have.epoch < b_epoch[i] THEN
                result := 4;
            ELSIF have.epoch > b_epoch[i] OR have.grant_id <> b_grant[i] THEN
                result := 3;
            ELSIF have.last_seq >= b_seq[i] THEN
                result := 2;
            ELSE
                result := 4;
            END IF;
        END IF;
        results[i] := result;
    END LOOP;
    IF written = 0 THEN
        RETURN results;
    END IF;

    INSERT INTO history (at, epoch, seq, shard, n, run, facts)
    SELECT u.at, b_epoch[u.batch], b_seq[u.batch], b_shard[u.batch], u.n, u.run, u.facts
    FROM unnest(t_batch, t_run, t_n, t_at, t_facts) AS u (batch, run, n, at, facts)
    WHERE results[u.batch] = 1;

    IF cardinality(s_batch) > updates THEN
        INSERT INTO saga (started_at, changed_at, deadline, run, shard, n, version, settled_by_hand, status, namespace, id,
            definition, digest, labels, cause)
        SELECT u.started_at, u.changed_at, nullif(u.deadline, '0001-01-01 00:00:00Z'), u.run, b_shard[u.batch], u.n,
            u.version, nullif(u.settled_by_hand, 0), u.status, u.namespace, u.id, u.definition, u.digest,
            nullif(u.labels, ''), nullif(u.cause, '')
        FROM unnest(s_batch, s_new, s_run, s_n, s_namespace, s_id, s_definition, s_version, s_status, s_digest,
            s_started_at, s_changed_at, s_deadline, s_labels, s_cause, s_settled_by_hand)
            AS u (batch, new, run, n, namespace, id, definition, version, status, digest, started_at, changed_at,
                deadline, labels, cause, settled_by_hand)
        WHERE u.new AND results[u.batch] = 1;
    END IF;

    IF updates > 0 THEN
        UPDATE saga AS s
        SET changed_at = u.changed_at, deadline = nullif(u.deadline, '0001-01-01 00:00:00Z'), n = u.n,
            version = u.version, settled_by_hand = nullif(u.settled_by_hand, 0), status = u.status,
            definition = u.definition, labels = nullif(u.labels, ''), cause = nullif(u.cause, '')
        FROM unnest(s_batch, s_new, s_run, s_n, s_namespace, s_id, s_definition, s_version, s_status,
            s_changed_at, s_deadline, s_labels, s_cause, s_settled_by_hand)
            AS u (batch, new, run, n, namespace, id, definition, version, status, changed_at,
                deadline, labels, cause, settled_by_hand)
        WHERE NOT u.new AND results[u.batch] = 1
            AND s.shard = b_shard[u.batch] AND s.namespace = u.namespace AND s.id = u.id
            AND s.run = u.run AND s.n < u.n;
        GET DIAGNOSTICS updated = ROW_COUNT;
        IF updated <> updates THEN
            RAISE EXCEPTION 'of % sagas to update % were there and older', updates, updated
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
    END IF;

    IF cardinality(i_batch) > 0 THEN
        INSERT INTO ops_item AS o (opened_at, changed_at, run, saga_n, number, attempts, kind, status, direction,
            blocking, namespace, saga_id, definition, step, code, message, fingerprint, how)
        SELECT u.opened_at, u.changed_at, u.run, u.saga_n, u.number, u.attempts, u.kind, u.status, u.direction,
            u.blocking, u.namespace, u.saga_id, u.definition, u.step, u.code, u.message, u.fingerprint, u.how
        FROM unnest(i_batch, i_run, i_number, i_namespace, i_saga_id, i_definition, i_kind, i_status, i_direction,
            i_blocking, i_step, i_code, i_message, i_fingerprint, i_attempts, i_how, i_opened_at, i_changed_at, i_saga_n)
            AS u (batch, run, number, namespace, saga_id, definition, kind, status, direction,
                blocking, step, code, message, fingerprint, attempts, how, opened_at, changed_at, saga_n)
        WHERE results[u.batch] = 1
        ON CONFLICT (namespace, run, number) DO UPDATE
        SET opened_at = excluded.opened_at, changed_at = excluded.changed_at, saga_n = excluded.saga_n,
            attempts = excluded.attempts, kind = excluded.kind, status = excluded.status,
            direction = excluded.direction, blocking = excluded.blocking, saga_id = excluded.saga_id,
            definition = excluded.definition, step = excluded.step, code = excluded.code, message = excluded.message,
            fingerprint = excluded.fingerprint, how = excluded.how;
    END IF;

    RETURN results;
END
$$;
-- +goose StatementEnd

-- sagad_timeline is the number of the server's timeline, which rises when a standby is promoted; 0 where a server doesn't
-- tell it. It is the high part of epochs, so that they rise even if the promoted standby had lost the last of them.
-- +goose StatementBegin
CREATE FUNCTION sagad_timeline() RETURNS bigint
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ('x' || lpad(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 16, '0'))::bit(64)::bigint;
EXCEPTION WHEN OTHERS THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd

-- sagad_acquire takes those of the shards that nobody holds, or the node itself, and returns their grants. Leases are
-- judged by clock_timestamp(): now() is when the transaction began, which may be long ago. The update of shard waits for the
-- old owner's commit in flight, so what is read afterwards is final. A shard that can't be had within the
-- lock timeout is left out; after 3 seconds of waiting, so are all others.
-- +goose StatementBegin
CREATE FUNCTION sagad_acquire(a_node text, a_boot uuid, a_address text, a_shards integer[], a_ttl interval)
RETURNS TABLE (o_shard integer, o_epoch bigint, o_grant uuid, o_last_seq bigint)
LANGUAGE plpgsql
SET lock_timeout = '1s'
AS $$
DECLARE
    began    timestamptz := clock_timestamp();
    timeline bigint := sagad_timeline();
    wanted   integer;
BEGIN
    FOR wanted IN
        SELECT l.shard FROM shard_lease l
        WHERE l.shard = ANY (a_shards)
            AND (l.until <= clock_timestamp() OR l.until > clock_timestamp() + 2 * l.ttl
                OR l.node = a_node AND l.boot = a_boot)
        ORDER BY l.shard
    LOOP
        BEGIN
            PERFORM FROM shard_lease l
            WHERE l.shard = wanted
                AND (l.until <= clock_timestamp() OR l.until > clock_timestamp() + 2 * l.ttl
                    OR l.node = a_node AND l.boot = a_boot)
            FOR UPDATE;
            IF FOUND THEN
                UPDATE shard s
                SET epoch = greatest(s.epoch + 1, timeline << 32), grant_id = gen_random_uuid()
                WHERE s.id = wanted
                RETURNING s.id, s.epoch, s.grant_id, s.last_seq INTO o_shard, o_epoch, o_grant, o_last_seq;
                UPDATE shard_lease l
                SET epoch = o_epoch, until = clock_timestamp() + a_ttl, ttl = a_ttl, boot = a_boot, node = a_node,
                    address = a_address
                WHERE l.shard = wanted;
                RETURN NEXT;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            EXIT WHEN clock_timestamp() > began + interval '3 seconds';
        END;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION sagad_acquire;
DROP FUNCTION sagad_timeline;
DROP FUNCTION sagad_commit;
