-- Uploaded data sets. The bytes are in the object store under `storage_key`.

CREATE TABLE datasets (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    name TEXT NOT NULL,
    format TEXT NOT NULL,
    storage_key TEXT NOT NULL,
    -- 'uploading' rows are never shown; one that is left by a crash is removed at the next start.
    state TEXT NOT NULL CHECK (state IN ('uploading', 'ready', 'deleted')),
    bytes BIGINT NOT NULL DEFAULT 0,
    sha256 TEXT NOT NULL DEFAULT '',
    row_count BIGINT NOT NULL DEFAULT 0, -- rows in the file
    accepted_rows BIGINT NOT NULL DEFAULT 0, -- rows that can be trained on
    row_shapes TEXT NOT NULL DEFAULT '{}', -- JSON: rows by shape
    problems TEXT NOT NULL DEFAULT '[]', -- JSON: the first bad rows
    created_at TIMESTAMP NOT NULL
);
CREATE INDEX datasets_owner ON datasets (owner_id);
