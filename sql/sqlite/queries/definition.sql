-- sql/postgres explains the queries.

-- name: DefinitionByHash :one
SELECT * FROM definition WHERE namespace = @namespace AND name = @name AND hash = @hash AND deleted_at IS NULL;

-- name: LastVersion :one
SELECT version FROM definition WHERE namespace = @namespace AND name = @name ORDER BY version DESC LIMIT 1;

-- name: InsertDefinition :exec
INSERT INTO definition (namespace, name, version, hash, registered_at, body)
VALUES (@namespace, @name, @version, @hash, @registered_at, @body);

-- name: Definition :one
SELECT * FROM definition WHERE namespace = @namespace AND name = @name AND version = @version;

-- name: LatestDefinition :one
SELECT * FROM definition
WHERE namespace = @namespace AND name = @name AND deleted_at IS NULL
ORDER BY version DESC
LIMIT 1;

-- name: LatestDefinitions :many
SELECT namespace, name, version, hash, registered_at
FROM definition d
WHERE d.namespace = @namespace AND d.name > @after
    AND d.version = (
        SELECT max(l.version) FROM definition l
        WHERE l.namespace = d.namespace AND l.name = d.name AND l.deleted_at IS NULL
    )
ORDER BY d.name
LIMIT @max_rows;

-- name: DefinitionVersions :many
SELECT namespace, name, version, hash, registered_at
FROM definition
WHERE namespace = @namespace AND name = @name AND version < @before_version AND deleted_at IS NULL
ORDER BY version DESC
LIMIT @max_rows;

-- name: DefinitionsNaming :many
SELECT * FROM definition
WHERE namespace = @namespace AND deleted_at IS NULL AND instr(body, CAST(@word AS BLOB)) > 0
    AND (name > @after_name OR name = @after_name AND version > @after_version)
ORDER BY name, version
LIMIT @max_rows;

-- name: DeletedAt :one
SELECT deleted_at FROM definition WHERE namespace = @namespace AND name = @name AND version = @version;

-- name: DeleteDefinition :exec
UPDATE definition SET deleted_at = @deleted_at
WHERE namespace = @namespace AND name = @name AND version = @version AND deleted_at IS NULL;

-- name: UnfinishedOf :many
SELECT version, count(*) AS sagas
FROM saga
WHERE namespace = @namespace AND definition = @name AND status < 4
    AND (CAST(@version AS INTEGER) = 0 OR version = @version)
GROUP BY version;

-- name: ExamplesOf :many
SELECT id FROM saga
WHERE namespace = @namespace AND definition = @name AND version = @version AND status < 4
LIMIT @max_rows;

-- name: SagasOf :many
SELECT version, count(*) AS sagas
FROM saga
WHERE namespace = @namespace AND definition = @name
    AND (CAST(@version AS INTEGER) = 0 OR version = @version)
GROUP BY version;
