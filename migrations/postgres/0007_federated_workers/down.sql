ALTER TABLE federated_participants DROP COLUMN takes_part;
