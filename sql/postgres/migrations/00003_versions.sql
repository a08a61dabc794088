-- +goose Up

-- A version that was deleted keeps its row: its number isn't given out again, and the sagas that ended under it are still
-- read by it. Its content is as good as new: registered again, it becomes another version.
ALTER TABLE definition ADD COLUMN deleted_at timestamptz;
ALTER TABLE definition DROP CONSTRAINT definition_hash;
CREATE UNIQUE INDEX definition_hash ON definition (namespace, name, hash) WHERE deleted_at IS NULL;
CREATE INDEX definition_deleted ON definition (namespace, name, version) WHERE deleted_at IS NOT NULL;

-- Who needs a version. Ended sagas aren't in it, so it stays small, and an end costs it nothing.
CREATE INDEX saga_unfinished_of ON saga (namespace, definition, version) WHERE status < 4;

-- sagad_delete_definition marks a version as deleted, unless a saga needs it. It returns how many do, or -1 if there is no
-- such version.
--
-- Each commit locks the rows of its shards first and looks for deleted versions after that (saga_definition below). So with
-- all shards' rows locked no commit is under way: whatever was committed is seen and counted here, and what waits will see
-- the mark. Commits wait for as long as one lookup in an index takes, and only if nobody needs the version; starts pay
-- nothing for it. Rows are locked in order, as everywhere, which rules a deadlock out.
-- +goose StatementBegin
CREATE FUNCTION sagad_delete_definition(d_namespace text, d_name text, d_version integer) RETURNS bigint
LANGUAGE plpgsql
SET lock_timeout = '5s'
SET enable_seqscan = off
AS $$
DECLARE
    unfinished bigint;
    deleted    boolean;
BEGIN
    FOR i IN 1 .. 2 LOOP
        SELECT d.deleted_at IS NOT NULL INTO deleted FROM definition d
        WHERE d.namespace = d_namespace AND d.name = d_name AND d.version = d_version;
        IF NOT FOUND THEN
            RETURN -1;
        ELSIF deleted THEN
            RETURN 0;
        END IF;
        SELECT count(*) INTO unfinished FROM saga s
        WHERE s.namespace = d_namespace AND s.definition = d_name AND s.version = d_version AND s.status < 4;
        IF unfinished > 0 THEN
            RETURN unfinished;
        END IF;
        IF i = 1 THEN
            PERFORM FROM shard ORDER BY id FOR SHARE;
        END IF;
    END LOOP;
    UPDATE definition d SET deleted_at = clock_timestamp()
    WHERE d.namespace = d_namespace AND d.name = d_name AND d.version = d_version AND d.deleted_at IS NULL;
    RETURN 0;
END
$$;
-- +goose StatementEnd

-- saga_definition refuses sagas of versions that are deleted. It doesn't ask for versions to be there: that is the engine's
-- business, which can't start what it can't load.
-- +goose StatementBegin
CREATE FUNCTION sagad_refuse_deleted() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    gone definition%ROWTYPE;
BEGIN
    SELECT d.* INTO gone FROM started s
    JOIN definition d ON d.namespace = s.namespace AND d.name = s.definition AND d.version = s.version
    WHERE d.deleted_at IS NOT NULL
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'version % of definition %/% is deleted', gone.version, gone.namespace, gone.name
            USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'saga_definition',
                DETAIL = format('%s %s %s', gone.namespace, gone.name, gone.version);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER saga_definition AFTER INSERT ON saga
REFERENCING NEW TABLE AS started
FOR EACH STATEMENT EXECUTE FUNCTION sagad_refuse_deleted();

-- The same for sagas that move to another version.
-- +goose StatementBegin
CREATE FUNCTION sagad_refuse_deleted_move() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF EXISTS (
        SELECT FROM definition d
        WHERE d.namespace = NEW.namespace AND d.name = NEW.definition AND d.version = NEW.version AND d.deleted_at IS NOT NULL
    ) THEN
        RAISE EXCEPTION 'version % of definition %/% is deleted', NEW.version, NEW.namespace, NEW.definition
            USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'saga_definition',
                DETAIL = format('%s %s %s', NEW.namespace, NEW.definition, NEW.version);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Not BEFORE: that would lock each row and write that to the log, also of sagas that don't move.
CREATE TRIGGER saga_definition_move AFTER UPDATE ON saga
FOR EACH ROW WHEN (OLD.version <> NEW.version AND NEW.status < 4)
EXECUTE FUNCTION sagad_refuse_deleted_move();

-- +goose Down
DROP TRIGGER saga_definition_move ON saga;
DROP TRIGGER saga_definition ON saga;
DROP FUNCTION sagad_refuse_deleted_move;
DROP FUNCTION sagad_refuse_deleted;
DROP FUNCTION sagad_delete_definition;
DROP INDEX saga_unfinished_of;
DELETE FROM definition WHERE deleted_at IS NOT NULL;
DROP INDEX definition_deleted;
DROP INDEX definition_hash;
ALTER TABLE definition ADD CONSTRAINT definition_hash UNIQUE (namespace, name, hash);
ALTER TABLE definition DROP COLUMN deleted_at;
