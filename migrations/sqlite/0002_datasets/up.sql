-- Uploaded data sets. The bytes are in the object store under `storage_key`.

CREATE TABLE datasets (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    name TEXT NOT NULL,
    format TEXT NOT NULL,
    storage_key TEXT NOT NULL,
    -- Only 'ready' ones are shown. What a crash leaves as 'uploading' or 'deleting' is cleared at the next start.
    state TEXT NOT NULL CHECK (state IN ('uploading', 'ready', 'deleting', 'deleted')),
    bytes BIGINT NOT NULL DEFAULT 0,
    sha256 TEXT NOT NULL DEFAULT '',
    row_count BIGINT NOT NULL DEFAULT 0, -- good rows
    untrainable_rows BIGINT NOT NULL DEFAULT 0, -- good rows with nothing to train on
    bad_rows BIGINT NOT NULL DEFAULT 0,
    row_shapes TEXT NOT NULL DEFAULT '{}', -- JSON: good rows by shape
    problems TEXT NOT NULL DEFAULT '[]', -- JSON: the first bad rows
    created_at TIMESTAMP NOT NULL
);
CREATE INDEX datasets_owner ON datasets (owner_id);
