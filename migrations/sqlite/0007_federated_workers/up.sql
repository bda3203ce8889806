-- Workers that take part in a federated session are claimed for it, also across a restart of the platform.

ALTER TABLE federated_participants ADD COLUMN takes_part BOOLEAN NOT NULL DEFAULT FALSE; -- a worker that is claimed
