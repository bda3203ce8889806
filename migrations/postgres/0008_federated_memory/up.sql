-- What a session of workers remembers across a restart of the platform, and what is known of results only as a sum.

ALTER TABLE federated_participants ADD COLUMN failures BIGINT NOT NULL DEFAULT 0; -- of a worker, in a row
ALTER TABLE federated_participants ADD COLUMN last_error TEXT; -- why it failed last
ALTER TABLE federated_sessions ADD COLUMN worker_times TEXT; -- JSON: milliseconds that workers took for rounds, the newest last
ALTER TABLE federated_rounds ADD COLUMN loss DOUBLE PRECISION; -- mean loss, where that of single results is not known
