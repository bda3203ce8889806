-- Training jobs with their history, progress and results. Times are UTC.

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    name TEXT NOT NULL,
    dataset_id BIGINT NOT NULL REFERENCES datasets (id),
    base_model TEXT NOT NULL, -- its name at the hub
    config TEXT NOT NULL, -- JSON, as it was sent
    priority INTEGER NOT NULL,
    max_retries INTEGER NOT NULL,
    requested_worker_id BIGINT REFERENCES workers (id), -- NULL: any worker
    status TEXT NOT NULL CHECK (
        status IN ('queued', 'assigned', 'running', 'stopping', 'completed', 'failed', 'stopped')
    ),
    attempt INTEGER NOT NULL,
    retries_left INTEGER NOT NULL,
    worker_id BIGINT REFERENCES workers (id), -- that has the job, or had it when it ended
    resume_from BIGINT, -- step of the checkpoint that this attempt goes on from
    failure_kind TEXT,
    error TEXT,
    started TEXT, -- JSON: what job_started told
    progress TEXT, -- JSON: newest step of this attempt
    result TEXT, -- JSON: what job_completed told
    revision BIGINT NOT NULL DEFAULT 0, -- counts the transitions; a change names the one that it builds on
    created_at TIMESTAMP NOT NULL,
    started_at TIMESTAMP,
    ended_at TIMESTAMP
);
CREATE INDEX jobs_status ON jobs (status);
CREATE INDEX jobs_owner ON jobs (owner_id);
CREATE INDEX jobs_dataset ON jobs (dataset_id);

-- One row for each transition, written in the same transaction.
CREATE TABLE job_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    job_id BIGINT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    at TIMESTAMP NOT NULL,
    kind TEXT NOT NULL,
    from_status TEXT NOT NULL,
    to_status TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX job_events_job ON job_events (job_id);

-- Which worker has, or had, which attempt.
CREATE TABLE job_attempts (
    job_id BIGINT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    worker_id BIGINT NOT NULL REFERENCES workers (id),
    PRIMARY KEY (job_id, attempt)
);

CREATE TABLE checkpoints (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    job_id BIGINT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    epoch BIGINT,
    path TEXT NOT NULL,
    metrics TEXT NOT NULL, -- JSON
    verified BOOLEAN NOT NULL, -- its files are in artifacts, stored and checked
    created_at TIMESTAMP NOT NULL,
    UNIQUE (job_id, attempt, step)
);

-- The files of checkpoints (with their step) and of results (without).
CREATE TABLE artifacts (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    job_id BIGINT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    step BIGINT,
    storage_key TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    created_at TIMESTAMP NOT NULL,
    UNIQUE (job_id, storage_key)
);

-- The curves: each step once, as the newest attempt reported it.
CREATE TABLE metric_points (
    job_id BIGINT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    step BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    data TEXT NOT NULL, -- JSON, as in training_progress
    PRIMARY KEY (job_id, step)
);

-- The last lines of each job's log.
CREATE TABLE job_logs (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    job_id BIGINT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    at TIMESTAMP NOT NULL,
    level TEXT NOT NULL,
    line TEXT NOT NULL
);
CREATE INDEX job_logs_job ON job_logs (job_id);
