-- name: DefinitionByHash :one
SELECT * FROM definition WHERE namespace = @namespace AND name = @name AND hash = @hash;

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
SELECT * FROM definition WHERE namespace = @namespace AND name = @name ORDER BY version DESC LIMIT 1;

-- name: LatestDefinitions :many
SELECT DISTINCT ON (name) namespace, name, version, hash, registered_at
FROM definition
WHERE namespace = @namespace AND name > @after
ORDER BY name, version DESC
LIMIT sqlc.arg(max_rows)::integer;

-- name: DefinitionVersions :many
SELECT namespace, name, version, hash, registered_at
FROM definition
WHERE namespace = @namespace AND name = @name AND version < sqlc.arg(before_version)
ORDER BY version DESC
LIMIT sqlc.arg(max_rows)::integer;
