-- Deleted versions keep their row and their number. Whoever asks for a version by its number gets it all the same.

-- name: DefinitionByHash :one
SELECT * FROM definition WHERE namespace = @namespace AND name = @name AND hash = @hash AND deleted_at IS NULL;

-- Inserts nothing if another came first, under this version or with this hash.
-- name: InsertDefinition :many
INSERT INTO definition (namespace, name, version, hash, registered_at, body)
SELECT @namespace, @name, coalesce(max(d.version), 0) + 1, @hash, @registered_at, @body
FROM definition d
WHERE d.namespace = @namespace AND d.name = @name
ON CONFLICT DO NOTHING
RETURNING version;

-- name: Definition :one
SELECT * FROM definition WHERE namespace = @namespace AND name = @name AND version = @version;

-- name: LatestDefinition :one
SELECT * FROM definition
WHERE namespace = @namespace AND name = @name AND deleted_at IS NULL
ORDER BY version DESC
LIMIT 1;

-- name: LatestDefinitions :many
SELECT DISTINCT ON (name) namespace, name, version, hash, registered_at
FROM definition
WHERE namespace = @namespace AND name > @after AND deleted_at IS NULL
ORDER BY name, version DESC
LIMIT sqlc.arg(max_rows)::integer;

-- name: DefinitionVersions :many
SELECT namespace, name, version, hash, registered_at
FROM definition
WHERE namespace = @namespace AND name = @name AND version < sqlc.arg(before_version) AND deleted_at IS NULL
ORDER BY version DESC
LIMIT sqlc.arg(max_rows)::integer;

-- name: DefinitionsNaming :many
SELECT * FROM definition
WHERE namespace = @namespace AND deleted_at IS NULL AND position(@word::bytea IN body) > 0
    AND (name, version) > (@after_name::text, @after_version::integer)
ORDER BY name, version
LIMIT sqlc.arg(max_rows)::integer;

-- name: DeleteDefinition :one
SELECT sagad_delete_definition(@namespace::text, @name::text, @version::integer)::bigint AS unfinished;

-- By the index of unfinished sagas.
-- name: UnfinishedOf :many
SELECT version, count(*) AS sagas
FROM saga
WHERE namespace = @namespace AND definition = @name AND status < 4
    AND (@version::integer = 0 OR version = @version)
GROUP BY version;

-- name: ExamplesOf :many
SELECT id FROM saga
WHERE namespace = @namespace AND definition = @name AND version = @version AND status < 4
LIMIT sqlc.arg(max_rows)::integer;

-- By a scan: an index would cost each start, and this is asked by a person now and then.
-- name: SagasOf :many
SELECT version, count(*) AS sagas
FROM saga
WHERE namespace = @namespace AND definition = @name
    AND (@version::integer = 0 OR version = @version)
GROUP BY version;
