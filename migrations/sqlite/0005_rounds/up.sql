-- Training in rounds: sessions of workers (over WebSocket) and of volunteers (Coordinator protocol v1). Times are UTC.

CREATE TABLE federated_sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    kind TEXT NOT NULL CHECK (kind IN ('workers', 'volunteers')),
    name TEXT NOT NULL, -- of volunteers: what stands in /c/NAME/
    is_default BOOLEAN NOT NULL, -- also at the root
    status TEXT NOT NULL CHECK (status IN ('preparing', 'open', 'finished', 'stopped', 'failed')),
    error TEXT, -- why it has failed
    base_model TEXT NOT NULL, -- its name at the hub
    job_id BIGINT REFERENCES jobs (id) ON DELETE SET NULL, -- whose adapter was the first global one
    dataset_id BIGINT REFERENCES datasets (id), -- NULL: participants bring their own data
    settings TEXT NOT NULL, -- JSON: what only this kind of session has
    adapter_config TEXT, -- JSON: PEFT's config of the adapter; NULL while preparing
    shard_count BIGINT NOT NULL, -- parts of the data, also where participants bring their own
    total_rounds BIGINT NOT NULL,
    enough BIGINT NOT NULL, -- results that close a round at once
    at_least BIGINT NOT NULL, -- results that close it at its deadline
    round_timeout_ms BIGINT, -- NULL: a round waits for enough
    aggregation TEXT NOT NULL,
    outer_lr DOUBLE NOT NULL,
    outer_momentum DOUBLE NOT NULL,
    max_delta_norm DOUBLE, -- of one result; NULL: any
    max_refused BIGINT, -- uploads of one participant; NULL: any number
    key_hash BLOB, -- SHA-256 of the key that participants share
    round BIGINT NOT NULL DEFAULT 0, -- that is open, from 0; total_rounds once finished
    closing BOOLEAN NOT NULL DEFAULT FALSE, -- the round takes no result any more; it is being merged
    created_at TIMESTAMP NOT NULL,
    ended_at TIMESTAMP
);
CREATE INDEX federated_sessions_status ON federated_sessions (status);
CREATE INDEX federated_sessions_owner ON federated_sessions (owner_id);
CREATE UNIQUE INDEX federated_sessions_name ON federated_sessions (name)
    WHERE kind = 'volunteers' AND status <> 'failed';

-- The rounds that have begun, and behind the last one a row for what came of it.
CREATE TABLE federated_rounds (
    session_id BIGINT NOT NULL REFERENCES federated_sessions (id) ON DELETE CASCADE,
    round BIGINT NOT NULL,
    weights_sha256 TEXT NOT NULL, -- of the global adapter with which it began
    weights_bytes BIGINT NOT NULL,
    has_velocity BOOLEAN NOT NULL, -- the momentum's file is there too
    merged BIGINT, -- results that went into the mean; NULL until it is closed
    update_norm DOUBLE, -- L2 norm of the step that was taken
    opened_at TIMESTAMP NOT NULL,
    closed_at TIMESTAMP,
    PRIMARY KEY (session_id, round)
);

CREATE TABLE federated_participants (
    session_id BIGINT NOT NULL REFERENCES federated_sessions (id) ON DELETE CASCADE,
    name TEXT NOT NULL, -- a volunteer's pseudonym, a worker's number
    shard BIGINT NOT NULL,
    accepted BIGINT NOT NULL DEFAULT 0,
    refused BIGINT NOT NULL DEFAULT 0, -- uploads that were not valid
    eliminated BIGINT NOT NULL DEFAULT 0, -- results left out when merging
    late BIGINT NOT NULL DEFAULT 0, -- results for a round that was closed
    joined_at TIMESTAMP NOT NULL,
    PRIMARY KEY (session_id, name)
);

CREATE TABLE federated_results (
    session_id BIGINT NOT NULL REFERENCES federated_sessions (id) ON DELETE CASCADE,
    round BIGINT NOT NULL,
    participant TEXT NOT NULL,
    number BIGINT NOT NULL, -- names the file: updates/NUMBER.safetensors
    sha256 TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    delta_norm DOUBLE NOT NULL, -- L2 norm of its difference from the global adapter
    weight BIGINT NOT NULL, -- examples that it was trained on; 1 where that is not known
    loss DOUBLE,
    eliminated_because TEXT, -- why it was left out
    accepted_at TIMESTAMP NOT NULL,
    PRIMARY KEY (session_id, round, participant)
);

-- The parts of the data that the platform itself hands out.
CREATE TABLE federated_shards (
    session_id BIGINT NOT NULL REFERENCES federated_sessions (id) ON DELETE CASCADE,
    shard BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    PRIMARY KEY (session_id, shard)
);

-- The final adapter's files, under federated/ID/final/.
CREATE TABLE federated_files (
    session_id BIGINT NOT NULL REFERENCES federated_sessions (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    PRIMARY KEY (session_id, name)
);
