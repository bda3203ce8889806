ALTER TABLE federated_sessions DROP COLUMN revealed_round;
