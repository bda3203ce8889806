-- Exports: results of jobs in another form. Their files are in artifacts, without a step. Times are UTC.

CREATE TABLE exports (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    owner_id BIGINT NOT NULL REFERENCES users (id),
    job_id BIGINT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    format TEXT NOT NULL CHECK (format IN ('merged_safetensors', 'gguf_merged', 'gguf_lora')),
    weights TEXT CHECK (weights IN ('f32', 'f16', 'bf16', 'q8_0')), -- their type; NULL: the format's own
    status TEXT NOT NULL CHECK (status IN ('queued', 'running', 'completed', 'failed', 'cancelled')),
    worker_id BIGINT REFERENCES workers (id), -- that has the export, or had it when it ended
    result TEXT, -- JSON: the files
    failure_kind TEXT,
    error TEXT,
    created_at TIMESTAMP NOT NULL,
    started_at TIMESTAMP,
    ended_at TIMESTAMP
);
CREATE INDEX exports_status ON exports (status);
CREATE INDEX exports_job ON exports (job_id);
