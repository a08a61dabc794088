-- sql/postgres explains the tables.

-- +goose Up
CREATE TABLE definition_next (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    hash          BLOB    NOT NULL,
    registered_at INTEGER NOT NULL,
    body          BLOB    NOT NULL,
    deleted_at    INTEGER,
    PRIMARY KEY (namespace, name, version)
) STRICT;

INSERT INTO definition_next (namespace, name, version, hash, registered_at, body)
SELECT namespace, name, version, hash, registered_at, body FROM definition;

DROP TABLE definition;

ALTER TABLE definition_next RENAME TO definition;

CREATE UNIQUE INDEX definition_hash ON definition (namespace, name, hash) WHERE deleted_at IS NULL;

CREATE INDEX saga_unfinished_of ON saga (namespace, definition, version) WHERE status < 4;

-- +goose StatementBegin
CREATE TRIGGER saga_definition BEFORE INSERT ON saga
WHEN EXISTS (
    SELECT 1 FROM definition d
    WHERE d.namespace = NEW.namespace AND d.name = NEW.definition AND d.version = NEW.version AND d.deleted_at IS NOT NULL
)
BEGIN
    SELECT RAISE(ABORT, 'the definition is deleted');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER saga_definition_move BEFORE UPDATE OF version ON saga
WHEN NEW.version <> OLD.version AND NEW.status < 4 AND EXISTS (
    SELECT 1 FROM definition d
    WHERE d.namespace = NEW.namespace AND d.name = NEW.definition AND d.version = NEW.version AND d.deleted_at IS NOT NULL
)
BEGIN
    SELECT RAISE(ABORT, 'the definition is deleted');
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER saga_definition_move;
DROP TRIGGER saga_definition;
DROP INDEX saga_unfinished_of;
DROP INDEX definition_hash;
DELETE FROM definition WHERE deleted_at IS NOT NULL;
CREATE UNIQUE INDEX definition_hash ON definition (namespace, name, hash);
ALTER TABLE definition DROP COLUMN deleted_at;
