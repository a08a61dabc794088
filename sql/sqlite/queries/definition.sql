-- name: DefinitionByHash :one
SELECT * FROM definition WHERE namespace = @namespace AND name = @name AND hash = @hash;

-- name: InsertDefinition :exec
INSERT INTO definition (namespace, name, version, hash, registered_at, body)
VALUES (@namespace, @name, @version, @hash, @registered_at, @body);

-- name: Definition :one
SELECT * FROM definition WHERE namespace = @namespace AND name = @name AND version = @version;

-- name: LatestDefinition :one
SELECT * FROM definition WHERE namespace = @namespace AND name = @name ORDER BY version DESC LIMIT 1;

-- name: LatestDefinitions :many
SELECT namespace, name, version, hash, registered_at
FROM definition d
WHERE d.namespace = @namespace AND d.name > @after
    AND d.version = (SELECT max(l.version) FROM definition l WHERE l.namespace = d.namespace AND l.name = d.name)
ORDER BY d.name
LIMIT @max_rows;

-- name: DefinitionVersions :many
SELECT namespace, name, version, hash, registered_at
FROM definition
WHERE namespace = @namespace AND name = @name AND version < @before_version
ORDER BY version DESC
LIMIT @max_rows;
