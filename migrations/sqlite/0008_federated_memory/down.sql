ALTER TABLE federated_rounds DROP COLUMN loss;
ALTER TABLE federated_sessions DROP COLUMN worker_times;
ALTER TABLE federated_participants DROP COLUMN last_error;
ALTER TABLE federated_participants DROP COLUMN failures;
