-- Accounts, what they sign in with, enrolment keys and the workers enrolled by them.
-- Times are UTC. Secrets are kept as their SHA-256 only; passwords as argon2id strings.

CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    email TEXT NOT NULL, -- lower case
    password_hash TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
    max_concurrent_jobs BIGINT, -- NULL: no limit
    max_storage_bytes BIGINT, -- NULL: no limit
    created_at TIMESTAMP NOT NULL,
    deleted_at TIMESTAMP
);
CREATE UNIQUE INDEX users_email ON users (email) WHERE deleted_at IS NULL;

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    token_hash BLOB NOT NULL UNIQUE,
    created_at TIMESTAMP NOT NULL,
    expires_at TIMESTAMP NOT NULL
);
CREATE INDEX sessions_user ON sessions (user_id);

CREATE TABLE api_tokens (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('admin', 'member', 'viewer')),
    token_hash BLOB NOT NULL UNIQUE,
    created_at TIMESTAMP NOT NULL,
    expires_at TIMESTAMP -- NULL: never
);
CREATE INDEX api_tokens_user ON api_tokens (user_id);

-- One-use tokens for /ws/user/{id}. The row is deleted when it is tried.
CREATE TABLE ws_tokens (
    token_hash BLOB PRIMARY KEY NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    session_id BIGINT REFERENCES sessions (id) ON DELETE CASCADE,
    api_token_id BIGINT REFERENCES api_tokens (id) ON DELETE CASCADE,
    expires_at TIMESTAMP NOT NULL
);

CREATE TABLE enrollment_keys (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    key_hash BLOB NOT NULL UNIQUE,
    name_prefix TEXT,
    max_uses BIGINT, -- NULL: no limit
    uses BIGINT NOT NULL DEFAULT 0,
    created_by BIGINT NOT NULL REFERENCES users (id),
    created_at TIMESTAMP NOT NULL,
    expires_at TIMESTAMP NOT NULL,
    revoked_at TIMESTAMP
);

CREATE TABLE workers (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    uuid TEXT NOT NULL,
    name TEXT NOT NULL,
    key_hash BLOB NOT NULL UNIQUE,
    key_used_at TIMESTAMP, -- NULL: the key that was issued has never been presented
    enrollment_key_id BIGINT REFERENCES enrollment_keys (id),
    worker_type TEXT, -- NULL until it first registered; then both, training or inference
    hardware TEXT, -- JSON: what the worker last said in worker_register
    benchmark TEXT, -- JSON
    draining BOOLEAN NOT NULL DEFAULT FALSE,
    created_at TIMESTAMP NOT NULL,
    last_seen_at TIMESTAMP,
    deleted_at TIMESTAMP
);
CREATE UNIQUE INDEX workers_uuid ON workers (uuid) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX workers_name ON workers (name) WHERE deleted_at IS NULL;
