-- Evaluations: what was measured of which model on which data. Times are UTC.

CREATE TABLE evaluations (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    job_id BIGINT REFERENCES jobs (id) ON DELETE SET NULL, -- whose adapter is measured; NULL: the base model alone
    model TEXT NOT NULL, -- job- and its number, or the base model's name
    base_model TEXT NOT NULL, -- its name at the hub
    dataset_id BIGINT NOT NULL REFERENCES datasets (id),
    metrics TEXT NOT NULL, -- JSON: the names of what is to be measured
    batch_size BIGINT, -- sequences at a time; NULL: the worker's default
    max_length BIGINT, -- longest sequence in tokens; NULL: the worker's default
    status TEXT NOT NULL CHECK (status IN ('queued', 'running', 'completed', 'failed', 'cancelled')),
    worker_id BIGINT REFERENCES workers (id), -- that has the evaluation, or had it when it ended
    result TEXT, -- JSON: the figures
    failure_kind TEXT,
    error TEXT,
    created_at TIMESTAMP NOT NULL,
    started_at TIMESTAMP,
    ended_at TIMESTAMP
);
CREATE INDEX evaluations_status ON evaluations (status);
CREATE INDEX evaluations_owner ON evaluations (owner_id);
CREATE INDEX evaluations_job ON evaluations (job_id);
CREATE INDEX evaluations_dataset ON evaluations (dataset_id);
